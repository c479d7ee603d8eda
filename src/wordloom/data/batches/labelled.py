"""Batches of labelled rows: the inputs of a classifier, and the classes or scores as targets.

A batch is a pure function of (rows, seed, global sample numbers), as in :mod:`wordloom.data.batches.causal`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wordloom.data.batches.order import check_seed, in_epochs, sample_numbers
from wordloom.errors import DataError

_PASS = 1 << 14  # rows of a pass over all of them


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
        inputs: the arguments of the model's ``forward``, in its order; :class:`Bags` for bags of words,
            :class:`~wordloom.data.batches.sequences.Sequences` for sequences of tokens.
        targets: ``[B]`` int64, the class of each; :data:`~wordloom.data.IGNORE` for one that is not scored.
            Or float32, the score of each.
    """

    inputs: tuple[Tensor | None, ...]
    targets: Tensor


class LabelBatches:
    """An endless sequence of rows with their classes, addressed by index; a subclass defines the inputs.

    Args:
        targets: [N] classes, or numbers (of a float dtype).
        places: of each row, for error reports.
        seed: decides the order; 0 <= seed < 2**63.
        order: ``"permutation"``: each epoch visits all rows once, in its own order.  ``"sequential"``: in
            the order of the rows.  ``"length"``: the shortest rows first, for little padding.

    Raises:
        DataError: no rows, a seed out of range.
    """

    def __init__(
        self,
        targets: NDArray[np.int64] | NDArray[np.float32],
        *,
        places: Sequence[str] = (),
        seed: int = 0,
        order: Literal["permutation", "sequential", "length"] = "permutation",
    ) -> None:
        if not len(targets):
            raise DataError("there is no row to make batches of; give at least one")
        check_seed(seed)
        self.samples_per_epoch: int = len(targets)
        self.seed, self.order, self.places = seed, order, places
        kind = np.float32 if np.issubdtype(targets.dtype, np.floating) else np.int64
        self._targets: NDArray[Any] = np.ascontiguousarray(targets, dtype=kind)

    def batch(self, start: int, count: int) -> LabelBatch:
        """Samples ``start`` to ``start + count`` (excluded) of the endless sequence."""
        rows = self.rows(start, count)
        return LabelBatch(self._inputs(rows), torch.from_numpy(self._targets[rows]))

    def rows(self, start: int, count: int) -> NDArray[np.int64]:
        """Return the row number of each sample: [count]."""
        rows = self._ordered(sample_numbers(start, count))
        return self._shortest_first[rows] if self.order == "length" else rows

    def _ordered(self, sample: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the row number of each of ``sample``, the numbers of samples."""
        permuted = self.order == "permutation"
        return in_epochs(sample, self.samples_per_epoch, self.seed, permuted=permuted)[1].astype(np.int64)

    @cached_property
    def _shortest_first(self) -> NDArray[np.int64]:
        return np.argsort(self._sizes(), kind="stable")

    def passes(self) -> Iterator[tuple[int, int]]:
        """Yield ``start, count`` of batches that cover all rows once, as large as a forward pass may be."""
        n = self.samples_per_epoch
        return ((start, min(_PASS, n - start)) for start in range(0, n, _PASS))

    def document_ids(self, start: int, count: int) -> list[str]:
        """File and line of these samples, for error reports."""
        rows = sorted(set(self.rows(start, count).tolist()))
        return [self.places[row] if self.places else f"row {row}" for row in rows]

    @property
    def fingerprint(self) -> str:
        """sha256 of everything that decides the batches."""
        settings, arrays = self._identity()
        digest = hashlib.sha256(json.dumps([self.seed, self.order, *settings]).encode())
        for part in (*arrays, self._targets):
            digest.update(part.tobytes())
        return digest.hexdigest()

    def _inputs(self, rows: NDArray[np.int64]) -> tuple[Tensor, ...]:
        raise NotImplementedError

    def _sizes(self) -> NDArray[np.int64]:
        """Return the size of each row, by which the order ``"length"`` sorts."""
        raise NotImplementedError

    def _identity(self) -> tuple[list[int], tuple[NDArray[Any], ...]]:
        """Return the settings and arrays of the subclass that decide its batches."""
        raise NotImplementedError


class BagBatches(LabelBatches):
    """Bags of words with their classes; see :class:`LabelBatches`.

    Args:
        counts: scipy CSR [N, V], ids ascending within a row.
        order: see :class:`LabelBatches`. A batch of exactly one epoch holds all rows in their own order,
            whatever ``order`` is.

    Raises:
        DataError: as :class:`LabelBatches`; another number of targets.
    """

    def __init__(
        self,
        counts: Any,
        targets: NDArray[np.int64] | NDArray[np.float32],
        *,
        places: Sequence[str] = (),
        seed: int = 0,
        order: Literal["permutation", "sequential"] = "permutation",
    ) -> None:
        if counts.shape[0] and counts.shape[0] != len(targets):
            raise DataError(f"{counts.shape[0]} rows have {len(targets)} targets; give one for each")
        super().__init__(targets, places=places, seed=seed, order=order)
        self._ids: NDArray[np.int32] = counts.indices.astype(np.int32, copy=False)
        self._counts: NDArray[np.float32] = counts.data.astype(np.float32)
        self._offsets: NDArray[np.int64] = counts.indptr.astype(np.int64)

    def batch(self, start: int, count: int) -> LabelBatch:
        """Samples ``start`` to ``start + count`` (excluded) of the endless sequence."""
        if start >= 0 and count == self.samples_per_epoch and start % count == 0:
            return self._all_rows
        return super().batch(start, count)

    @cached_property
    def _all_rows(self) -> LabelBatch:
        bags = self._bags(self._ids, self._counts, self._offsets)
        return LabelBatch(bags, torch.from_numpy(self._targets))

    def _inputs(self, rows: NDArray[np.int64]) -> Bags:
        begins = self._offsets[rows]
        lengths = self._offsets[rows + 1] - begins  # [B]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        at = np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], lengths)  # [n]
        return self._bags(self._ids[at], self._counts[at], offsets)

    def _bags(self, ids: Any, counts: Any, offsets: Any) -> Bags:
        return Bags(*map(torch.from_numpy, (ids, counts, offsets.astype(np.int32))))

    def _identity(self) -> tuple[list[int], tuple[NDArray[Any], ...]]:
        return [], (self._ids, self._counts, self._offsets)
