"""Batches for causal language models: windows over token shards, addressed by index.

A batch is a pure function of (settings, seed, global sample numbers), and :meth:`CausalBatches.batch` has no
state.  Training therefore resumes at any sample without reading earlier ones, and the order of samples does
not depend on batch size, gradient accumulation or ranks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wordloom.data.batches.order import (
    Purpose,
    check_seed,
    document_names,
    in_epochs,
    keyed,
    sample_numbers,
    settings_fingerprint,
)
from wordloom.data.ledgers import Ledger
from wordloom.data.shards.storage import TokenShards
from wordloom.errors import DataError, did_you_mean

IGNORE = -100  # a target that is not scored; torch's cross-entropy skips it by default

Order: TypeAlias = Literal["permutation", "random", "sequential"]
ORDERS = ("permutation", "random", "sequential")
_CHUNK = 1 << 20  # documents counted at a time for the ledger


class CausalBatch(NamedTuple):
    """Tokens and the tokens that follow them.  B rows, T positions, all int64.

    Attributes:
        tokens: ``[B, T]`` inputs.
        targets: ``[B, T]`` the token after each input; :data:`IGNORE` where nothing is scored.
        positions: ``[B, T]`` position within the document's stretch of this window, from 0; ``None``: 0..T-1.
        documents: ``[B, T]`` number of the document each input belongs to, -1 for padding; attention must
            stay within equal numbers.  ``None``: plain causal attention over the whole row.
    """

    tokens: Tensor
    targets: Tensor
    positions: Tensor | None = None
    documents: Tensor | None = None


class CausalBatches:
    """An endless sequence of windows of ``seq_len`` tokens over ``shards``, addressed by index.

    Args:
        shards: the tokens, one document after another.
        seq_len: T, inputs per window.  A window reads T + 1 tokens; neighbours share one.
        seed: the seed of the order; 0 <= seed < 2**63.
        order: ``"permutation"``: each epoch visits all windows once in a new random order.  Its windows start
            at a new offset, so epochs divide the text at different places.  ``"random"``: each sample starts
            anywhere, drawn with replacement, as in nanoGPT.  ``"sequential"``: windows in text order, for
            evaluation; every target is scored exactly once, and the last window is padded.
        document_mask: return ``documents`` and ``positions``, so that attention stays within a document and
            positions restart at each document.
        mask_document_starts: do not score the prediction of a document's first token from the document
            before it.  Default: as ``document_mask``.
        stride: for ``"sequential"`` only: windows advance by this many tokens (default: ``seq_len``) and
            score only what no earlier window scored, so each target has at least ``seq_len - stride``
            tokens of context, if the text before it is that long.

    Raises:
        DataError: a setting out of range, or fewer tokens than one window needs.
    """

    def __init__(
        self,
        shards: TokenShards,
        *,
        seq_len: int,
        seed: int = 0,
        order: Order = "permutation",
        document_mask: bool = False,
        mask_document_starts: bool | None = None,
        stride: int | None = None,
    ) -> None:
        if order not in ORDERS:
            raise DataError(f"order='{order}' is not known; {did_you_mean(order, ORDERS)}")
        if seq_len < 1:
            raise DataError(f"seq_len={seq_len} is not allowed; at least 1")
        check_seed(seed)
        if stride is not None and (order != "sequential" or not 1 <= stride <= seq_len):
            raise DataError(f"stride={stride} needs order='sequential' and 1 <= stride <= seq_len={seq_len}")
        targets = len(shards) - 1
        if targets < (1 if order == "sequential" else seq_len):
            raise DataError(
                f"the {shards.ledger.part} part has {len(shards)} tokens, but a window of seq_len={seq_len} "
                f"needs {seq_len + 1 if order != 'sequential' else 2}; lower seq_len or add text"
            )
        self.shards = shards
        self.seq_len = seq_len
        self.seed = seed
        self.order: Order = order
        self.document_mask = document_mask
        self.mask_document_starts = document_mask if mask_document_starts is None else mask_document_starts
        self.stride = stride or seq_len
        self._ids = shards.ids
        if order == "sequential":
            count = 1 + max(0, -(-(targets - seq_len) // self.stride))
        else:
            # The tokens of one window are kept free for the phase, so that every epoch has the same count.
            count = max(1, (targets + 1 - seq_len) // seq_len)
        self.samples_per_epoch: int = count
        self._phases = min(seq_len, targets - count * seq_len + 1) if order == "permutation" else 1

    # ---------------------------------------------------------------------------------- batches

    def batch(self, start: int, count: int) -> CausalBatch:
        """Return the samples ``start`` to ``start + count`` (excluded) of the endless sequence."""
        begin = self._starts(start, count)
        T = self.seq_len
        offsets = begin[:, None] + np.arange(T + 1)
        if self.order == "sequential":
            return self._padded(begin, offsets)
        window = self._ids[offsets].astype(np.int64)  # [B, T + 1]; copied below, as targets get masked
        return self._batch(window[:, :-1].copy(), window[:, 1:].copy(), begin)

    def _starts(self, start: int, count: int) -> NDArray[np.int64]:
        """Return the position of the first token of each sample: [count]."""
        sample = sample_numbers(start, count)
        if self.order == "random":
            choices = np.uint64(len(self.shards) - self.seq_len)
            return (keyed(self.seed, Purpose.START, sample) % choices).astype(np.int64)
        permuted = self.order == "permutation"
        epoch, window = in_epochs(sample, self.samples_per_epoch, self.seed, permuted=permuted)
        if not permuted:
            return window.astype(np.int64) * self.stride
        phase = keyed(self.seed, Purpose.PHASE, epoch) % np.uint64(self._phases)
        return (window * np.uint64(self.seq_len) + phase).astype(np.int64)

    def _padded(self, begin: NDArray[np.int64], offsets: NDArray[np.int64]) -> CausalBatch:
        """Return windows that may reach past the end and score only targets that none before them scored."""
        T = self.seq_len
        last = len(self.shards) - 1
        window = self._ids[np.minimum(offsets, last)].astype(np.int64)
        tokens, targets = window[:, :-1].copy(), window[:, 1:].copy()
        targets[offsets[:, 1:] > last] = IGNORE
        seen_before = np.where(begin == 0, 0, T - self.stride)
        targets[np.arange(T) < seen_before[:, None]] = IGNORE
        tokens[offsets[:, :-1] >= last] = self.shards.pad_id or 0  # nothing follows them
        return self._batch(tokens, targets, begin)

    def _batch(
        self, tokens: NDArray[np.int64], targets: NDArray[np.int64], begin: NDArray[np.int64]
    ) -> CausalBatch:
        if not (self.document_mask or self.mask_document_starts):
            return CausalBatch(torch.from_numpy(tokens), torch.from_numpy(targets))
        T = self.seq_len
        ends = self.shards.ends
        first = ends.searchsorted(begin, "right")
        stop = ends.searchsorted(begin + T, "right")  # documents that end in the window
        counts = stop - first
        rows = np.repeat(np.arange(len(begin)), counts)
        nth = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        boundary = ends[np.repeat(first, counts) + nth] - begin[rows]  # where the next one starts, 1..T
        if self.mask_document_starts:
            targets[rows, boundary - 1] = IGNORE
        if not self.document_mask:
            return CausalBatch(torch.from_numpy(tokens), torch.from_numpy(targets))
        inside = boundary < T
        starts = np.zeros(tokens.shape, np.int64)
        starts[rows[inside], boundary[inside]] = 1
        documents = first[:, None] + np.cumsum(starts, axis=1)
        places = np.arange(T)
        positions = places - np.maximum.accumulate(starts * places, axis=1)
        padding = begin[:, None] + places >= len(self.shards) - 1
        documents[padding] = -1
        positions[padding] = 0
        arrays = (tokens, targets, positions, documents)
        return CausalBatch(*(torch.from_numpy(array) for array in arrays))

    # ----------------------------------------------------------------------------------- account

    def document_ids(self, start: int, count: int) -> list[str]:
        """Return ``file#number`` of every document in these samples, for error messages."""
        begin = self._starts(start, count)
        last = np.minimum(begin + self.seq_len, len(self.shards) - 1)
        return document_names(self.shards, begin, last)

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the shards and all settings that decide the batches."""
        names = ("seq_len", "seed", "order", "document_mask", "mask_document_starts", "stride")
        return settings_fingerprint(self.shards.fingerprint, self, *names)

    @property
    def ledger(self) -> Ledger:
        """The ledger of the shards, with what the windows divide, leave out and pad."""
        ledger = self.shards.ledger
        count, T = self.samples_per_epoch, self.seq_len
        targets = len(self.shards) - 1
        masks = [
            "attention masked" if self.document_mask else "attention open",
            "first tokens not scored" if self.mask_document_starts else "first tokens scored",
        ]
        notes = [*ledger.notes, f"across document boundaries: {', '.join(masks)}"]
        windows = f"{count:,} windows of {T:,} tokens"
        packed = 1.0
        match self.order:
            case "permutation":
                left = targets - count * T
                notes.append(
                    f"order: {windows} an epoch, permuted; {left:,} of {targets:,} targets are dropped at "
                    "the ends, different ones in each epoch"
                )
            case "random":
                notes.append(f"order: {windows} an epoch, each drawn anywhere, with replacement")
            case "sequential":
                covered = len(self.shards) - 1 + (count - 1) * (T - self.stride)
                packed = covered / (count * T)
                notes.append(
                    f"order: {windows}, in text order, stride {self.stride:,}; each of {targets:,} targets "
                    f"scored once; {count * T - covered:,} positions of the last window are padding"
                )
        cut = {**ledger.cut, f"document(s) divided by edges of {T:,}-token windows": self._divided()}
        return replace(ledger, cut=cut, packed_share=packed, notes=tuple(notes))

    def _divided(self) -> int:
        """Return the number of documents in more than one window of the first epoch.

        Under random order, the windows are taken as consecutive.
        """
        ends = self.shards.ends
        phase = 0
        if self.order == "permutation":
            phase = int(keyed(self.seed, Purpose.PHASE, np.zeros(1, np.uint64))[0] % np.uint64(self._phases))
        divided, begin = 0, 0
        for at in range(0, ends.size, _CHUNK):
            end = ends[at : at + _CHUNK]
            start = np.concatenate(([begin], end[:-1]))
            divided += int(np.sum((start - phase) // self.seq_len != (end - 1 - phase) // self.seq_len))
            begin = int(end[-1])
        return divided


def to_device(batch: Any, device: torch.device) -> Any:
    """Return a batch (a NamedTuple, perhaps of NamedTuples) with its tensors on ``device``."""
    if device.type == "cpu":
        return batch
    return type(batch)(*(_moved(part, device) for part in batch))


def _moved(part: Any, device: torch.device) -> Any:
    if isinstance(part, Tensor):
        return part.to(device, non_blocking=True)
    return to_device(part, device) if isinstance(part, tuple) else part
