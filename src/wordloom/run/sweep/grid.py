"""Parse grids of settings such as ``key=v1,v2``, and build a named recipe for every combination."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from wordloom.errors import RecipeError
from wordloom.recipe import Recipe, load_recipe
from wordloom.recipe.reading import override_value

_CLOSING = {"[": "]", "{": "}"}
_UNSAFE = re.compile(r"[^A-Za-z0-9._+=,-]+")
_LONGEST = 120  # characters of a folder's name


@dataclass(frozen=True, kw_only=True)
class Combination:
    """One point of a grid: its swept ``settings``, its complete ``recipe`` and the ``name`` of its folder."""

    name: str
    settings: dict[str, Any]
    recipe: Recipe


def split_settings(arguments: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Split command-line arguments into keys with several values and overrides with one value.

    Commas inside brackets, braces and quotes belong to a value: ``data.train=["a","b"],c`` has two values.

    >>> split_settings(["train.epochs=2,3", "seed=1"])
    ({'train.epochs': ['2', '3']}, ['seed=1'])

    Raises RecipeError for a key that is given twice, an empty value, or a bracket or quote left open.
    """
    grid: dict[str, list[str]] = {}
    overrides: list[str] = []
    seen: set[str] = set()
    for argument in arguments:
        key, equals, text = argument.partition("=")
        key = key.strip()
        if not equals:  # the reader of overrides reports the error
            overrides.append(argument)
            continue
        if key in seen:
            raise RecipeError(f"{key} is given twice; write its values as one list: {key}=v1,v2")
        seen.add(key)
        values = list(_alternatives(argument, text))
        if len(values) == 1:
            overrides.append(argument)
        elif "" in values:
            raise RecipeError(f"an empty value in {argument!r}: there is a comma too many")
        else:
            grid[key] = values
    return grid, overrides


def _alternatives(argument: str, text: str) -> Iterator[str]:
    """Split ``text`` at commas that are outside brackets, braces and quotes."""
    closing: list[str] = []  # the brackets that are still open, by what closes them
    quote, start = "", 0  # a quote opens only at the beginning of a value, so that don't is a word
    for i, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote and (text[i - 1] != "\\" or quote == "'") else quote
        elif letter in "'\"" and (closing or not text[start:i].strip()):
            quote = letter
        elif letter in _CLOSING and (closing or not text[start:i].strip()):
            closing.append(_CLOSING[letter])
        elif closing and letter == closing[-1]:
            closing.pop()
        elif letter == "," and not closing:
            yield text[start:i].strip()
            start = i + 1
    if closing or quote:
        raise RecipeError(f"cannot read {argument!r}: {quote or closing[-1]} is missing at its end")
    yield text[start:].strip()


def combinations(
    recipe: str | Path | Recipe,
    grid: Mapping[str, Sequence[Any]],
    overrides: Sequence[str] = (),
    *,
    start_from: str | Path | None = None,
    say: Callable[[str], None] | None = None,
) -> list[Combination]:
    """Return every combination of ``grid``, with the last key changing fastest; validate all recipes.

    Strings are parsed as overrides are (``"2e-5"`` is a number); other values are used as they are.
    ``say`` receives a line for each recipe key that an override drops.

    Raises RecipeError for an invalid recipe, for equal values or recipes, and for a grid in which no key has
    two values.
    """
    if not grid or all(len(values) < 2 for values in grid.values()):
        raise RecipeError(
            "nothing to sweep: give a key several values, e.g. train.learning_rate=1e-4,3e-4; for a single "
            "run there is `wordloom train`"
        )
    texts = {key: [_text(value) for value in values] for key, values in grid.items()}
    for key, alternatives in texts.items():
        _refuse_equal(key, alternatives)
    labels = _labels(list(grid))
    found: list[Combination] = []
    known: dict[str, str] = {}
    for chosen in itertools.product(*texts.values()):
        pairs = [f"{key}={text}" for key, text in zip(texts, chosen, strict=True)]
        loaded = load_recipe(recipe, [*overrides, *pairs], say=None if found else say)
        if start_from is not None:
            loaded = loaded.model_copy(update={"start_from": str(start_from)})
        settings = {key: override_value(text) for key, text in zip(texts, chosen, strict=True)}
        exact = " ".join(pairs)
        name = _name({labels[key]: value for key, value in settings.items()}, exact)
        if any(name == one.name for one in found):  # two values can be written alike in a name
            name = f"{name}-{_digest(exact)}"
        same = known.setdefault(json.dumps(loaded.as_dict(), sort_keys=True), name)
        if same != name:
            raise RecipeError(
                f"{same} and {name} are the same run, with equal recipes; leave one of them out"
            )
        found.append(Combination(name=name, settings=settings, recipe=loaded))
    return found


def _text(value: Any) -> str:
    """Return ``value`` as the text of an override."""
    if isinstance(value, str):
        return value
    if value is None:
        return "none"
    return tomli_w.dumps({"value": value}).partition("=")[2].strip()


def _refuse_equal(key: str, texts: Sequence[str]) -> None:
    seen: list[tuple[Any, str]] = []
    for text in texts:
        value = override_value(text)
        for other, written in seen:
            if value == other:
                same = f"twice {text}" if text == written else f"{written} and {text}, which are equal"
                raise RecipeError(f"{key} has {same}; leave one of them out")
        seen.append((value, text))


def _labels(keys: Sequence[str]) -> dict[str, str]:
    """Return a label for each key: its last part where that is unique, else the whole key."""
    last = [key.rpartition(".")[2] for key in keys]
    return {key: part if last.count(part) == 1 else key for key, part in zip(keys, last, strict=True)}


def _name(settings: Mapping[str, Any], exact: str) -> str:
    """Return a name for a folder, with a digest of ``exact`` where characters are replaced or truncated."""
    plain = ",".join(f"{label}={_plain(value)}" for label, value in settings.items())
    safe = _UNSAFE.sub("-", plain)
    if safe == plain and len(plain) <= _LONGEST:
        return plain
    return f"{safe[:_LONGEST]}-{_digest(exact)}"


def _digest(exact: str) -> str:
    return hashlib.sha256(exact.encode()).hexdigest()[:6]


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return "+".join(map(_plain, value))
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)
