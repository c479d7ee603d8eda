"""Batches for next-sentence prediction: pairs of passages, in half of which the second follows the first.

The procedure is that of BERT's own code (create_pretraining_data.py), by index. The sentences of a document
are gathered until they fill a row; a tenth of the rows is shorter, by a random length. The first text of a
row is its sentences up to a random one. The second text is the row's other sentences or, in half of the rows,
as many tokens from a random place of another document.  A row that is too long loses tokens at either end of
the longer text.

There are two differences. The script draws the short length once for each document; here it is drawn for each
row, because all rows of a book would be short.  The script puts replaced sentences at the beginning of the
next row, so that every copy of the corpus has another number of rows. Here the sentences of a row are fixed,
so that a row can be addressed by its number; its division and its second text are drawn each time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wordloom.data.batches.masked import Ids, MaskedRows, Numbers
from wordloom.data.batches.order import Purpose, keyed, mix
from wordloom.data.ledgers import Ledger
from wordloom.data.shards.storage import TokenShards
from wordloom.errors import DataError

_SHORT_SHARE = 0.1
_ALL = (1 << 64) - 1


class SentencePairBatches(MaskedRows):
    """Masked rows of two texts; see :class:`~wordloom.data.batches.masked.MaskedRows`.

    ``shards`` come from :class:`~wordloom.data.text.sentences.Sentences`, so that each document of the shards
    is a sentence.  Without ``dynamic`` a row also keeps its first division.

    Raises:
        DataError: also for fewer than two documents.
    """

    least = 5  # three marks and two texts

    def __init__(self, shards: TokenShards, **settings: Any) -> None:
        super().__init__(shards, **settings)
        self.longest = self.seq_len - 3
        self._ends, self._document, self.divided = self._sentences()
        self._firsts = np.searchsorted(self._document, np.arange(self._document[-1] + 2))  # [documents + 1]
        if len(self._firsts) < 3:
            raise DataError(
                f"the {shards.ledger.part} part is one document, and sentences that do not follow are taken "
                "from another; set data.separator to what separates documents, or give more files"
            )
        self._rows = self._gathered()  # [rows, 3]: first sentence, the one after the last, target length
        self.samples_per_epoch = len(self._rows)

    def _sentences(self) -> tuple[Ids, Ids, int]:
        """Return the ends of the sentences, the document of each, and the number of divided sentences.

        A sentence longer than a row is divided into parts of half a row, so that a row can hold two parts.
        """
        ends, origins = self.shards.ends, self.shards.origins
        starts = np.concatenate([[0], ends[:-1]])
        changes = np.any(origins[1:] != origins[:-1], axis=1)
        document = np.concatenate([[0], np.cumsum(changes)])
        half = -(-self.longest // 2)
        parts = np.where(ends - starts > self.longest, -(-(ends - starts) // half), 1)  # [sentences]
        nth = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
        after = np.repeat(starts, parts) + (nth + 1) * half
        part_ends = np.where(nth + 1 == np.repeat(parts, parts), np.repeat(ends, parts), after)
        return part_ends, np.repeat(document, parts), int((parts > 1).sum())

    def _gathered(self) -> Ids:
        """Gather the sentences of each document into rows: [rows, 3]."""
        ends = self._ends
        rows: list[tuple[int, int, int]] = []
        # one draw for each row, by its first sentence
        draw = keyed(self.seed, Purpose.SHORT_ROW, np.arange(len(ends), dtype=np.uint64))
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

    def _texts(
        self, epoch: Numbers, row: Numbers, drawn: Numbers
    ) -> tuple[list[tuple[Ids, ...]], NDArray[np.bool_]]:
        draws = _Draws(keyed(self.seed, Purpose.SENTENCE_PAIR, drawn))
        pairs = [self._pair(number, i, draws) for i, number in enumerate(row.tolist())]
        return [(one, two) for one, two, _ in pairs], np.array([follows for _, _, follows in pairs])

    def _pair(self, row: int, i: int, draws: _Draws) -> tuple[Ids, Ids, bool]:
        """Return the two texts of ``row``, sample ``i`` of its batch, and whether the second follows."""
        first, stop, aim = self._rows[row].tolist()
        middle = first + 1 + (draws.below(stop - first - 1, i) if stop - first > 1 else 0)
        one = self._text(first, middle)
        following = stop - first > 1 and draws.below(2, i) == 0
        two = self._text(middle, stop) if following else self._other(first, aim - len(one), i, draws)
        return (*_truncated(one, two, self.longest, i, draws), following)

    def _other(self, sentence: int, length: int, i: int, draws: _Draws) -> Ids:
        """Return about ``length`` tokens, at least a sentence, from a random place of another document."""
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

    def document_ids(self, start: int, count: int) -> list[str]:
        """``file#number`` of the documents whose sentences these samples begin with, for error reports."""
        _, rows = self._rows_of(start, count)
        sentences = self._rows[rows.astype(np.int64), 0]
        begins = np.where(sentences > 0, self._ends[sentences - 1], 0)
        documents = np.unique(np.searchsorted(self.shards.ends, begins, side="right"))
        return sorted({self.shards.document_name(document) for document in documents.tolist()})

    @property
    def ledger(self) -> Ledger:
        """The ledger of the shards, with a note on the rows and the divided sentences."""
        ledger, rows = self.shards.ledger, self._rows
        single = int((rows[:, 1] - rows[:, 0] == 1).sum())
        several = len(rows) - single
        note = (
            f"order: {len(rows):,} rows of up to {self.seq_len:,} tokens, of {len(self._firsts) - 1:,} "
            f"documents; the second text follows in half of the {several:,} that are several sentences, "
            f"{several / 2 / len(rows):.0%} of all"
        )
        cut = {f"sentence(s) longer than a row's {self.longest:,} tokens, divided": self.divided}
        return replace(
            ledger, unit="sentence", cut={**ledger.cut, **cut}, notes=(*ledger.notes, note), packed_share=None
        )


class _Draws:
    """One sequence of random numbers (SplitMix64, Steele, Lea and Flood 2014) for each of ``keys`` [B]."""

    def __init__(self, keys: NDArray[np.uint64]) -> None:
        self._states: list[int] = keys.tolist()

    def bits(self, i: int) -> int:
        """Draw 64 random bits from sequence ``i``."""
        self._states[i] = x = (self._states[i] + 0x9E3779B97F4A7C15) & _ALL
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _ALL
        x = (x ^ x >> 27) * 0x94D049BB133111EB & _ALL
        return x ^ x >> 31

    def below(self, n: int, i: int) -> int:
        """Draw one of 0 to n - 1 from sequence ``i``."""
        return self.bits(i) % n

    def heads(self, n: int, i: int) -> int:
        """Toss ``n`` fair coins from sequence ``i`` and return how many show heads."""
        return sum((self.bits(i) & ((1 << min(64, n - at)) - 1)).bit_count() for at in range(0, n, 64))


def _truncated(one: Ids, two: Ids, longest: int, i: int, draws: _Draws) -> tuple[Ids, Ids]:
    """Remove tokens at random ends of the longer text until both have ``longest`` tokens together."""
    over = len(one) + len(two) - longest
    if over <= 0:
        return one, two
    first = min(over, abs(len(one) - len(two)))  # removed from the longer text until both are equal
    in_turns = over - first
    removed = [in_turns // 2, in_turns - in_turns // 2]
    removed[0 if len(one) > len(two) else 1] += first
    kept = []
    for text, n in zip((one, two), removed, strict=True):
        front = draws.heads(n, i)
        kept.append(text[front : len(text) - (n - front)])
    return kept[0], kept[1]
