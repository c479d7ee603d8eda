"""Batches of labelled examples: what a classifier reads, and the class it should find.

As for :mod:`wordloom.data.batches`, a batch is a pure function of (rows, seed, global sample numbers).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wordloom.data.batches import _PERMUTATION
from wordloom.data.permutation import keyed, permute
from wordloom.errors import DataError

__all__ = ["BagBatches", "Bags", "LabelBatch", "LabelLedger"]


class Bags(NamedTuple):
    """B bags of words, one after another, with n different words in all.

    Attributes:
        ids: ``[n]`` int32, the words of every bag, ascending within it.
        counts: ``[n]`` float32, how often each occurs there.
        offsets: ``[B + 1]`` int32, where each bag begins, and the end.
    """

    ids: Tensor
    counts: Tensor
    offsets: Tensor


class LabelBatch(NamedTuple):
    """Inputs and classes of B examples.

    Attributes:
        inputs: the arguments of the model's ``forward``, in its order; :class:`Bags` for bags of words.
        targets: ``[B]`` int64, the class of each; :data:`~wordloom.data.IGNORE` where nothing is scored.
    """

    inputs: tuple[Tensor | None, ...]
    targets: Tensor


@dataclass(frozen=True, kw_only=True)
class LabelLedger:
    """The account of one part of a set of labelled rows.

    Attributes:
        part, split: which, and how the parts were made.
        rows, terms: rows read, and running terms in them; ``unknown``: terms that the vocabulary lacks, so
            not counted; ``empty``: rows without a known term.
        labels: rows by label.
    """

    part: str
    split: str
    rows: int
    terms: int
    unknown: int
    empty: int
    labels: dict[str, int] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """The ledger as text, one fact per line."""
        labels = ", ".join(f"{name} {count:,}" for name, count in self.labels.items())
        lines = [f"{self.part}: {self.rows:,} rows, {self.terms:,} words; labels: {labels}"]
        if self.unknown:
            share = self.unknown / self.terms
            lines.append(f"unknown: {self.unknown:,} words ({share:.1%}) are not in the vocabulary")
        if self.empty:
            lines.append(
                f"empty: {self.empty:,} rows hold no word of the vocabulary: nothing tells them apart"
            )
        return [*lines, f"split: {self.split}"]

    def as_dict(self) -> dict[str, Any]:
        """The ledger as plain JSON values."""
        return asdict(self)


class BagBatches:
    """Rows of counts with their classes, numbered without end.

    Args:
        counts: scipy CSR [N, V], ids ascending within a row.
        targets: [N] classes.
        places: of each row, for error reports.
        seed: names the order; 0 <= seed < 2**63.
        order: ``"permutation"``: each epoch visits all rows once in an order of its own.  ``"sequential"``:
            as they stand.  A batch of exactly one epoch holds all rows as they stand, whatever the order.

    Raises:
        DataError: no rows, another number of targets, a seed out of range.
    """

    def __init__(
        self,
        counts: Any,
        targets: NDArray[np.int64],
        *,
        places: Sequence[str] = (),
        seed: int = 0,
        order: Literal["permutation", "sequential"] = "permutation",
    ) -> None:
        if not counts.shape[0]:
            raise DataError("there is no row to make batches of; give at least one")
        if counts.shape[0] != len(targets):
            raise DataError(f"{counts.shape[0]} rows have {len(targets)} targets; give one for each")
        if not 0 <= seed < 1 << 63:
            raise DataError(f"seed={seed} is not allowed; 0 <= seed < 2**63")
        self.samples_per_epoch: int = counts.shape[0]
        self.seed, self.order, self.places = seed, order, places
        self.terms_per_sample = float(counts.data.sum()) / counts.shape[0]
        self._ids: NDArray[np.int32] = counts.indices.astype(np.int32, copy=False)
        self._counts: NDArray[np.float32] = counts.data.astype(np.float32)
        self._offsets: NDArray[np.int64] = counts.indptr.astype(np.int64)
        self._targets = np.ascontiguousarray(targets, dtype=np.int64)

    def batch(self, start: int, count: int) -> LabelBatch:
        """Samples ``start`` to ``start + count`` (excluded) of the endless sequence."""
        if start < 0 or count < 1:
            raise DataError(f"batch({start}, {count}) is not allowed; start >= 0 and count >= 1")
        if count == self.samples_per_epoch and start % count == 0:
            return self._whole
        rows = self._numbers(start, count)
        begins = self._offsets[rows]
        lengths = self._offsets[rows + 1] - begins  # [B]
        offsets = np.zeros(count + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        at = np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], lengths)  # [n]
        return self._made(self._ids[at], self._counts[at], offsets, self._targets[rows])

    @cached_property
    def _whole(self) -> LabelBatch:
        return self._made(self._ids, self._counts, self._offsets, self._targets)

    def _made(self, ids: Any, counts: Any, offsets: Any, targets: Any) -> LabelBatch:
        arrays = (ids, counts, offsets.astype(np.int32))
        return LabelBatch(Bags(*map(torch.from_numpy, arrays)), torch.from_numpy(targets))

    def _numbers(self, start: int, count: int) -> NDArray[np.int64]:
        """Which rows the samples are."""
        sample = np.arange(start, start + count, dtype=np.uint64)
        epoch, index = np.divmod(sample, np.uint64(self.samples_per_epoch))
        if self.order == "permutation":
            index = permute(index, self.samples_per_epoch, keyed(self.seed, _PERMUTATION, epoch))
        return index.astype(np.int64)

    def document_ids(self, start: int, count: int) -> list[str]:
        """File and line of these samples, for error reports."""
        rows = sorted(set(self._numbers(start, count).tolist()))
        return [self.places[row] if self.places else f"row {row}" for row in rows]

    @property
    def fingerprint(self) -> str:
        """sha256 of everything that decides the batches."""
        digest = hashlib.sha256(json.dumps([self.seed, self.order]).encode())
        for part in (self._ids, self._counts, self._offsets, self._targets):
            digest.update(part.tobytes())
        return digest.hexdigest()
