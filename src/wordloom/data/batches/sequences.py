"""Batches of labelled texts as rows of tokens, padded on the right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wordloom.data.batches.labelled import LabelBatches
from wordloom.data.batches.order import Purpose, keyed, permute
from wordloom.errors import DataError

_POOL = 16  # groups of samples that are sorted by length together
_TEXTS = 1 << 13  # texts for the tokenizer at a time
_PASS_TOKENS = 1 << 15  # of a forward pass over all rows, padding included
_PASS_ROWS = 1 << 10  # at most in a forward pass


class Sequences(NamedTuple):
    """B rows of tokens.

    Attributes:
        tokens: ``[B, T]`` int64, padded on the right to the longest row (T is at least 1).
        attend: ``[B, T]`` bool, True where there is a token.
    """

    tokens: Tensor
    attend: Tensor


@dataclass(frozen=True, kw_only=True)
class TokenRows:
    """Texts as rows of tokens.

    Attributes:
        ids: [n] int32, the tokens of all rows, one row after another.
        offsets: [N + 1] int64, where each row begins, and the end.
        unknown: the number of unknown tokens.
        cut: rows that were truncated.
    """

    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]
    unknown: int
    cut: int

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)


def token_rows(
    tokenizer: Any,
    texts: Iterable[str],
    *,
    longest: int | None = None,
    too_long: Literal["error", "cut"] = "error",
    place: Callable[[int], str] | None = None,
) -> TokenRows:
    """Tokenize ``texts``; special tokens written in them are ordinary text.

    Args:
        longest: tokens of a row at most; None: any number.
        too_long: what happens to a longer row: an error, or ("cut") it is truncated.
        place: names a row by its number in an error.

    Raises DataError for a text that is too long, TokenizerError for one that cannot be encoded.
    """
    rows: list[NDArray[np.int32]] = []
    truncated, texts = 0, iter(texts)
    while batch := list(islice(texts, _TEXTS)):
        for ids in tokenizer.encode_batch(batch, specials="text"):
            if longest is not None and len(ids) > longest:
                if too_long == "error":
                    where = f"row {len(rows)}" if place is None else place(len(rows))
                    raise DataError(
                        f"{where}: has {len(ids):,} tokens and train.seq_len allows {longest:,}; raise it, "
                        'or say data.too_long = "cut" (evaluate: --too-long cut) to read the beginning alone'
                    )
                ids, truncated = ids[:longest], truncated + 1
            rows.append(np.asarray(ids, np.int32))
    ids, offsets = stacked_rows(rows)
    unknown = 0 if tokenizer.unk_id is None else int((ids == tokenizer.unk_id).sum())
    return TokenRows(ids=ids, offsets=offsets, unknown=unknown, cut=truncated)


def stacked_rows(rows: Sequence[NDArray[Any]]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the ids of all rows, one row after another, and where each row begins, and the end."""
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    return np.concatenate([np.empty(0, np.int32), *rows]).astype(np.int32, copy=False), offsets


def padded_passes(
    batches: LabelBatches, widths: Callable[[NDArray[np.int64]], NDArray[np.int64]]
) -> Iterator[tuple[int, int]]:
    """Yield ``start, count`` of batches that cover all rows once, as large as a forward pass may be.

    ``widths`` returns, for row numbers [n], the padded tokens of each row in a batch of the first 1, 2, .. n.
    """
    n, start = batches.samples_per_epoch, 0
    while start < n:
        width = widths(batches.rows(start, min(_PASS_ROWS, n - start)))
        count = max(1, int((np.arange(1, len(width) + 1) * width <= _PASS_TOKENS).sum()))
        yield start, count
        start += count


class SequenceLabelBatches(LabelBatches):
    """Rows of tokens with their classes; the inputs are :class:`Sequences`.

    Args:
        rows: the tokens.
        pad_id: the id behind the end of a row.
        order: that of :class:`LabelBatches`.
        alike: with ``"permutation"``, the size of groups of samples of similar length. 16 groups are sorted
            by length together, and then permuted.

    Raises:
        DataError: as :class:`LabelBatches`; another number of targets; ``alike`` below 1.
    """

    def __init__(
        self,
        rows: TokenRows,
        targets: NDArray[np.int64] | NDArray[np.float32],
        *,
        pad_id: int = 0,
        places: Sequence[str] = (),
        seed: int = 0,
        order: Literal["permutation", "sequential", "length"] = "permutation",
        alike: int = 1,
    ) -> None:
        if len(rows.lengths) != len(targets):
            raise DataError(f"{len(rows.lengths)} rows have {len(targets)} targets; give one for each")
        if alike < 1:
            raise DataError(f"alike={alike} is not allowed; at least 1")
        super().__init__(targets, places=places, seed=seed, order=order)
        self.pad_id, self.alike = pad_id, alike
        self.tokens_per_sample = float(rows.offsets[-1]) / len(targets)
        self._lengths = rows.lengths
        self._begins = rows.offsets[:-1]
        self._ids = np.append(rows.ids, np.int32(pad_id))  # padding reads the last id

    def rows(self, start: int, count: int) -> NDArray[np.int64]:
        """Return the row number of each sample: [count]."""
        rows = super().rows(start, count)
        if self.order != "permutation" or self.alike == 1:
            return rows
        pool, stop = _POOL * self.alike, start + count
        parts = [self._pool(at, at + pool) for at in range(start - start % pool, stop, pool)]
        return np.concatenate(parts)[start % pool :][:count]

    def _pool(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the rows of a pool in groups of similar length; each epoch in it is sorted separately."""
        n = self.samples_per_epoch
        edges = [start, *range(start - start % n + n, stop, n), stop]
        return np.concatenate([self._within_epoch(*span) for span in pairwise(edges)])

    def _within_epoch(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the rows of the part of a pool in one epoch, in groups of similar length."""
        sample = np.arange(start, stop, dtype=np.uint64)
        rows = self._ordered(sample)
        rows = rows[np.argsort(self._lengths[rows], kind="stable")]
        group = sample // np.uint64(self.alike)
        group -= group[0]
        n = int(group[-1]) + 1
        key = keyed(self.seed, Purpose.GROUPS, np.full(n, start, np.uint64))
        turn = permute(np.arange(n, dtype=np.uint64), n, key)  # the rank of each group by length
        arranged = np.empty_like(rows)
        arranged[np.argsort(turn[group], kind="stable")] = rows
        return arranged

    def _sizes(self) -> NDArray[np.int64]:
        return self._lengths

    def _inputs(self, rows: NDArray[np.int64]) -> Sequences:
        lengths = self._lengths[rows]
        T = max(1, int(lengths.max()))
        attend = np.arange(T) < lengths[:, None]  # [B, T]
        at = np.where(attend, self._begins[rows][:, None] + np.arange(T), -1)
        return Sequences(torch.from_numpy(self._ids[at].astype(np.int64)), torch.from_numpy(attend))

    def passes(self) -> Iterator[tuple[int, int]]:
        """Yield ``start, count`` of batches that cover all rows once; see :func:`padded_passes`."""
        return padded_passes(self, lambda rows: np.maximum.accumulate(self._lengths[rows]))

    def _identity(self) -> tuple[list[int], tuple[NDArray[Any], ...]]:
        return [self.pad_id, self.alike], (self._ids, self._begins)


class TextGroupBatches(LabelBatches):
    """N rows of K texts; the inputs are :class:`Sequences` of ``[B, K, T]``.

    Args:
        texts: the texts of all rows, one row after another.
        targets: [N, K] the numbers that :func:`~wordloom.data.rows.scored.text_numbers` gives, or [N] scores.
        pad_id: the id behind the end of a text.
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
        """The targets of all rows."""
        return self._targets

    def alone(self) -> SequenceLabelBatches:
        """Return the N K texts as rows of their own, the shortest first."""
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
