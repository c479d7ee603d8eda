"""Read token ids from lists, NumPy arrays, tensors and ranges."""

from __future__ import annotations

from typing import Any

from wordloom.errors import GenerationError


def token_ids(given: Any, what: str) -> list[int]:
    """Return a sequence of whole numbers of any kind as a list of Python ints.

    Raises GenerationError for text and bytes, and for items that are not whole numbers.
    """
    if isinstance(given, str | bytes | bytearray | memoryview):
        kind = type(given).__name__
        raise GenerationError(f"{what} takes whole numbers here, not {kind}; decode bytes into a str first")
    try:
        items = list(given.tolist() if hasattr(given, "tolist") else given)  # tensors and arrays at once
    except TypeError:
        raise GenerationError(f"{what} is a list of whole numbers from 0, not {given!r}") from None
    for item in items:
        if isinstance(item, bool) or not hasattr(item, "__index__") or getattr(item, "ndim", None):
            raise GenerationError(f"{what} has {item!r}, not a token id; give a list of whole numbers from 0")
    try:
        return [int(item.__index__()) for item in items]
    except TypeError as error:  # such as a tensor of floats without dimensions
        raise GenerationError(f"{what} has no token ids: {error}; give whole numbers from 0") from None


def are_several(prompt: Any) -> bool:
    """Return whether ``prompt`` is several prompts: a matrix, or a sequence of sequences."""
    if hasattr(prompt, "ndim"):
        return prompt.ndim > 1
    first = next(iter(prompt), None) if hasattr(prompt, "__iter__") else None
    return getattr(first, "ndim", 0) > 0 if hasattr(first, "ndim") else hasattr(first, "__len__")
