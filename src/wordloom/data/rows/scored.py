"""Scored rows: a text or two, and a number to predict, such as how similar two sentences are.

Rows for sentence embeddings hold texts that belong together, or two texts and a score.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wordloom.data.files.source import Columns, Source, Sources
from wordloom.data.files.stream import EncodingErrors, check_errors
from wordloom.data.files.table import cells_of
from wordloom.data.rows.labelled import (
    Column,
    ColumnChoice,
    LabelledCorpus,
    cell_places,
    cell_text,
    columns_of,
    labelled_rows,
    tables,
)
from wordloom.errors import DataError, position

_SCORE = "score"
_LARGEST = 3.4028234e38  # the largest float32, the type of targets


class ScoredRow(NamedTuple):
    """One row: its texts, its score and its place; see :class:`~wordloom.data.LabelledRow` for ``line``."""

    texts: tuple[str, ...]
    score: float
    source: str
    line: int
    columns: tuple[Column, ...] = ()

    @property
    def place(self) -> str:
        """The position of the row, for error messages."""
        return position(self.source, self.line)

    @property
    def label(self) -> float:
        """The score; labelled rows have their answer under this name."""
        return self.score


def scored_rows(
    sources: Sources,
    *,
    text: Column | Sequence[Column] | None = None,
    score: Column | None = None,
    header: bool | None = None,
    encoding_errors: EncodingErrors = "strict",
    default: ColumnChoice | None = None,
) -> Iterator[ScoredRow]:
    """Yield every row of ``sources``, in order.

    Args:
        sources, text, header, encoding_errors, default: those of :func:`~wordloom.data.labelled_rows`; named
            sets must have scores, such as ``glue-stsb/train``.
        score: the column of the score.  Default: the column of a named set, else ``"score"``.

    Raises DataError as :func:`~wordloom.data.labelled_rows`, and for a score that is not a finite number.
    """
    check_errors(encoding_errors, "scored rows")
    choice = ColumnChoice(text=text, answer=score, header=header)
    for file, columns in scored_files(sources, choice, default):
        named = (*columns.texts, columns.score or _SCORE)
        for line, values in cells_of(file, columns, encoding_errors):
            place = position(file.name, line)
            places = cell_places(place, columns.texts)
            texts = tuple(map(cell_text, values[:-1], places, repeat(encoding_errors)))
            yield ScoredRow(texts, _score(values[-1], place, named[-1]), file.name, line, named)


def scored_files(
    sources: Sources, choice: ColumnChoice, default: ColumnChoice | None = None
) -> Iterator[tuple[Source, Columns]]:
    """Yield every file of ``sources`` with the columns that :func:`scored_rows` reads there."""
    for file in tables(sources, scored=True):
        known = columns_of(file, default)
        texts, header = choice.among(known)
        score = (known.score or _SCORE) if choice.answer is None else choice.answer
        yield file, Columns(texts, None, header, score)


@dataclass(frozen=True, kw_only=True)
class ScoredCorpus(LabelledCorpus):
    """Scored rows and the rule that divides them; see :class:`~wordloom.data.LabelledCorpus`.

    ``label`` is the column of the score.
    """

    def _files(self, sources: Sources) -> Iterator[tuple[Source, Columns]]:
        return scored_files(sources, self._choice, self.default)

    def _read(self, sources: Sources) -> Iterator[Any]:
        return scored_rows(sources, score=self.label, **self._how)


@dataclass(frozen=True, kw_only=True)
class GroupCorpus(LabelledCorpus):
    """Rows of several texts and the rule that divides them; see :class:`~wordloom.data.LabelledCorpus`.

    The texts of a row belong together if its label is ``positive``, or its score is at least ``positive`` (a
    number; ``label`` is then the column of the score).  None: all rows, which have neither label nor score.
    """

    positive: str | float | None = None

    def belongs(self, row: Any) -> bool:
        """Return whether the texts of ``row`` belong together."""
        if self.positive is None:
            return True
        found: bool = (
            row.label == self.positive if isinstance(self.positive, str) else row.score >= self.positive
        )
        return found

    def _read(self, sources: Sources) -> Iterator[Any]:
        if isinstance(self.positive, str):
            return labelled_rows(sources, label=self.label, **self._how)
        if self.positive is not None:
            return scored_rows(sources, score=self.label, **self._how)
        for file in tables(sources, scored=True):
            columns = file.columns
            if columns is not None and (columns.label, columns.score) != (None, None):
                what = "labels" if columns.score is None else "scores"
                raise DataError(
                    f"{file.name}: its rows have {what}; say in which the texts belong together with "
                    'data.positive, a label such as "1" or the least score such as 4.0'
                )
        return labelled_rows(sources, labels=False, **self._how)


def text_numbers(rows: Sequence[tuple[str, ...]]) -> NDArray[np.int64]:
    """Return a number for each text of N rows of K texts, equal for equal texts: [N, K]."""
    known: dict[str, int] = {}
    return np.array([[known.setdefault(text, len(known)) for text in row] for row in rows], np.int64)


def _score(value: Any, place: str, column: Column) -> float:
    try:
        number = (
            float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
        )
    except (ValueError, OverflowError):
        number = math.nan
    if not abs(number) <= _LARGEST:
        shown = "empty" if value is None or value == "" else repr(value)
        raise DataError(
            f"{place}, column {column!r}: the score is {shown}; give a finite number such as 3.75"
        )
    return number
