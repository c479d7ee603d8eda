"""Rows of several texts for sentence embeddings: texts that belong together, or two texts and a score."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wordloom.data.files.source import Sources
from wordloom.data.rows.labelled import LabelledCorpus, labelled_rows, tables
from wordloom.data.rows.scored import scored_rows
from wordloom.errors import DataError


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
