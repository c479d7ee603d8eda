"""Batches for truncated back-propagation through time: each row reads one stream of text, window by window.

The text is divided into as many streams of equal length as a batch has rows. Row b of every batch is the next
window of stream b, so that the recurrent state at the end of a row is the state that the row needs in the
next batch (Williams & Peng 1990; Mikolov et al. 2010).  A batch is a pure function of its samples' global
numbers: sample s is window s // rows of stream s % rows.

A model that only ever continues a stream never meets the empty state that each text begins with when the
model is used.  Some windows therefore begin with an empty state, as in Melis et al. 2018 (arXiv:1707.05589,
section 4), and with a start token instead of their first one, by which the model can tell an empty state from
a carried one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from wordloom.data.batches.causal import IGNORE
from wordloom.data.batches.order import (
    Purpose,
    document_names,
    keyed,
    sample_numbers,
    settings_fingerprint,
)
from wordloom.data.ledgers import Ledger
from wordloom.data.shards.storage import TokenShards
from wordloom.errors import DataError


class ContiguousBatch(NamedTuple):
    """The next windows of some streams.  B rows, T positions, all int64.

    Attributes:
        tokens: ``[B, T]`` inputs.
        targets: ``[B, T]`` the token after each input; :data:`IGNORE` where nothing is scored.
        positions: ``[B, T]`` position within the document, from 0; None without a document mask.
        documents: ``[B, T]`` number of the document of each input; None without a document mask.
        restarts: ``[B]`` bool, the rows that begin with an empty state; None if rows never do.
        first_row: the stream of row 0; row b reads stream ``first_row + b``.
        fresh: whether this is the first window of the streams.
    """

    tokens: Tensor
    targets: Tensor
    positions: Tensor | None
    documents: Tensor | None
    restarts: Tensor | None
    first_row: int
    fresh: bool


class ContiguousBatches:
    """An endless sequence of windows over ``rows`` streams of ``shards``, addressed by index.

    An epoch reads every stream once, from its beginning.  The last window is padded if ``seq_len`` does not
    divide the length of the streams.  Fewer than ``rows`` targets at the end belong to no stream; the ledger
    counts them.

    Args:
        shards: the tokens, one document after another.
        seq_len: T, inputs per window, which is how many steps back a gradient reaches.
        rows: B, the number of streams.
        document_mask: return ``documents`` and ``positions``, so that a model resets its state with each
            document.
        mask_document_starts: do not score the prediction of a document's first token from the document
            before it.  Default: the value of ``document_mask``.
        start_id: the token that stands instead of the first one of each window that begins with an empty
            state; None for no token.
        restart_share: the share of windows that begin with an empty state, beside the first of each stream.
        seed: of the choice of those windows.

    Raises:
        DataError: ``seq_len`` or ``rows`` below 1, ``restart_share`` outside 0 to 1, or fewer tokens than
            streams.
    """

    def __init__(
        self,
        shards: TokenShards,
        *,
        seq_len: int,
        rows: int,
        document_mask: bool = False,
        mask_document_starts: bool | None = None,
        start_id: int | None = None,
        restart_share: float = 0.0,
        seed: int = 0,
    ) -> None:
        for name, value in (("seq_len", seq_len), ("rows", rows)):
            if value < 1:
                raise DataError(f"{name}={value} is not allowed; at least 1")
        if not 0 <= restart_share <= 1:
            raise DataError(f"restart_share={restart_share} is not allowed; from 0 to 1")
        self.shards, self.seq_len, self.rows = shards, seq_len, rows
        self.restart_share, self.start_id, self.seed = restart_share, start_id, seed
        self.document_mask = document_mask
        self.mask_document_starts = document_mask if mask_document_starts is None else mask_document_starts
        self.length = (len(shards) - 1) // rows  # targets of each stream
        if self.length < 1:
            raise DataError(
                f"the {shards.ledger.part} part has {len(shards)} tokens, too few for {rows} streams; lower "
                "the batch size or add text"
            )
        self.windows = -(-self.length // seq_len)
        self.samples_per_epoch: int = rows * self.windows
        self._ids = shards.ids

    # ---------------------------------------------------------------------------------- batches

    def batch(self, start: int, count: int) -> ContiguousBatch:
        """Samples ``start`` to ``start + count`` (excluded) of the endless sequence.

        Raises DataError for samples in two windows, because all rows of a batch read one window.
        """
        window, first = divmod(start, self.rows)
        if start < 0 or count < 1 or first + count > self.rows:
            raise DataError(
                f"batch({start}, {count}) is not allowed: {self.rows} streams are read together, so samples "
                f"of one batch lie between two multiples of {self.rows}"
            )
        at = window % self.windows * self.seq_len
        begin = (first + np.arange(count)) * self.length + at  # [B]
        room = min(self.seq_len, self.length - at)  # positions behind are padding
        places = begin[:, None] + np.arange(self.seq_len + 1)
        ids = self._ids[np.minimum(places, (begin + room)[:, None])].astype(np.int64)
        tokens, targets = ids[:, :-1].copy(), ids[:, 1:].copy()
        targets[:, room:] = IGNORE
        documents = positions = None
        if self.document_mask or self.mask_document_starts:
            ends = self.shards.ends
            number = ends.searchsorted(places, "right")  # [B, T + 1]
            if self.mask_document_starts:
                targets[:, :room][number[:, :room] != number[:, 1 : room + 1]] = IGNORE
            if self.document_mask:
                number = number[:, :-1]
                starts = np.where(number == 0, 0, ends[np.minimum(number, len(ends)) - 1])
                documents = torch.from_numpy(number)
                positions = torch.from_numpy(places[:, :-1] - starts)
        fresh, restarts = at == 0, None
        if self.restart_share:
            draws = keyed(self.seed, Purpose.RESTART, sample_numbers(start, count))
            restarts = torch.from_numpy((draws >> np.uint64(11)) * 2.0**-53 < self.restart_share)
        if self.start_id is not None:
            if fresh:
                tokens[:, 0] = self.start_id
            elif restarts is not None:
                tokens[restarts.numpy(), 0] = self.start_id
        return ContiguousBatch(
            torch.from_numpy(tokens),
            torch.from_numpy(targets),
            positions,
            documents,
            restarts,
            first,
            fresh,
        )

    # ----------------------------------------------------------------------------------- account

    def document_ids(self, start: int, count: int) -> list[str]:
        """``file#number`` of every document that these samples touch, for error reports."""
        window, row = np.divmod(np.arange(start, start + count), self.rows)
        begin = row * self.length + window % self.windows * self.seq_len
        last = np.minimum(begin + self.seq_len, (row + 1) * self.length)
        return document_names(self.shards, begin, last)

    @property
    def fingerprint(self) -> str:
        """sha256 of everything that decides the batches."""
        names = ["seq_len", "rows", "document_mask", "mask_document_starts"]
        if self.restart_share or self.start_id is not None:
            names += ["start_id", "restart_share", "seed"]
        return settings_fingerprint(self.shards.fingerprint, self, *names, order="contiguous")

    @property
    def ledger(self) -> Ledger:
        """The ledger of the shards, with notes on what streams leave out and pad."""
        ledger = self.shards.ledger
        left = len(self.shards) - 1 - self.rows * self.length
        padded = self.windows * self.seq_len - self.length
        notes = [
            *ledger.notes,
            f"across document boundaries: {'state begins anew' if self.document_mask else 'state carried'}, "
            f"{'first tokens not scored' if self.mask_document_starts else 'first tokens scored'}",
            f"order: {self.rows:,} streams of {self.length:,} targets side by side in {self.windows:,} "
            f"windows of {self.seq_len:,}, state carried over; {left:,} targets are dropped at the end, "
            f"{self.rows * padded:,} positions of the last windows are padding",
        ]
        if self.restart_share:
            notes.append(f"restarts: {self.restart_share:.3g} of the windows begin with an empty state")
        share = self.length / (self.windows * self.seq_len)
        return replace(ledger, packed_share=share, notes=tuple(notes))
