"""Multiple-choice questions: a question, its choices, and the number of the right choice.

The content of a file decides which of three layouts it has:

- the official SWAG .csv, by its header: ``sent1`` is the context, ``sent2`` begins the sentence that
  ``ending0`` ... continue, ``label`` is the number of the right ending (``test.csv`` has none);
- other .csv files, without a header: question, choices, and the letter of the right choice (``A`` is the
  first);
- .jsonl, or .json with a list: ``query``, ``choices`` and ``gold`` (a number from 0), or, as in WinoGrande,
  the choices ``context_options``, their common ``continuation``, and ``gold``.

Rows of one set may differ in the number of choices; each has at least two.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from typing import Any, NamedTuple

from wordloom.data.files.json import json_objects, json_type, missing_field, valid_text
from wordloom.data.files.source import Format, Source, Sources
from wordloom.data.files.stream import EncodingErrors, Meter, check_errors
from wordloom.data.files.table import csv_rows
from wordloom.data.sets.expand import JSON, task_files
from wordloom.errors import DataError, position

_FORMATS: dict[str, Format] = {".csv": "csv", **JSON}
_SWAG = ("sent1", "sent2", "ending0", "ending1")  # a header with one of these has them all
_LETTERS = string.ascii_uppercase


class ChoiceRow(NamedTuple):
    """One question.

    Attributes:
        context: the text before each choice: the question, or the sentence before; ``""`` if the choices come
            first.
        beginning: the words that each choice continues; ``""`` for none.
        choices: two choices or more.
        answer: the number of the right choice, from 0; None if it is not given.
        source, line: the file and the line, from 1 (in a .json the number of the item).
        continuation: the text after each choice; ``""`` for none.
    """

    context: str
    beginning: str
    choices: tuple[str, ...]
    answer: int | None
    source: str
    line: int
    continuation: str = ""

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The two texts that a model reads for each choice."""
        if self.continuation:
            return tuple((choice, self.continuation) for choice in self.choices)
        beginning = f"{self.beginning} " if self.beginning else ""
        return tuple((self.context, beginning + choice) for choice in self.choices)

    @property
    def place(self) -> str:
        """The position of the row, for error messages."""
        return position(self.source, self.line)


def choice_rows(
    sources: Sources, *, answered: bool = False, encoding_errors: EncodingErrors = "strict"
) -> Iterator[ChoiceRow]:
    """Yield every question of ``sources``, in order.

    Args:
        sources: files, folders (their .csv, .jsonl and .json, sorted), globs, ``"-"`` for .jsonl on standard
            input (``"-.csv"`` ...), or named sets such as ``arc-easy/train``.  Files may be compressed (.gz,
            .xz, .bz2, .zst).
        answered: require an answer in each row, for training and scoring.
        encoding_errors: ``"strict"`` raises on invalid UTF-8, ``"replace"`` inserts U+FFFD.

    Raises DataError, which names file, line and field: a missing file or field, another number of fields than
    before, an empty question or choice, fewer than two choices, equal choices, an answer outside the choices.
    """
    check_errors(encoding_errors, "questions")
    for file in task_files(sources, _FORMATS, task="multiple choice", stdin=".jsonl"):
        rows = (_csv if file.format == "csv" else _json)(file, encoding_errors)
        for row in rows:
            if answered and row.answer is None:
                raise DataError(f"{row.place}: has no answer, which training and scoring need; give it one")
            if len(set(row.choices)) == 1:
                raise DataError(f"{row.place}: its choices are all {row.choices[0][:40]!r}; correct the row")
            yield row


# ------------------------------------------------------------------------------------------------- .csv


def _csv(file: Source, errors: EncodingErrors) -> Iterator[ChoiceRow]:
    rows = csv_rows(file, errors)
    first = next(rows, None)
    if first is None:
        return
    header = first[1]
    if set(header) & set(_SWAG):
        yield from _swag(file, header, rows, errors)
        return
    yield _lettered(file, *first, errors)
    for line, row in rows:
        _same_width(file, line, row, header)
        yield _lettered(file, line, row, errors)


def _swag(
    file: Source, header: list[str], rows: Iterator[tuple[int, list[str]]], errors: EncodingErrors
) -> Iterator[ChoiceRow]:
    for name in _SWAG:
        if header.count(name) != 1:
            raise DataError(
                f"{position(file.name, 1)}: {header.count(name)} columns are called '{name}'; SWAG's "
                f"header has one each of {', '.join(_SWAG)} ... and, but for the test file, label"
            )
    named = [name for name in header if name.startswith("ending")]
    endings = [header.index(name) for name in (f"ending{n}" for n in range(len(named))) if name in header]
    if len(endings) != len(named):
        raise DataError(
            f"{position(file.name, 1)}: its endings are called {', '.join(named)}; the label counts them "
            "from ending0 on: give each number one column"
        )
    for line, row in rows:
        _same_width(file, line, row, header)
        place = position(file.name, line)
        sent1, sent2 = (valid_text(row[header.index(name)], errors, place) for name in _SWAG[:2])
        _filled(sent1, place, "sent1", "question")
        choices = tuple(_choice(row[at], place, header[at], errors) for at in endings)
        label = row[header.index("label")] if "label" in header else None
        yield ChoiceRow(sent1, sent2, choices, _number(label, len(choices), place, "label"), file.name, line)


def _lettered(file: Source, line: int, row: list[str], errors: EncodingErrors) -> ChoiceRow:
    """A row of question, choices, and a letter."""
    place = position(file.name, line)
    if len(row) < 4:
        raise DataError(
            f"{place}: has {len(row)} field{'s' * (len(row) != 1)}; a question is in four or more (question, "
            "two choices or more, the answer's letter), and SWAG's file begins with its header"
        )
    question = valid_text(row[0], errors, place)
    _filled(question, place, "1", "question")
    choices = tuple(_choice(text, place, str(at), errors) for at, text in enumerate(row[1:-1], 2))
    letters, letter = _LETTERS[: len(choices)], row[-1].strip()
    if len(letter) != 1 or letter not in letters:
        raise DataError(
            f"{place}, field {len(row)}: the answer is {row[-1]!r}; with {len(choices)} choices it is a "
            f"letter from A to {letters[-1]}"
        )
    return ChoiceRow(question, "", choices, letters.index(letter), file.name, line)


def _same_width(file: Source, line: int, row: list[str], first: list[str]) -> None:
    if len(row) != len(first):
        fields = f"{len(row)} field{'s' * (len(row) != 1)}" if row else "no field"
        raise DataError(
            f"{position(file.name, line)}: has {fields} but the first line has {len(first)}; correct the file"
        )


# ------------------------------------------------------------------------------------------------ .jsonl


def _json(file: Source, errors: EncodingErrors) -> Iterator[ChoiceRow]:
    for record in json_objects(file, errors, Meter()):
        value, place = record.value, position(file.name, record.line)
        choices_first = "context_options" in value
        question, listed = ("continuation", "context_options") if choices_first else ("query", "choices")
        for name in (question, listed):
            if name not in value:
                raise DataError(missing_field(place, name, value).partition(" Say which one:")[0])
        text = _text(value[question], place, question, errors)
        _filled(text, place, question, "question")
        choices = _choices(value[listed], place, listed, errors)
        answer = _number(value.get("gold"), len(choices), place, "gold")
        before, behind = ("", text) if choices_first else (text, "")
        yield ChoiceRow(before, "", choices, answer, file.name, record.line, behind)


def _choices(value: Any, place: str, field: str, errors: EncodingErrors) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise DataError(f"{place}, field '{field}': holds a {json_type(value)}; it is a list of texts")
    if len(value) < 2:
        raise DataError(f"{place}, field '{field}': holds {len(value)}; give two choices or more")
    return tuple(_choice(text, place, f"{field}[{n}]", errors) for n, text in enumerate(value))


# ------------------------------------------------------------------------------------------------ fields


def _text(value: Any, place: str, field: str, errors: EncodingErrors) -> str:
    if not isinstance(value, str):
        raise DataError(f"{place}, field '{field}': holds a {json_type(value)}, not text")
    return valid_text(value, errors, place)


def _choice(value: Any, place: str, field: str, errors: EncodingErrors) -> str:
    text = _text(value, place, field, errors)
    _filled(text, place, field, "choice")
    return text


def _filled(text: str, place: str, field: str, what: str) -> None:
    if not text.strip():
        raise DataError(f"{place}, field '{field}': the {what} is empty; fill it in, or remove the row")


def _number(value: Any, choices: int, place: str, field: str) -> int | None:
    """Return the number of the right choice, which is text in a cell of a table."""
    if value is None:
        return None
    number: Any = int(value) if isinstance(value, str) and value.strip().isdecimal() else value
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < choices:
        raise DataError(
            f"{place}, field '{field}': is {value!r}; of {choices} choices the right one is a number from 0 "
            f"to {choices - 1}"
        )
    return number
