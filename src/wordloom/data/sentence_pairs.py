"""Batches for next-sentence prediction: pairs of stretches of sentences, half of which follow one another.

The procedure of BERT's own code (create_pretraining_data.py), by index: a document's sentences are gathered
until they fill a row, or in a tenth of the rows, some random part of one; the row's first sentences, up to a
random one, are the first text; the second is the rest, or half of the time, as many tokens from a random
place of another document.  What is too long loses tokens at either end of the longer text.

Theirs puts the sentences that were replaced at the beginning of the next row, and so makes another number of
rows for every copy of the corpus that it writes.  Here a row's sentences are the same in every epoch, so that
any row can be had by its number; where it is divided, and what the second text is, is drawn anew.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wordloom.data.ledger import Ledger
from wordloom.data.masked_batches import Marks, MaskedBatch, MaskedOrder, masked_batch
from wordloom.data.masking import Masker
from wordloom.data.permutation import keyed, mix, permute
from wordloom.data.storage import TokenShards
from wordloom.errors import DataError

__all__ = ["SentencePairBatches"]

_PERMUTATION, _MASK, _SHORT, _PAIR = 1, 5, 6, 7  # purposes of the random numbers drawn from one seed
_SHORT_SHARE = 0.1
_ALL = (1 << 64) - 1

Ids = NDArray[np.int64]


class SentencePairBatches:
    """Rows of two texts, numbered without end.

    Args:
        shards: of :class:`~wordloom.data.sentences.Sentences`: each document of theirs is a sentence.
        seq_len: T, of which three are marks.
        order, seed, dynamic: as :class:`~wordloom.data.MaskedBatches`; without ``dynamic`` a row is divided
            and masked as the first time.

    Raises:
        DataError: a setting out of range, or fewer than two documents.
    """

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
        if seq_len < 5:
            raise DataError(f"seq_len={seq_len} is not allowed; at least 5, for three marks and two texts")
        if not 0 <= seed < 1 << 63:
            raise DataError(f"seed={seed} is not allowed; 0 <= seed < 2**63")
        self.shards, self.seq_len, self.marks, self.masker = shards, seq_len, marks, masker
        self.seed, self.order, self.dynamic = seed, order, dynamic
        self._ids = shards.tokens()
        self.longest = seq_len - 3
        self._ends, self._document, self.divided = self._sentences()
        self._firsts = np.searchsorted(self._document, np.arange(self._document[-1] + 2))  # [documents + 1]
        if len(self._firsts) < 3:
            raise DataError(
                f"the {shards.ledger.part} part is one document, and a sentence that does not follow comes "
                "from another; say what stands between documents with data.separator, or take more files"
            )
        self._rows = self._gathered()  # [rows, 3]: first sentence, the one past the last, tokens aimed at
        self.samples_per_epoch = len(self._rows)

    def _sentences(self) -> tuple[Ids, Ids, int]:
        """Ends of the sentences, the document of each, and how many were longer than a row and divided, into
        parts of half of one, of which two can stand together."""
        ends, origins = self.shards.ends, self.shards.origins()
        starts = np.concatenate([[0], ends[:-1]])
        changes = np.any(origins[1:] != origins[:-1], axis=1)
        document = np.concatenate([[0], np.cumsum(changes)])
        half = -(-self.longest // 2)
        parts = np.where(ends - starts > self.longest, -(-(ends - starts) // half), 1)  # [sentences]
        nth = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
        after = np.repeat(starts, parts) + (nth + 1) * half
        cut = np.where(nth + 1 == np.repeat(parts, parts), np.repeat(ends, parts), after)
        return cut, np.repeat(document, parts), int((parts > 1).sum())

    def _gathered(self) -> Ids:
        """Sentences into rows, within each document."""
        ends = self._ends
        rows: list[tuple[int, int, int]] = []
        draw = keyed(self.seed, _SHORT, np.arange(len(ends), dtype=np.uint64))  # of a row, by its first one
        short = (draw >> np.uint64(11)) * 2.0**-53 < _SHORT_SHARE
        aims = np.where(short, 2 + (mix(draw) % np.uint64(self.longest - 1)).astype(np.int64), self.longest)
        for first, stop in zip(self._firsts[:-1].tolist(), self._firsts[1:].tolist(), strict=True):
            while first < stop:
                begin = int(ends[first - 1]) if first else 0
                aim = int(aims[first])
                after = int(np.searchsorted(ends[first:stop], begin + aim)) + first + 1
                rows.append((first, min(after, stop), aim))
                first = after
        return np.array(rows, np.int64)

    def batch(self, start: int, count: int) -> MaskedBatch:
        """Samples ``start`` to ``start + count`` (excluded) of the endless sequence."""
        if start < 0 or count < 1:
            raise DataError(f"batch({start}, {count}) is not allowed; start >= 0 and count >= 1")
        rows = self._numbers(start, count)
        fresh = self.dynamic and self.order == "permutation"
        sample = np.arange(start, start + count, dtype=np.uint64) if fresh else rows.astype(np.uint64)
        draws = _Draws(keyed(self.seed, _PAIR, sample))
        made = [self._pair(row, i, draws) for i, row in enumerate(rows.tolist())]
        is_next = np.array([following for _, _, following in made])
        texts = [(first, second) for first, second, _ in made]
        return masked_batch(texts, keyed(self.seed, _MASK, sample), self.marks, self.masker, is_next)

    def _pair(self, row: int, i: int, draws: _Draws) -> tuple[Ids, Ids, bool]:
        """The two texts of ``row``, sample ``i`` of its batch, and whether the second follows."""
        first, stop, aim = self._rows[row].tolist()
        middle = first + 1 + (draws.below(stop - first - 1, i) if stop - first > 1 else 0)
        one = self._text(first, middle)
        following = stop - first > 1 and draws.below(2, i) == 0
        two = self._text(middle, stop) if following else self._other(first, aim - len(one), i, draws)
        return (*_cut(one, two, self.longest, i, draws), following)

    def _other(self, sentence: int, length: int, i: int, draws: _Draws) -> Ids:
        """About ``length`` tokens, of a sentence at least, from a random place of another document."""
        own = int(self._document[sentence])
        other = draws.below(len(self._firsts) - 2, i)
        other += other >= own
        first, stop = self._firsts[other : other + 2].tolist()
        begin = first + draws.below(stop - first, i)
        at = int(self._ends[begin - 1]) if begin else 0
        after = int(np.searchsorted(self._ends[begin:stop], at + max(1, length))) + begin + 1
        return self._text(begin, min(after, stop))

    def _text(self, first: int, stop: int) -> Ids:
        begin = int(self._ends[first - 1]) if first else 0
        return self._ids[begin : int(self._ends[stop - 1])].astype(np.int64)

    def _numbers(self, start: int, count: int) -> Ids:
        """Which row each sample is."""
        sample = np.arange(start, start + count, dtype=np.uint64)
        epoch, row = np.divmod(sample, np.uint64(self.samples_per_epoch))
        if self.order == "permutation":
            row = permute(row, self.samples_per_epoch, keyed(self.seed, _PERMUTATION, epoch))
        return row.astype(np.int64)

    def document_ids(self, start: int, count: int) -> list[str]:
        """``file#number`` of the documents whose sentences these samples begin with, for error reports."""
        sentences = self._rows[self._numbers(start, count), 0]
        begins = np.where(sentences > 0, self._ends[sentences - 1], 0)
        documents = np.unique(np.searchsorted(self.shards.ends, begins, side="right"))
        return sorted({self.shards.document_name(document) for document in documents.tolist()})

    @property
    def fingerprint(self) -> str:
        """sha256 of everything that decides the batches."""
        settings: dict[str, Any] = {
            "shards": self.shards.fingerprint,
            "seq_len": self.seq_len,
            "seed": self.seed,
            "order": self.order,
            "dynamic": self.dynamic,
            "masker": self.masker.identity(),
            "pairs": "next sentence",
        }
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()

    @property
    def ledger(self) -> Ledger:
        """The shards' ledger, with what became of the sentences."""
        ledger, rows = self.shards.ledger, self._rows
        single = int((rows[:, 1] - rows[:, 0] == 1).sum())
        note = (
            f"order: {len(rows):,} rows of up to {self.seq_len:,} tokens, of {len(self._firsts) - 1:,} "
            f"documents; the second text follows in half of them, and never in the {single:,} that are one "
            "sentence"
        )
        cut = {f"sentence(s) longer than a row's {self.longest:,} tokens, divided": self.divided}
        return replace(
            ledger, unit="sentence", cut={**ledger.cut, **cut}, notes=(*ledger.notes, note), packed_share=None
        )


class _Draws:
    """Random numbers, one stream (SplitMix64, Steele, Lea and Flood 2014) for each of ``keys`` [B]."""

    def __init__(self, keys: NDArray[np.uint64]) -> None:
        self._states: list[int] = keys.tolist()

    def bits(self, i: int) -> int:
        """64 random bits from stream ``i``."""
        self._states[i] = x = (self._states[i] + 0x9E3779B97F4A7C15) & _ALL
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _ALL
        x = (x ^ x >> 27) * 0x94D049BB133111EB & _ALL
        return x ^ x >> 31

    def below(self, n: int, i: int) -> int:
        """One of 0 to n - 1 from stream ``i``."""
        return self.bits(i) % n

    def heads(self, n: int, i: int) -> int:
        """How many of ``n`` fair coins from stream ``i`` show heads."""
        return sum((self.bits(i) & ((1 << min(64, n - at)) - 1)).bit_count() for at in range(0, n, 64))


def _cut(one: Ids, two: Ids, longest: int, i: int, draws: _Draws) -> tuple[Ids, Ids]:
    """Both, the longer losing a token at either end while they are together above ``longest``."""
    over = len(one) + len(two) - longest
    if over <= 0:
        return one, two
    alone = min(over, abs(len(one) - len(two)))  # taken from the longer until they are equal; then in turns
    both = over - alone
    lost = [both // 2, both - both // 2]
    lost[0 if len(one) > len(two) else 1] += alone
    made = []
    for text, n in zip((one, two), lost, strict=True):
        front = draws.heads(n, i)
        made.append(text[front : len(text) - (n - front)])
    return made[0], made[1]
