"""Buckets of pairs of similar length; each bucket is a whole number of batches of about equal weight.

The algorithm divides a table of cells, one for all pairs of one source length and one target length, so that
its cost does not grow with the corpus.  It starts with one bucket, and repeatedly divides the bucket whose
division saves the most padding, by source or by target length and at a whole number of batches, until the
share of padding is small enough.  Buckets end up as wide as that allows: common lengths share large buckets,
in which each epoch mixes the pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Buckets(NamedTuple):
    """The division of pairs into buckets by length, shortest first.

    Attributes:
        pairs: ``[N]`` numbers of the pairs, bucket after bucket.
        ends: ``[buckets]`` position after each bucket's last pair.
        batches: ``[buckets]`` number of batches of each bucket.
    """

    pairs: Ints
    ends: Ints
    batches: Ints


class _Bucket(NamedTuple):
    """Cells, the number of pairs in each, and the number of batches of the bucket."""

    cells: Ints
    counts: Ints
    batches: int


def make_buckets(lengths: Ints, *, batch_tokens: int, padding: float) -> Buckets:
    """Return buckets for pairs of ``lengths`` [2, N] (positions of source and of target, at least 1 each).

    A batch has about ``batch_tokens`` target tokens, and with padding never more than about twice as many
    positions.  At most the share ``padding`` of the positions of both sides is padding, if that is possible.
    """
    N, width = lengths.shape[1], int(lengths[1].max()) + 1
    keys, cell_of, counts = np.unique(
        lengths[0] * width + lengths[1], return_inverse=True, return_counts=True
    )
    cells = np.stack(np.divmod(keys, width))  # [2, cells] lengths
    tokens = int(lengths[1].sum())
    batches = min(N, max(1, round(tokens / batch_tokens)))
    all_cells = _Bucket(np.arange(len(keys)), counts.astype(np.int64), batches)
    limits = 2 * batch_tokens * lengths.sum(1) / tokens  # positions of one batch: [2]
    divided = _divided(all_cells, cells, int(lengths.sum()), padding)
    buckets = [_bounded(bucket, cells, limits) for bucket in divided]
    buckets.sort(key=lambda bucket: tuple(cells[::-1, bucket.cells].max(1)))
    by_cell = np.argsort(cell_of, kind="stable")  # [N] pairs, cell after cell
    next_pair = np.cumsum(counts) - counts  # [cells] where the next pair of each cell stands in by_cell
    pairs = []
    for bucket in buckets:
        pairs.append(by_cell[runs(next_pair[bucket.cells], bucket.counts)])
        next_pair[bucket.cells] += bucket.counts
    ends = np.cumsum([len(numbers) for numbers in pairs])
    return Buckets(np.concatenate(pairs), ends, np.array([bucket.batches for bucket in buckets]))


def _positions(bucket: _Bucket, cells: Ints) -> int:
    """Return the positions of both sides if every batch of ``bucket`` is as wide as its longest pairs."""
    return int(bucket.counts.sum() * cells[:, bucket.cells].max(1).sum())


def _divided(whole: _Bucket, cells: Ints, tokens: int, padding: float) -> list[_Bucket]:
    """Divide ``whole`` until at most the share ``padding`` is empty, or no division saves padding."""
    positions = _positions(whole, cells)
    done: list[_Bucket] = []
    waiting: list[tuple[int, int, _Bucket, tuple[_Bucket, ...]]] = []  # by the positions they would save
    fresh: Sequence[_Bucket] = [whole]
    seen = 0
    while True:
        for bucket in fresh:
            halves = _halves(bucket, cells)
            saved = _positions(bucket, cells) - sum(_positions(half, cells) for half in halves)
            if halves and saved > 0:
                heappush(waiting, (-saved, seen, bucket, halves))
            else:
                done.append(bucket)
            seen += 1
        if not waiting or positions - tokens <= padding * positions:
            return done + [bucket for _, _, bucket, _ in waiting]
        loss, _, _, fresh = heappop(waiting)
        positions += loss


def _halves(bucket: _Bucket, cells: Ints) -> tuple[_Bucket, ...]:
    """Divide ``bucket`` in two with the least padding; return no bucket for a single batch."""
    m = bucket.batches
    best: tuple[_Bucket, ...] = ()
    chosen = 0
    for side in (0, 1) if m > 1 else ():
        order = np.argsort(cells[side, bucket.cells], kind="stable")
        which, counts = bucket.cells[order], bucket.counts[order]
        S, T = cells[:, which]
        upto, weight = np.cumsum(counts), np.cumsum(counts * T)
        n = upto[-1]
        left = np.arange(1, m)  # batches before each possible cut
        tokens = weight[-1] * left / m  # tokens before the cut
        at = np.searchsorted(weight, tokens)
        beyond = ((weight[at] - tokens) // T[at]).astype(np.int64)  # pairs of that cell after the cut
        cuts = np.clip(upto[at] - beyond, left, n - (m - left))  # pairs before the cut
        inside = np.searchsorted(upto, cuts)  # the cell of the last pair before the cut
        after = inside + (upto[inside] == cuts)
        before = np.maximum.accumulate(S)[inside] + np.maximum.accumulate(T)[inside]
        behind = _from_behind(S)[after] + _from_behind(T)[after]
        cost = cuts * before + (n - cuts) * behind
        least = int(cost.argmin())
        if not best or cost[least] < chosen:
            chosen = int(cost[least])
            best = _divide(which, counts, int(cuts[least]), (least + 1, m - least - 1))
    return best


def _divide(cells: Ints, counts: Ints, at: int, batches: tuple[int, int]) -> tuple[_Bucket, ...]:
    """Return a bucket of the first ``at`` pairs of the cells, and one of the others."""
    before = np.clip(at - (np.cumsum(counts) - counts), 0, counts)
    parts = (before, counts - before)
    return tuple(_Bucket(cells[n > 0], n[n > 0], each) for n, each in zip(parts, batches, strict=True))


def _bounded(bucket: _Bucket, cells: Ints, limits: NDArray[np.float64]) -> _Bucket:
    """Return ``bucket`` with more batches if a few long texts would make one of its batches too large."""
    n = int(bucket.counts.sum())
    needed = int(np.ceil((n * cells[:, bucket.cells].max(1) / limits).max()))
    return bucket._replace(batches=min(n, max(bucket.batches, needed)))


def _from_behind(x: Ints) -> Ints:
    """Return the largest of each element and those after it."""
    largest: Ints = np.maximum.accumulate(x[::-1])[::-1]
    return largest


def runs(starts: Ints, counts: Ints) -> Ints:
    """Return ``counts[0]`` numbers from ``starts[0]`` on, ``counts[1]`` from ``starts[1]`` on, and so on."""
    offsets = np.cumsum(counts) - counts
    numbers: Ints = np.arange(counts.sum()) + np.repeat(starts - offsets, counts)
    return numbers
