"""Batches of pairs of similar length for sequence-to-sequence models, by a number of tokens.

A sample is a whole batch: it has as many rows as ``batch_tokens`` allows at their lengths, and the trainer's
batch size counts these batches.  As in :mod:`wordloom.data.batches.causal`, a sample is a pure function of
(settings, seed, its number).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wordloom.data.batches.buckets import make_buckets, runs
from wordloom.data.batches.causal import IGNORE
from wordloom.data.batches.order import (
    Purpose,
    check_seed,
    in_epochs,
    keyed,
    permute,
    sample_numbers,
    settings_fingerprint,
)
from wordloom.data.ledgers import Ledger
from wordloom.data.shards.pairs import SIDES, PairShards
from wordloom.data.shards.storage import TokenShards
from wordloom.errors import DataError, did_you_mean

PairOrder: TypeAlias = Literal["permutation", "sequential"]
ORDERS = ("permutation", "sequential")

Ints = NDArray[np.int64]


class PairBatch(NamedTuple):
    """Sources and targets of B pairs, all padded on the right.

    Attributes:
        source: ``[B, S]`` int64, each with its start token, if there is one, and its end token.
        source_attend: ``[B, S]`` bool, True where there is a token.
        prefix: ``[B, T]`` int64, the start token and the target, which the decoder reads.
        targets: ``[B, T]`` int64, the target and the end token; :data:`~wordloom.data.IGNORE` after it.
    """

    source: Tensor
    source_attend: Tensor
    prefix: Tensor
    targets: Tensor


class PairBatches:
    """An endless sequence of batches of about ``batch_tokens`` target tokens, addressed by index.

    Every epoch visits each pair once.  Pairs lie in buckets of similar length, which depend on ``shards``,
    ``batch_tokens`` and ``padding`` alone. Each bucket has a fixed number of batches of about equally many
    rows.

    Args:
        shards: the pairs.
        batch_tokens: target tokens of a batch, end tokens included, padding excluded; with padding, a batch
            has at most about twice as many.
        seed: decides the order; 0 <= seed < 2**63.
        order: ``"permutation"``: each epoch visits the batches in its own order, and mixes the pairs of each
            bucket.  ``"sequential"``: fixed batches, short ones first, with as little padding as possible,
            for evaluation.
        padding: the largest share of padding among the positions of both sides, if batches of this size allow
            it; 0 <= padding < 1.  A larger share makes wider buckets, in which pairs mix with more others.
        start_id: the token that begins a prefix.  Default: the target tokenizer's pad, as in Marian.
        source_start_id: the token that begins a source, such as BERT's [CLS]. Default: none.

    Raises:
        DataError: a setting out of range, or a tokenizer without end or start token.
    """

    def __init__(
        self,
        shards: PairShards,
        *,
        batch_tokens: int = 4096,
        seed: int = 0,
        order: PairOrder = "permutation",
        padding: float = 0.08,
        start_id: int | None = None,
        source_start_id: int | None = None,
    ) -> None:
        if order not in ORDERS:
            raise DataError(f"order='{order}' is not known; {did_you_mean(order, ORDERS)}")
        if batch_tokens < 1:
            raise DataError(f"batch_tokens={batch_tokens} is not allowed; at least 1")
        check_seed(seed)
        if not 0 <= padding < 1:
            raise DataError(f"padding={padding} is not allowed; 0 <= padding < 1")
        self.shards, self.batch_tokens, self.seed = shards, batch_tokens, seed
        self.order: PairOrder = order
        self.padding = 0.0 if order == "sequential" else padding
        self._ends = [_end(shards.source, SIDES[0]), _end(shards.target, SIDES[1])]
        start = shards.target.pad_id if start_id is None else start_id
        if start is None:
            raise DataError("the target tokenizer has no pad token to begin a prefix with; give a start_id")
        if not 0 <= start < shards.target.vocab_size:
            raise DataError(f"start_id={start} is not allowed; 0 <= start_id < {shards.target.vocab_size}")
        if source_start_id is not None and not 0 <= source_start_id < shards.source.vocab_size:
            allowed = f"0 <= source_start_id < {shards.source.vocab_size}"
            raise DataError(f"source_start_id={source_start_id} is not allowed; {allowed}")
        self.start_id, self.source_start_id = start, source_start_id
        self._before = int(source_start_id is not None)
        self._sizes: Ints = shards.lengths + np.array([[1 + self._before], [1]])  # [2, N] with begin and end
        buckets = make_buckets(self._sizes, batch_tokens=batch_tokens, padding=self.padding)
        self._pairs, self._bucket_ends = buckets.pairs, buckets.ends
        self._batches = buckets.batches
        self._batch_ends = np.cumsum(buckets.batches)  # [buckets] batches up to each bucket's last
        self.samples_per_epoch: int = int(self._batch_ends[-1])

    # ---------------------------------------------------------------------------------- batches

    def batch(self, start: int, count: int = 1) -> PairBatch:
        """Samples ``start`` to ``start + count`` (excluded) of the endless sequence, joined to one batch.

        Samples differ in length, and several are padded to the longest. Read them one at a time
        (``micro_batch_size`` 1 of the trainer) to avoid this padding.
        """
        pairs = self.pair_numbers(start, count)
        rows = np.arange(len(pairs))
        lengths = self.shards.lengths[:, pairs]  # [2, B]
        real_source, real = (
            np.arange(each.max()) < each[:, None] for each in lengths
        )  # [B, S - 1], [B, T - 1]
        width = real_source.shape[1] + 1 + self._before
        source = np.full((len(pairs), width), self.shards.source.pad_id or 0, np.int64)
        if self.source_start_id is not None:
            source[:, 0] = self.source_start_id
        source[:, self._before : -1][real_source] = _tokens(self.shards.source, pairs, lengths[0])
        source[rows, lengths[0] + self._before] = self._ends[0]
        attend = np.arange(width) < self._sizes[0, pairs][:, None]
        target = _tokens(self.shards.target, pairs, lengths[1])
        prefix = np.full((len(pairs), real.shape[1] + 1), self.shards.target.pad_id or 0, np.int64)
        prefix[:, 0] = self.start_id
        prefix[:, 1:][real] = target
        targets = np.full(prefix.shape, IGNORE, np.int64)
        targets[:, :-1][real] = target
        targets[rows, lengths[1]] = self._ends[1]
        return PairBatch(*map(torch.from_numpy, (source, attend, prefix, targets)))

    def row_samples(self, start: int, count: int = 1) -> Ints:
        """Return a number for each row of these samples that depends on no other row of the batch."""
        sizes = [len(self.pair_numbers(sample)) for sample in range(start, start + count)]
        return np.concatenate([((start + i) << 32) + np.arange(size) for i, size in enumerate(sizes)])

    def pair_numbers(self, start: int, count: int = 1) -> Ints:
        """Return the pairs of the shards that are the rows of these samples."""
        numbers, permuted = sample_numbers(start, count), self.order == "permutation"
        epochs, indices = in_epochs(numbers, self.samples_per_epoch, self.seed, permuted=permuted)
        return np.concatenate(list(map(self._rows, epochs.tolist(), indices.tolist())))

    def _rows(self, epoch: int, index: int) -> Ints:
        """Return the pairs of batch ``index`` of the buckets, in this epoch."""
        bucket = int(np.searchsorted(self._batch_ends, index, side="right"))
        first, stop = self._span(bucket)
        edges = self._edges(bucket)
        nth = index - int(self._batch_ends[bucket]) + len(edges) - 1
        places = self._shuffled(epoch, bucket, np.arange(edges[nth], edges[nth + 1]), stop - first)
        return self._pairs[first + places]

    def _span(self, bucket: int) -> tuple[int, int]:
        """Return where the pairs of ``bucket`` begin and end among all pairs."""
        return (int(self._bucket_ends[bucket - 1]) if bucket else 0), int(self._bucket_ends[bucket])

    def _edges(self, bucket: int) -> Ints:
        """Return where each batch of ``bucket`` begins among its pairs, and the end."""
        first, stop = self._span(bucket)
        m = int(self._batches[bucket])
        return np.arange(m + 1) * (stop - first) // m

    def _shuffled(self, epoch: int, bucket: int, places: Ints, n: int) -> Ints:
        """Return which of the ``n`` pairs of ``bucket`` are at ``places`` of it in this epoch."""
        if self.order == "sequential":
            return places
        number = np.array([epoch * len(self._batches) + bucket], np.uint64)
        key = keyed(self.seed, Purpose.GROUPS, number)
        return permute(places.astype(np.uint64), n, np.repeat(key, len(places))).astype(np.int64)

    # ----------------------------------------------------------------------------------- account

    def real_shares(self, epoch: int = 0) -> tuple[float, float]:
        """The shares of the source and of the target positions of an epoch that are not padding."""
        positions = np.zeros(2, np.int64)
        lengths = self._sizes
        for bucket in range(len(self._batches)):
            first, stop = self._span(bucket)
            edges = self._edges(bucket)
            pairs = self._pairs[first + self._shuffled(epoch, bucket, np.arange(stop - first), stop - first)]
            widths = np.maximum.reduceat(lengths[:, pairs], edges[:-1], axis=1)  # [2, batches]
            positions += (widths * np.diff(edges)).sum(1)
        source, target = lengths.sum(1) / positions
        return float(source), float(target)

    @cached_property
    def tokens_per_sample(self) -> tuple[float, float]:
        """The mean source and target tokens of a batch, end tokens included, padding excluded."""
        source, target = self._sizes.sum(1) / self.samples_per_epoch
        return float(source), float(target)

    def document_ids(self, start: int, count: int) -> list[str]:
        """``file#number`` of every pair in these samples, for error reports."""
        return [self.shards.pair_name(int(pair)) for pair in sorted(set(self.pair_numbers(start, count)))]

    @property
    def fingerprint(self) -> str:
        """sha256 of everything that decides the batches."""
        names = ["batch_tokens", "seed", "order", "padding", "start_id"]
        names += [] if self.source_start_id is None else ["source_start_id"]
        return settings_fingerprint(self.shards.fingerprint, self, *names)

    @property
    def ledger(self) -> Ledger:
        """The ledger of the shards, with notes on the batches; padding is that of the first epoch."""
        ledger = self.shards.ledger
        source, target = self.real_shares()
        tokens = self._sizes.sum(1)
        how = "anew each epoch" if self.order == "permutation" else "the same every time, short ones first"
        notes = [
            *ledger.notes,
            f"order: {self.samples_per_epoch:,} batches of about {self.batch_tokens:,} target tokens, put "
            f"together {how} from {len(self._batches):,} buckets of like lengths",
            f"padding: {source:.1%} of source and {target:.1%} of target positions hold tokens",
        ]
        share = tokens.sum() / (tokens / (source, target)).sum()
        return replace(ledger, packed_share=float(share), notes=tuple(notes))


def _end(side: TokenShards, name: str) -> int:
    if side.eos_id is None:
        raise DataError(f"the {name} tokenizer has no end-of-sequence token, with which each {name} ends")
    return side.eos_id


def _tokens(side: TokenShards, pairs: Ints, lengths: Ints) -> NDArray[Any]:
    """Return the ids of ``pairs``, one after another."""
    return side.tokens()[runs(side.ends[pairs] - lengths, lengths)]
