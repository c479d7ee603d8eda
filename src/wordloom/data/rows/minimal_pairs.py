"""Minimal pairs: two sentences of which one is acceptable, as in BLiMP.

Rows of .jsonl, or of a .json list, have the texts ``sentence_good`` and ``sentence_bad``.  ``UID`` names the
paradigm of a pair and ``linguistics_term`` its phenomenon, which may both be absent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from wordloom.data.files.json import json_objects, json_type, valid_text
from wordloom.data.files.source import Sources
from wordloom.data.files.stream import EncodingErrors, Meter, check_errors
from wordloom.data.sets.expand import JSON, task_files
from wordloom.errors import DataError, position


class MinimalPair(NamedTuple):
    """An acceptable sentence and one that is not.

    Attributes:
        paradigm: the kind of contrast, such as ``adjunct_island``; ``""`` if the row names none.
        phenomenon: a class of paradigms, such as ``island_effects``; ``""`` if the row names none.
        source, line: the file and the line, from 1 (in a .json the number of the item).
    """

    good: str
    bad: str
    paradigm: str
    phenomenon: str
    source: str
    line: int

    @property
    def place(self) -> str:
        """The position of the row, for error messages."""
        return position(self.source, self.line)


def minimal_pairs(sources: Sources, *, encoding_errors: EncodingErrors = "strict") -> Iterator[MinimalPair]:
    """Yield every pair of ``sources``, in order.

    ``sources`` are files, folders, globs, ``"-"`` for .jsonl on standard input, or named sets such as
    ``blimp``.  The sentences of a pair may be equal, as in 7 pairs of BLiMP.  Raises DataError, which names
    file, line and field, for a missing or empty sentence and a value that is not text.
    """
    check_errors(encoding_errors, "pairs")
    for file in task_files(sources, JSON, task="minimal pairs", stdin=".jsonl"):
        for record in json_objects(file, encoding_errors, Meter()):
            row, place = record.value, position(file.name, record.line)
            good, bad = (
                _sentence(row, name, place, encoding_errors) for name in ("sentence_good", "sentence_bad")
            )
            paradigm, phenomenon = (
                "" if row.get(name) is None else _text(row[name], name, place, encoding_errors)
                for name in ("UID", "linguistics_term")
            )
            yield MinimalPair(good, bad, paradigm, phenomenon, file.name, record.line)


def _sentence(row: dict[str, Any], name: str, place: str, errors: EncodingErrors) -> str:
    if name not in row:
        raise DataError(
            f"{place}: a pair needs the field '{name}'; the fields here are: {', '.join(row) or 'none'}"
        )
    text = _text(row[name], name, place, errors)
    if not text.strip():
        raise DataError(f"{place}, field '{name}': the sentence is empty; fill it in, or remove the row")
    return text


def _text(value: Any, name: str, place: str, errors: EncodingErrors) -> str:
    if not isinstance(value, str):
        raise DataError(f"{place}, field '{name}': holds a {json_type(value)}, not text")
    return valid_text(value, errors, place)
