"""Batches for masked language models: windows of running text between [CLS] and [SEP], by index.

A batch and its masks are a pure function of (settings, seed, global sample numbers), as in
:mod:`wordloom.data.batches.causal`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wordloom.data.batches.masking import Masker
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
from wordloom.errors import DataError

MaskedOrder = Literal["permutation", "sequential"]
Ids: TypeAlias = NDArray[np.int64]
Numbers: TypeAlias = NDArray[np.uint64]


class MaskedBatch(NamedTuple):
    """Texts with some masked tokens.  B rows, T positions.

    Attributes:
        tokens: ``[B, T]`` int64 inputs, padded on the right.
        segments: ``[B, T]`` int64, 0 for the first text of a row and 1 for the second.
        attend: ``[B, T]`` bool, True where there is a token; None means everywhere.
        targets: ``[B, T]`` int64, the original token; :data:`~wordloom.data.IGNORE` where nothing is scored.
        is_next: ``[B]`` bool, whether the second text follows the first; None for rows of one text.
    """

    tokens: Tensor
    segments: Tensor
    attend: Tensor | None
    targets: Tensor
    is_next: Tensor | None = None


class Marks(NamedTuple):
    """The marks around texts: ``cls`` first [sep] second ``sep``, then ``pad``."""

    cls: int
    sep: int
    pad: int

    @classmethod
    def of(cls, tokenizer: Any) -> Marks:
        """Return the marks of ``tokenizer``: its cls or bos, and its sep or eos.

        Raises DataError if one is missing.
        """
        first = tokenizer.bos_id if tokenizer.cls_id is None else tokenizer.cls_id
        last = tokenizer.eos_id if tokenizer.sep_id is None else tokenizer.sep_id
        for token, names in ((first, "[CLS] or <s>"), (last, "[SEP] or </s>"), (tokenizer.pad_id, "[PAD]")):
            if token is None:
                raise DataError(
                    f"the tokenizer has no {names} among its special tokens, which an encoder's texts need; "
                    "train one of kind wordpiece, or with tokenizer.special_tokens"
                )
        return cls(first, last, tokenizer.pad_id)


def masked_batch(
    texts: Sequence[tuple[Ids, ...]],
    keys: Numbers,
    marks: Marks,
    masker: Masker,
    is_next: NDArray[np.bool_] | None = None,
) -> MaskedBatch:
    """Put rows of one text or two between their marks, and mask them by ``keys`` [B]."""
    lengths = [1 + sum(len(text) + 1 for text in row) for row in texts]
    B, T = len(texts), max(lengths)
    tokens = np.full((B, T), marks.pad, np.int64)
    segments = np.zeros((B, T), np.int64)
    candidates = np.zeros((B, T), bool)
    for i, row in enumerate(texts):
        tokens[i, 0] = marks.cls
        at = 1
        for segment, text in enumerate(row):
            stop = at + len(text)
            tokens[i, at:stop], tokens[i, stop] = text, marks.sep
            segments[i, at : stop + 1] = segment
            candidates[i, at:stop] = text != marks.sep  # the ends of documents are not masked
            at = stop + 1
    attend = np.arange(T) < np.array(lengths)[:, None]
    inputs, targets = masker(tokens, candidates, keys)
    return MaskedBatch(
        tokens=torch.from_numpy(inputs),
        segments=torch.from_numpy(segments),
        attend=None if attend.all() else torch.from_numpy(attend),
        targets=torch.from_numpy(targets),
        is_next=None if is_next is None else torch.from_numpy(is_next),
    )


class MaskedRows:
    """An endless sequence of masked rows of texts, addressed by index; a subclass defines the texts of a row.

    Args:
        seq_len: T, the largest number of tokens of a row, marks included.
        seed: decides the order and the masks; 0 <= seed < 2**63.
        order: ``"permutation"``: each epoch visits all rows once in its own order.  ``"sequential"``: in text
            order.
        dynamic: draw a new mask each time a row comes (Liu et al. 2019, section 4.1). Otherwise, and always
            in ``"sequential"`` order, a row keeps its first mask.

    Raises:
        DataError: a setting out of range.
    """

    samples_per_epoch: int
    least: ClassVar[int]  # the smallest seq_len

    def __init__(
        self,
        shards: TokenShards,
        *,
        seq_len: int,
        marks: Marks,
        masker: Masker,
        seed: int = 0,
        order: MaskedOrder = "permutation",
        dynamic: bool = True,
    ) -> None:
        if seq_len < self.least:
            raise DataError(f"seq_len={seq_len} has no room for text and marks; at least {self.least}")
        check_seed(seed)
        self.shards, self.seq_len, self.marks, self.masker = shards, seq_len, marks, masker
        self.seed, self.order = seed, order
        self.dynamic = dynamic and order == "permutation"
        self._ids = shards.ids

    def batch(self, start: int, count: int) -> MaskedBatch:
        """Samples ``start`` to ``start + count`` (excluded) of the endless sequence."""
        epoch, row = self._rows_of(start, count)
        drawn = sample_numbers(start, count) if self.dynamic else row
        texts, is_next = self._texts(epoch, row, drawn)
        return masked_batch(texts, keyed(self.seed, Purpose.MASK, drawn), self.marks, self.masker, is_next)

    def _rows_of(self, start: int, count: int) -> tuple[Numbers, Numbers]:
        """Return the epoch and the row of each sample."""
        samples, permuted = sample_numbers(start, count), self.order == "permutation"
        return in_epochs(samples, self.samples_per_epoch, self.seed, permuted=permuted)

    def _texts(
        self, epoch: Numbers, row: Numbers, drawn: Numbers
    ) -> tuple[list[tuple[Ids, ...]], NDArray[np.bool_] | None]:
        """Return the texts of each row, and for two texts whether the second follows.

        ``drawn`` numbers the random draws.
        """
        raise NotImplementedError

    @property
    def fingerprint(self) -> str:
        """sha256 of everything that decides the batches."""
        kind = {"rows": type(self).__name__, "masker": self.masker.identity()}
        return settings_fingerprint(
            self.shards.fingerprint, self, "seq_len", "seed", "order", "dynamic", **kind
        )


class MaskedBatches(MaskedRows):
    """Masked windows of running text; see :class:`MaskedRows`.

    With ``dynamic``, each epoch starts the windows at another offset. In ``"sequential"`` order every token
    is in one window, and the last window is shorter.

    Raises:
        DataError: also for fewer tokens than one window needs.
    """

    least = 3  # two marks and a token

    def __init__(self, shards: TokenShards, **settings: Any) -> None:
        super().__init__(shards, **settings)
        self.inner = n = self.seq_len - 2
        sequential = self.order == "sequential"
        if len(shards) < (1 if sequential else n):
            raise DataError(
                f"the {shards.ledger.part} part has {len(shards)} tokens, but a window of seq_len="
                f"{self.seq_len} needs {n}; lower seq_len or add text"
            )
        self.samples_per_epoch = -(-len(shards) // n) if sequential else len(shards) // n
        if self.dynamic:  # one to two windows are dropped, as room for other phases
            self.samples_per_epoch = max(1, (len(shards) + 1) // n - 1)
        left = len(shards) - self.samples_per_epoch * n
        self._phases = min(n, left + 1) if self.dynamic else 1

    def _texts(self, epoch: Numbers, row: Numbers, drawn: Numbers) -> tuple[list[tuple[Ids, ...]], None]:
        begins = self._begins(epoch, row).tolist()
        return [(self._ids[at : at + self.inner].astype(np.int64),) for at in begins], None

    def _begins(self, epoch: Numbers, row: Numbers) -> Ids:
        """Return the position of the first token of each window: [count]."""
        phase = keyed(self.seed, Purpose.PHASE, epoch) % np.uint64(self._phases)
        return (row * np.uint64(self.inner) + phase).astype(np.int64)

    def document_ids(self, start: int, count: int) -> list[str]:
        """``file#number`` of every document that these samples touch, for error reports."""
        begin = self._begins(*self._rows_of(start, count))
        last = np.minimum(begin + self.inner, len(self.shards)) - 1
        return document_names(self.shards, begin, last)

    @property
    def ledger(self) -> Ledger:
        """The ledger of the shards, with a note on what windows leave out and pad."""
        count, n = self.samples_per_epoch, self.inner
        windows = f"{count:,} windows of {n:,} tokens and two marks"
        if self.order == "sequential":
            note = f"order: {windows}, in text order, masked by their place"
            packed = (len(self.shards) + 2 * count) / (count * self.seq_len)
        else:
            left = len(self.shards) - count * n
            masked = "masked anew every time" if self.dynamic else "each masked once and for all"
            note = f"order: {windows} an epoch, permuted, {masked}; {left:,} tokens are dropped at the ends"
            packed = 1.0
        ledger = self.shards.ledger
        return replace(ledger, packed_share=packed, notes=(*ledger.notes, note))
