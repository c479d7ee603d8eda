"""Batches for truncated back-propagation through time: each row reads a stretch of the text on and on.

The text is cut into as many streams of equal length as a batch has rows; row b of every batch is the next
window of stream b, so what a recurrent model remembers of its row at the end of one batch is what it needs
at the beginning of the next (Williams & Peng 1990; Mikolov et al. 2010).  A batch is still a pure function of
its samples' global numbers: sample s is window s // rows of stream s % rows.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from wordloom.data.batches.causal import IGNORE
from wordloom.data.shards.ledger import Ledger
from wordloom.data.shards.storage import TokenShards
from wordloom.errors import DataError

__all__ = ["ContiguousBatch", "ContiguousBatches"]


class ContiguousBatch(NamedTuple):
    """The next windows of some streams.  B rows, T positions, all int64.

    Attributes:
        tokens: ``[B, T]`` inputs.
        targets: ``[B, T]`` what follows each input; :data:`IGNORE` where nothing is scored.
        positions: ``[B, T]`` position within the document, from 0; ``None``: documents are not kept apart.
        documents: ``[B, T]`` number of the document each input belongs to; ``None`` as above.
        first_row: the stream of row 0; row b reads stream ``first_row + b``.
        fresh: this is the first window of the streams: nothing came before.
    """

    tokens: Tensor
    targets: Tensor
    positions: Tensor | None
    documents: Tensor | None
    first_row: int
    fresh: bool


class ContiguousBatches:
    """Windows of ``seq_len`` tokens over ``rows`` streams of ``shards``, numbered without end.

    An epoch reads every stream once, from its beginning.  The last window of the streams is padded where
    ``seq_len`` does not divide their length; what is left over when the text is cut into streams, fewer than
    ``rows`` targets, is not read, and stands in the ledger.

    Args:
        shards: the tokens, one document after another.
        seq_len: T, inputs per window: how many steps back a gradient reaches.
        rows: B, streams read beside one another.
        document_mask: give ``documents`` and ``positions``, so that a model begins anew with each document.
        mask_document_starts: do not score the prediction of a document's first token from the document
            before it.  Default: as ``document_mask``.

    Raises:
        DataError: ``seq_len`` or ``rows`` below 1, or fewer tokens than each stream needs one of.
    """

    def __init__(
        self,
        shards: TokenShards,
        *,
        seq_len: int,
        rows: int,
        document_mask: bool = False,
        mask_document_starts: bool | None = None,
    ) -> None:
        for name, value in (("seq_len", seq_len), ("rows", rows)):
            if value < 1:
                raise DataError(f"{name}={value} is not allowed; at least 1")
        self.shards, self.seq_len, self.rows = shards, seq_len, rows
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
        self._ids = shards.tokens()

    # ---------------------------------------------------------------------------------- batches

    def batch(self, start: int, count: int) -> ContiguousBatch:
        """Samples ``start`` to ``start + count`` (excluded) of the endless sequence.

        Raises DataError for samples that lie in two windows: rows of a batch read the same one.
        """
        window, first = divmod(start, self.rows)
        if start < 0 or count < 1 or first + count > self.rows:
            raise DataError(
                f"batch({start}, {count}) is not allowed: {self.rows} streams are read together, so samples "
                f"of one batch lie between two multiples of {self.rows}"
            )
        at = window % self.windows * self.seq_len
        begin = (first + np.arange(count)) * self.length + at  # [B]
        room = min(self.seq_len, self.length - at)  # the rest is padding
        places = begin[:, None] + np.arange(self.seq_len + 1)
        ids = self._ids[np.minimum(places, (begin + room)[:, None])].astype(np.int64)
        tokens, targets = ids[:, :-1].copy(), ids[:, 1:].copy()
        targets[:, room:] = IGNORE
        apart = self.document_mask or self.mask_document_starts
        documents = positions = None
        if apart:
            ends = self.shards.ends
            number = np.searchsorted(ends, places, side="right")  # [B, T + 1]
            if self.mask_document_starts:
                targets[:, :room][number[:, :room] != number[:, 1 : room + 1]] = IGNORE
            if self.document_mask:
                number = number[:, :-1]
                starts = np.where(number == 0, 0, ends[np.minimum(number, len(ends)) - 1])
                documents = torch.from_numpy(number)
                positions = torch.from_numpy(places[:, :-1] - starts)
        return ContiguousBatch(
            torch.from_numpy(tokens),
            torch.from_numpy(targets),
            positions,
            documents,
            first,
            window % self.windows == 0,
        )

    # ----------------------------------------------------------------------------------- account

    def document_ids(self, start: int, count: int) -> list[str]:
        """``file#number`` of every document that these samples touch, for error reports."""
        touched: set[int] = set()
        for sample in range(start, start + count):
            window, row = divmod(sample, self.rows)
            begin = row * self.length + window % self.windows * self.seq_len
            last = min(begin + self.seq_len, (row + 1) * self.length)
            first, stop = np.searchsorted(self.shards.ends, [begin, last], side="right")
            touched.update(range(int(first), int(stop) + 1))
        return [self.shards.document_name(n) for n in sorted(touched) if n < len(self.shards.ends)]

    @property
    def fingerprint(self) -> str:
        """sha256 of everything that decides the batches."""
        settings = {
            "shards": self.shards.fingerprint,
            "order": "contiguous",
            "seq_len": self.seq_len,
            "rows": self.rows,
            "document_mask": self.document_mask,
            "mask_document_starts": self.mask_document_starts,
        }
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()

    @property
    def ledger(self) -> Ledger:
        """The shards' ledger, with what streams leave out and pad."""
        ledger = self.shards.ledger
        left = len(self.shards) - 1 - self.rows * self.length
        padded = self.windows * self.seq_len - self.length
        notes = [
            *ledger.notes,
            f"across document boundaries: {'state begins anew' if self.document_mask else 'state carried'}, "
            f"{'first tokens not scored' if self.mask_document_starts else 'first tokens scored'}",
            f"order: {self.rows:,} streams of {self.length:,} targets side by side in {self.windows:,} "
            f"windows of {self.seq_len:,}, state carried over; {left:,} targets are left over at the end, "
            f"{self.rows * padded:,} positions of the last windows are padding",
        ]
        share = self.length / (self.windows * self.seq_len)
        return replace(ledger, packed_share=share, notes=tuple(notes))
