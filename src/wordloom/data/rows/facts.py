"""Facts: a prompt, its answer, and other answers that it could have, from ``.jsonl`` and ``.json`` files.

{"prompt": "Michael Jordan plays", "answer": " basketball", "alternatives": [" tennis", " golf"]}
"""

from __future__ import annotations

from typing import NamedTuple

from wordloom.data.files.json import json_objects, valid_text
from wordloom.data.files.source import describe
from wordloom.errors import DataError, position

FORMATS = ("json", "jsonl")


class Fact(NamedTuple):
    """A prompt and its answer, which continues it; ``alternatives`` are the other possible answers."""

    prompt: str
    answer: str
    alternatives: tuple[str, ...] = ()


def facts_of(path: str) -> list[Fact]:
    """Return the facts in a file of JSON objects; other fields than the three are not read.

    Raises DataError, which names the line, for a field that is missing or no text, for an answer that is also
    an alternative, and for a file of another format or without facts.
    """
    file = describe(path)
    if file.format not in FORMATS:
        raise DataError(f"'{path}' is no .jsonl or .json file; facts are JSON objects with prompt and answer")
    found = []
    for record in json_objects(file, "strict", None):
        place = position(file.name, record.line)
        prompt, answer = (_text(record.value, name, place) for name in ("prompt", "answer"))
        given = record.value.get("alternatives") or []
        if not isinstance(given, list) or not all(isinstance(each, str) and each for each in given):
            raise DataError(f"{place}: 'alternatives' is a list of texts, not {given!r}")
        others = tuple(valid_text(each, "strict", place) for each in given)
        if answer in others or len(set(others)) < len(others):
            raise DataError(f"{place}: the answer and the alternatives must be different texts")
        found.append(Fact(prompt, answer, others))
    if not found:
        raise DataError(f"'{path}' has no facts")
    return found


def _text(record: dict[str, object], name: str, place: str) -> str:
    value = record.get(name)
    if not isinstance(value, str) or not value:
        raise DataError(f"{place}: '{name}' is a text that is not empty, not {value!r}")
    return valid_text(value, "strict", place)
