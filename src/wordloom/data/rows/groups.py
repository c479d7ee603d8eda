"""Rows of texts that are each read by themselves: two that belong together, perhaps further ones that do not;
or two and how alike they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from wordloom.data.batches.bags import LabelBatches
from wordloom.data.batches.sequences import SequenceLabelBatches, Sequences, TokenRows
from wordloom.data.files.source import Sources
from wordloom.data.rows.labelled import LabelledCorpus, labelled_rows, tables
from wordloom.data.rows.scored import scored_rows
from wordloom.errors import DataError

__all__ = ["GroupCorpus", "GroupLedger", "TextGroupBatches", "text_numbers"]


@dataclass(frozen=True, kw_only=True)
class GroupCorpus(LabelledCorpus):
    """Rows of several texts and the rule that divides them, as :class:`~wordloom.data.LabelledCorpus`.

    ``positive`` says in which rows the texts belong together: those of this label, or of at least this score
    (``label`` is its column then); None: in all, of tables without either.
    """

    positive: str | float | None = None

    def belongs(self, row: Any) -> bool:
        """Whether the texts of ``row`` belong together."""
        if self.positive is None:
            return True
        found: bool = (
            row.label == self.positive if isinstance(self.positive, str) else row.score >= self.positive
        )
        return found

    def _read(self, sources: Sources) -> Iterator[Any]:
        how: dict[str, Any] = {
            "text": self.text,
            "header": self.header,
            "encoding_errors": self.encoding_errors,
        }
        if isinstance(self.positive, str):
            return labelled_rows(sources, label=self.label, **how)
        if self.positive is not None:
            return scored_rows(sources, score=self.label, **how)
        for file in tables(sources, scored=True):
            columns = file.columns
            if columns is not None and (columns.label, columns.score) != (None, None):
                what = "labels" if columns.score is None else "scores"
                raise DataError(
                    f"{file.name}: its rows have {what}; say in which the texts belong together with "
                    'data.positive, a label such as "1" or the least score such as 4.0'
                )
        return labelled_rows(sources, labels=False, **how)


@dataclass(frozen=True, kw_only=True)
class GroupLedger:
    """The account of one part of rows of several texts.

    Attributes:
        part, split: which, and how the parts were made.
        rows, texts, tokens: rows read, texts of each, and their tokens, marks included; ``unknown``: those
            that stand for what the tokenizer lacks.
        others: rows left out since their texts do not belong together; ``repeated``: for an earlier one of
            the same texts and label, where that was asked for.
        beside: of ``rows`` those whose texts do not belong together, and whose score alone is compared.
        shared: rows with a text that another row has, too.
        cut: texts that were longer than allowed and cut, where that was asked for.
        lowest, highest: of their scores, if they have any.
        text: a hash of the rows' texts and answers as they stand, whatever reads them.
    """

    part: str
    split: str
    rows: int
    texts: int
    tokens: int
    unknown: int
    others: int
    beside: int
    repeated: int
    shared: int
    cut: int
    lowest: float | None = None
    highest: float | None = None
    text: str = ""

    def lines(self) -> list[str]:
        """The ledger as text, one fact per line."""
        scores = "" if self.lowest is None else f"; scores: {self.lowest:g} to {self.highest:g}"
        lines = [f"{self.part}: {self.rows:,} rows of {self.texts} texts, {self.tokens:,} tokens{scores}"]
        if self.others:
            lines.append(f"left out: {self.others:,} more rows are not data.positive")
        if self.beside:
            lines.append(
                f"beside: {self.beside:,} rows are not data.positive: their scores alone are compared"
            )
        if self.repeated:
            lines.append(f"left out: {self.repeated:,} more rows repeat texts and label of an earlier one")
        if self.shared:
            lines.append(f"shared: {self.shared:,} rows have a text that another row has, too")
        if self.unknown:
            lines.append(f"unknown: {self.unknown:,} tokens stand for what the tokenizer lacks")
        if self.cut:
            lines.append(
                f"cut: {self.cut:,} texts are longer than train.seq_len: only their beginning is read"
            )
        return [*lines, f"split: {self.split}"]

    def as_dict(self) -> dict[str, Any]:
        """The ledger as plain JSON values."""
        return asdict(self)


def text_numbers(rows: Sequence[tuple[str, ...]]) -> NDArray[np.int64]:
    """[N, K] of N rows of K texts: a number for each text, equal ones alike."""
    known: dict[str, int] = {}
    return np.array([[known.setdefault(text, len(known)) for text in row] for row in rows], np.int64)


class TextGroupBatches(LabelBatches):
    """N rows of K texts, as :class:`~wordloom.data.batches.bags.LabelBatches`; the inputs are
    :class:`~wordloom.data.batches.sequences.Sequences` of ``[B, K, T]``.

    Args:
        texts: all of them, those of a row one after another.
        targets: [N, K] what :func:`text_numbers` gives, or [N] scores.
        pad_id: what stands where a text has ended.
    """

    def __init__(
        self,
        texts: TokenRows,
        targets: NDArray[np.int64] | NDArray[np.float32],
        *,
        pad_id: int = 0,
        places: Sequence[str] = (),
        seed: int = 0,
        order: Literal["permutation", "sequential"] = "permutation",
    ) -> None:
        super().__init__(targets, places=places, seed=seed, order=order)
        self.each = len(texts.lengths) // len(targets)
        self.tokens_per_sample = len(texts.ids) / len(targets)
        self._read = texts, np.zeros(len(texts.lengths), np.int64), pad_id
        self._texts = self._alone("sequential")

    @property
    def targets(self) -> NDArray[Any]:
        """Of all rows, as they were given."""
        return self._targets

    def alone(self) -> SequenceLabelBatches:
        """All N K texts by themselves, the shortest first, for a pass over them."""
        return self._alone("length")

    def _alone(self, order: Literal["sequential", "length"]) -> SequenceLabelBatches:
        texts, targets, pad_id = self._read
        return SequenceLabelBatches(texts, targets, pad_id=pad_id, order=order)

    def _inputs(self, rows: NDArray[np.int64]) -> Sequences:
        read = self._texts._inputs((rows[:, None] * self.each + np.arange(self.each)).ravel())  # [B * K, T]
        shape = torch.Size((len(rows), self.each, -1))
        return Sequences(read.tokens.view(shape), read.attend.view(shape))

    def _identity(self) -> tuple[list[int], tuple[NDArray[Any], ...]]:
        settings, arrays = self._texts._identity()
        return [*settings, self.each], arrays
