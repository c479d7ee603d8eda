"""Batches for masked language models: windows of running text between [CLS] and [SEP], by index.

A batch is a pure function of (settings, seed, global sample numbers), as in
:mod:`wordloom.data.batches.causal`; what is masked in a sample, too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wordloom.data.batches.masking import Masker
from wordloom.data.batches.order import Purpose, keyed, permute
from wordloom.data.shards.ledger import Ledger
from wordloom.data.shards.storage import TokenShards
from wordloom.errors import DataError

__all__ = ["Marks", "MaskedBatch", "MaskedBatches", "masked_batch"]


MaskedOrder = Literal["permutation", "sequential"]
Ids: TypeAlias = NDArray[np.int64]
Numbers: TypeAlias = NDArray[np.uint64]


class MaskedBatch(NamedTuple):
    """Texts with some tokens hidden.  B rows, T positions.

    Attributes:
        tokens: ``[B, T]`` int64 inputs, padded on the right.
        segments: ``[B, T]`` int64, 0 for the first text of a row and 1 for the second.
        attend: ``[B, T]`` bool, True where there is a token; ``None``: everywhere.
        targets: ``[B, T]`` int64, what stood there; :data:`~wordloom.data.IGNORE` where nothing is scored.
        is_next: ``[B]`` bool, whether the second text follows the first; ``None``: there is one text.
    """

    tokens: Tensor
    segments: Tensor
    attend: Tensor | None
    targets: Tensor
    is_next: Tensor | None = None


class Marks(NamedTuple):
    """The tokens that stand around texts: ``cls`` first [sep] second ``sep``, and ``pad`` behind."""

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
    """Rows of one text or two, between their marks and masked by ``keys`` [B]."""
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
            candidates[i, at:stop] = text != marks.sep  # ends of documents within it
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
    """Rows of texts between marks, masked, and numbered without end; what a row is, a subclass says.

    Args:
        seq_len: T, tokens of a row at most, its marks included.
        seed: names the order and the masks; 0 <= seed < 2**63.
        order: ``"permutation"``: each epoch visits all rows once in an order of its own.  ``"sequential"``:
            as they stand.
        dynamic: a row is masked anew each time it comes (Liu et al. 2019, section 4.1); else, and always in
            ``"sequential"`` order, as the first time.

    Raises:
        DataError: a setting out of range.
    """

    samples_per_epoch: int
    least: ClassVar[int]  # tokens that a row has room for at least

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
        if not 0 <= seed < 1 << 63:
            raise DataError(f"seed={seed} is not allowed; 0 <= seed < 2**63")
        self.shards, self.seq_len, self.marks, self.masker = shards, seq_len, marks, masker
        self.seed, self.order = seed, order
        self.dynamic = dynamic and order == "permutation"
        self._ids = shards.tokens()

    def batch(self, start: int, count: int) -> MaskedBatch:
        """Samples ``start`` to ``start + count`` (excluded) of the endless sequence."""
        if start < 0 or count < 1:
            raise DataError(f"batch({start}, {count}) is not allowed; start >= 0 and count >= 1")
        epoch, row = self._rows_of(start, count)
        drawn = np.arange(start, start + count, dtype=np.uint64) if self.dynamic else row
        texts, is_next = self._texts(epoch, row, drawn)
        return masked_batch(texts, keyed(self.seed, Purpose.MASK, drawn), self.marks, self.masker, is_next)

    def _rows_of(self, start: int, count: int) -> tuple[Numbers, Numbers]:
        """The epoch of each sample, and which row of it the sample is."""
        sample = np.arange(start, start + count, dtype=np.uint64)
        epoch, row = np.divmod(sample, np.uint64(self.samples_per_epoch))
        if self.order == "permutation":
            row = permute(row, self.samples_per_epoch, keyed(self.seed, Purpose.PERMUTATION, epoch))
        return epoch, row

    def _texts(
        self, epoch: Numbers, row: Numbers, drawn: Numbers
    ) -> tuple[list[tuple[Ids, ...]], NDArray[np.bool_] | None]:
        """The texts of each row, and of two, whether the second follows; ``drawn`` names what is random."""
        raise NotImplementedError

    @property
    def fingerprint(self) -> str:
        """sha256 of everything that decides the batches."""
        settings: dict[str, Any] = {
            "rows": type(self).__name__,
            "shards": self.shards.fingerprint,
            "seq_len": self.seq_len,
            "seed": self.seed,
            "order": self.order,
            "dynamic": self.dynamic,
            "masker": self.masker.identity(),
        }
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


class MaskedBatches(MaskedRows):
    """Windows of running text, as :class:`MaskedRows`.

    Each epoch lays them from another starting phase, unless they are to be masked once and for all; in
    ``"sequential"`` order every token is in one window, the last one shorter.

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
        if self.dynamic:  # room for other phases: a window to two are left over
            self.samples_per_epoch = max(1, (len(shards) + 1) // n - 1)
        left = len(shards) - self.samples_per_epoch * n
        self._phases = min(n, left + 1) if self.dynamic else 1

    def _texts(self, epoch: Numbers, row: Numbers, drawn: Numbers) -> tuple[list[tuple[Ids, ...]], None]:
        begins = self._begins(epoch, row).tolist()
        return [(self._ids[at : at + self.inner].astype(np.int64),) for at in begins], None

    def _begins(self, epoch: Numbers, row: Numbers) -> Ids:
        """Where each window begins."""
        phase = keyed(self.seed, Purpose.PHASE, epoch) % np.uint64(self._phases)
        return (row * np.uint64(self.inner) + phase).astype(np.int64)

    def document_ids(self, start: int, count: int) -> list[str]:
        """``file#number`` of every document that these samples touch, for error reports."""
        begin = self._begins(*self._rows_of(start, count))
        last = np.minimum(begin + self.inner, len(self.shards)) - 1
        firsts, lasts = (np.searchsorted(self.shards.ends, at, side="right") for at in (begin, last))
        touched = {d for a, b in zip(firsts, lasts, strict=True) for d in range(int(a), int(b) + 1)}
        return [self.shards.document_name(document) for document in sorted(touched)]

    @property
    def ledger(self) -> Ledger:
        """The shards' ledger, with what windows leave out and pad."""
        count, n = self.samples_per_epoch, self.inner
        windows = f"{count:,} windows of {n:,} tokens and two marks"
        if self.order == "sequential":
            note = f"order: {windows}, in text order, masked by their place"
            packed = (len(self.shards) + 2 * count) / (count * self.seq_len)
        else:
            left = len(self.shards) - count * n
            masked = "masked anew every time" if self.dynamic else "each masked once and for all"
            note = f"order: {windows} an epoch, permuted, {masked}; {left:,} tokens are left over at the ends"
            packed = 1.0
        ledger = self.shards.ledger
        return replace(ledger, packed_share=packed, notes=(*ledger.notes, note))
