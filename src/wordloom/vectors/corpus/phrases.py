"""Phrases: pairs such as ``new york`` become one word, ``new_york`` (Mikolov et al. 2013, arXiv:1310.4546,
section 4)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import compress, count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import VectorError
from wordloom.files import write_text

JOINER = "_"
FILE = "phrases.json"
MAX_ENTRIES = 40_000_000  # distinct words and pairs counted at a time, as in gensim

_AT_ONCE = 1 << 22  # words of text counted at a time
_REPORTED = 1 << 16  # words of text between calls of progress
_END = -1  # the end of a text, among the numbers of words


class Phrases:
    """Pairs of words that occur together more often than by chance.

    Attributes:
        pairs: (first, second) -> score.
        pruned_below: entries with this count or less were dropped during counting to save memory; 0: none.
    """

    def __init__(self, pairs: dict[tuple[str, str], float], *, pruned_below: int = 0) -> None:
        self.pairs = pairs
        self.pruned_below = pruned_below

    @classmethod
    def learn(
        cls,
        parts: Iterable[tuple[Sequence[str], bool]],
        *,
        min_count: int = 5,
        threshold: float = 10.0,
        most_pairs: int = MAX_ENTRIES,
        progress: Callable[[int], None] | None = None,
    ) -> Phrases:
        """Find the pairs that score above ``threshold``.

        The score is gensim's default: (n(a b) - min_count) / n(a) / n(b) times the number of distinct words
        and pairs.  A pair must occur ``min_count`` times.

        Args:
            parts: (words, whether they end a text), read once.
            min_count, threshold: see above; a lower threshold joins more pairs.
            most_pairs: whenever there are more distinct words and pairs, the rarest are dropped and the
                lowest count rises by one, as in word2phrase.c.
            progress: called now and then with the number of words so far.

        Raises VectorError if a setting is below 1, or the threshold is not above 0.
        """
        if min_count < 1 or most_pairs < 1 or threshold <= 0:
            raise VectorError(
                "phrases need min_count and most_pairs of 1 or more and a threshold above 0, not "
                f"{min_count}, {most_pairs} and {threshold:g}"
            )
        counts = _PairCounts(most_pairs)
        seen = reported = 0
        for words, last in parts:
            counts.add(words, last=last)
            seen += len(words)
            if progress is not None and seen - reported >= _REPORTED:
                progress(seen)
                reported = seen
        counts.flush()
        if progress is not None:
            progress(seen)
        return cls(counts.scores(min_count, threshold), pruned_below=counts.pruned)

    def join(self, words: Sequence[str]) -> list[str]:
        """Return ``words`` with pairs joined from the left: ``a b c`` becomes ``a_b c`` if both pairs are
        known.
        """
        joined, left = self.join_all_but_last(words)
        return joined + left

    def join_all_but_last(self, words: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return ``words`` joined, and a single last word, which the next word may join."""
        joined: list[str] = []
        pairs, i, last = self.pairs, 0, len(words) - 1
        while i < last:
            if (words[i], words[i + 1]) in pairs:
                joined.append(f"{words[i]}{JOINER}{words[i + 1]}")
                i += 2
            else:
                joined.append(words[i])
                i += 1
        return joined, list(words[i:])

    def __len__(self) -> int:
        return len(self.pairs)


class Joining:
    """Joins texts part by part, with the result of :meth:`Phrases.join` on complete texts."""

    def __init__(self, passes: Sequence[Phrases]) -> None:
        """Take the ``passes``, which are applied in order."""
        self._passes = list(passes)
        self._pending: list[list[str]] = [[] for _ in self._passes]  # the last word, until the next is known

    def push(self, words: list[str], *, last: bool) -> list[str]:
        """Add the next words of a text and return the words that are final; after the ``last``, all of
        them.
        """
        for number, one in enumerate(self._passes):
            words, pending = one.join_all_but_last([*self._pending[number], *words])
            if last:
                words, pending = words + pending, []
            self._pending[number] = pending
        return words


class _PairCounts:
    """Counts of words and of pairs of neighbours, in 16 bytes a pair.

    Words have numbers from 0.  The key of the words a and b is a << 32 | b; keys are sorted.  A pair is at
    most as frequent as its words, so pruning drops it first.
    """

    def __init__(self, most: int) -> None:
        self._most, self.pruned = most, 0
        self._ids: defaultdict[str, int] = defaultdict(count().__next__)
        self._words: NDArray[np.int64] = np.zeros(0, dtype=np.int64)  # counts, by number
        self._keys: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._pairs: NDArray[np.int64] = np.zeros(0, dtype=np.int64)  # counts, in the order of the keys
        self._waiting: list[int] = []
        self._counted = 0  # waiting words that are counted already, unlike their pairs

    def add(self, words: Sequence[str], *, last: bool) -> None:
        self._waiting.extend(map(self._ids.__getitem__, words))
        if last:
            self._waiting.append(_END)
        if len(self._waiting) >= _AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Count the waiting words, and drop rare entries while there are too many."""
        waiting = np.array(self._waiting, dtype=np.int64)
        fresh = waiting[self._counted :]
        words = np.bincount(fresh[fresh != _END], minlength=len(self._ids))
        words[: len(self._words)] += self._words
        self._words = words
        first, second = waiting[:-1], waiting[1:]
        inside = (first != _END) & (second != _END)
        self._add_pairs(*np.unique(first[inside] << 32 | second[inside], return_counts=True))
        self._waiting = [] if not len(waiting) or waiting[-1] == _END else [int(waiting[-1])]
        while len(self._ids) + len(self._keys) > self._most:
            self._prune()
        self._counted = len(self._waiting)

    def _add_pairs(self, keys: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        places = np.searchsorted(self._keys, keys)
        known = places < len(self._keys)
        known[known] = self._keys[places[known]] == keys[known]
        self._pairs[places[known]] += counts[known]
        self._keys = np.insert(self._keys, places[~known], keys[~known])
        self._pairs = np.insert(self._pairs, places[~known], counts[~known])

    def _prune(self) -> None:
        self.pruned += 1
        stays, pairs = self._words > self.pruned, self._pairs > self.pruned
        numbers = np.cumsum(stays) - 1  # the order stays, so keys stay sorted
        self._waiting = [int(numbers[i]) for i in self._waiting if stays[i]]
        kept = list(compress(self._ids, stays.tolist()))
        self._ids = defaultdict(count(len(kept)).__next__, zip(kept, range(len(kept)), strict=True))
        keys = self._keys[pairs]
        self._keys, self._pairs = numbers[keys >> 32] << 32 | numbers[keys & 0xFFFFFFFF], self._pairs[pairs]
        self._words = self._words[stays]

    def scores(self, min_count: int, threshold: float) -> dict[tuple[str, str], float]:
        """Return the pairs that occur ``min_count`` times and score above ``threshold``."""
        often = self._pairs >= min_count
        keys, n = self._keys[often], self._pairs[often]
        first, second = keys >> 32, keys & 0xFFFFFFFF
        distinct = len(self._ids) + len(self._keys)
        scores = (n - min_count) / self._words[first] / self._words[second] * distinct
        high = scores > threshold
        names = list(self._ids)
        scored = zip(first[high].tolist(), second[high].tolist(), scores[high].tolist(), strict=True)
        return {(names[a], names[b]): score for a, b, score in scored}


def write_phrases(phrases: Sequence[Phrases], folder: Path) -> None:
    """Write the pairs and scores of each pass to ``phrases.json`` in ``folder``."""
    passes = [[[*pair, score] for pair, score in one.pairs.items()] for one in phrases]
    write_text(folder / FILE, json.dumps(passes, ensure_ascii=False))


def read_phrases(folder: Path) -> list[Phrases]:
    """Return the phrases that :func:`write_phrases` wrote, or an empty list if there is no file.

    Raises OSError or ValueError for a file that cannot be read or has other content.
    """
    if not (folder / FILE).exists():
        return []
    passes = json.loads((folder / FILE).read_text(encoding="utf-8"))
    return [Phrases({(a, b): score for a, b, score in one}) for one in passes]
