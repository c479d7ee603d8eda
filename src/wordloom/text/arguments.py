"""Checks of the texts and ids that callers give, with one clear line for each mistake."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Iterable, Iterator
from typing import Any

from wordloom.errors import TokenizerError, WordloomError


class ArgumentTypeError(TokenizerError, TypeError):
    """A text that is not a string, or an id that is not an integer; a TypeError too."""


def describe(value: object) -> str:
    """Return a short description of a value for an error message."""
    if value is None:
        return "None"
    shape = getattr(value, "shape", None)
    kind = type(value).__name__
    return f"{kind} {reprlib.repr(value)}" if shape is None else f"{kind} of shape {tuple(shape)}"


def check_texts(
    texts: Iterable[Any],
    name: str = "texts",
    *,
    types: tuple[type, ...] = (str,),
    error: type[WordloomError] = ArgumentTypeError,
) -> Iterator[Any]:
    """Return an iterator over ``texts`` that raises ``error`` for an item that is not a text.

    One string instead of several is refused at once, because its characters would be taken for texts.
    """
    if isinstance(texts, str | bytes | bytearray):
        raise error(f"{name} is one string: give a list of strings, such as [text]")
    try:
        items = iter(texts)
    except TypeError:
        raise error(f"{name} must be a list of strings, not {describe(texts)}") from None
    allowed = " or ".join(kind.__name__ for kind in types)

    def checked() -> Iterator[Any]:
        for i, text in enumerate(items):
            if not isinstance(text, types):
                raise error(f"{name}[{i}] must be a {allowed}, not {describe(text)}")
            yield text

    return checked()


def check_ids(ids: Iterable[Any], *, takes_bytes: bool = False) -> list[int]:
    """Return ``ids`` as a list of ints; raise ArgumentTypeError where they are not integers in one dimension.

    Lists, iterators, NumPy arrays and tensors are taken, and items of any integer type but bool.  ``bytes``
    are ids of a byte tokenizer alone (``takes_bytes``).
    """
    if isinstance(ids, str | dict) or (isinstance(ids, bytes | bytearray) and not takes_bytes):
        raise ArgumentTypeError(f"ids must be a sequence of integers, not {describe(ids)}")
    shape = getattr(ids, "shape", None)
    if shape is not None and len(shape) != 1:
        raise ArgumentTypeError(f"ids must have one dimension, not the shape {tuple(shape)}: give one row")
    try:
        items = ids.tolist() if hasattr(ids, "tolist") else list(ids)
    except TypeError:
        raise ArgumentTypeError(f"ids must be a sequence of integers, not {describe(ids)}") from None
    if set(map(type, items)) <= {int}:
        return items
    return [check_id(item, f"ids[{i}]") for i, item in enumerate(items)]


def check_id(index: Any, name: str = "the id") -> int:
    """Return ``index`` as an int; raise ArgumentTypeError where it is not an integer."""
    try:
        if not isinstance(index, bool):
            return operator.index(index)
    except TypeError:
        pass
    raise ArgumentTypeError(f"{name} must be an integer, not {describe(index)}")
