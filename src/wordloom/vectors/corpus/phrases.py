"""Words that keep company: ``new york`` becomes the word ``new_york`` (Mikolov et al. 2013, arXiv:1310.4546,
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

__all__ = ["JOINER", "Joining", "Phrases", "read_phrases", "write_phrases"]

JOINER = "_"
FILE = "phrases.json"
MOST_PAIRS = 40_000_000  # distinct words and pairs counted at a time, as in gensim

_AT_ONCE = 1 << 22  # running words counted in one go
_TOLD = 1 << 16  # running words between two calls of progress
_END = -1  # stands where a text ends, among the numbers of words


class Phrases:
    """Pairs of words that occur together more often than chance has it.

    Attributes:
        pairs: (first, second) -> score.
        pruned_below: words and pairs counted so often or less were dropped for lack of memory; 0: none.
    """

    def __init__(self, pairs: dict[tuple[str, str], float], *, pruned_below: int = 0) -> None:
        self.pairs = pairs
        self.pruned_below = pruned_below

    @classmethod
    def learn(
        cls,
        texts: Iterable[Sequence[str]],
        *,
        min_count: int = 5,
        threshold: float = 10.0,
        most_pairs: int = MOST_PAIRS,
        progress: Callable[[int], None] | None = None,
    ) -> Phrases:
        """Find the pairs that score above ``threshold``.

        The score is that of gensim's default scorer: (n(a b) - min_count) / n(a) / n(b) times the number of
        different words and pairs.  A pair must occur ``min_count`` times.

        Args:
            texts: lists of words, read once.
            min_count, threshold: see above; a lower threshold joins more.
            most_pairs: whenever more words and pairs are at hand, the rarest are dropped and the bar is
                raised by one, as word2phrase.c does.
            progress: told the running words so far, now and then.

        Raises:
            VectorError: a setting is below 1, or the threshold is not above 0.
        """
        return cls.learn_in_stretches(
            ((text, True) for text in texts),
            min_count=min_count,
            threshold=threshold,
            most_pairs=most_pairs,
            progress=progress,
        )

    @classmethod
    def learn_in_stretches(
        cls,
        stretches: Iterable[tuple[Sequence[str], bool]],
        *,
        min_count: int = 5,
        threshold: float = 10.0,
        most_pairs: int = MOST_PAIRS,
        progress: Callable[[int], None] | None = None,
    ) -> Phrases:
        """:meth:`learn`, from texts of any length: (words, whether they end their text) at a time."""
        if min_count < 1 or most_pairs < 1 or threshold <= 0:
            raise VectorError(
                "phrases need min_count and most_pairs of 1 or more and a threshold above 0, not "
                f"{min_count}, {most_pairs} and {threshold:g}"
            )
        counts = _PairCounts(most_pairs)
        seen = told = 0
        for words, last in stretches:
            counts.add(words, last=last)
            seen += len(words)
            if progress is not None and seen - told >= _TOLD:
                progress(seen)
                told = seen
        counts.settle()
        if progress is not None:
            progress(seen)
        return cls(counts.scores(min_count, threshold), pruned_below=counts.pruned)

    def join(self, words: Sequence[str]) -> list[str]:
        """``words`` with every pair joined, from the left: of ``a b c`` with both pairs known, ``a_b c``."""
        joined, left = self.join_all_but_last(words)
        return joined + left

    def join_all_but_last(self, words: Sequence[str]) -> tuple[list[str], list[str]]:
        """``words`` joined, and apart the last one where it stands alone: what follows may join it."""
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
    """Joins the words of texts, stretch after stretch, to what :meth:`Phrases.join` makes of whole texts."""

    def __init__(self, passes: Sequence[Phrases]) -> None:
        """``passes`` are applied one after another."""
        self._passes = list(passes)
        self._held: list[list[str]] = [[] for _ in self._passes]  # the last word, until the next one is known

    def push(self, words: list[str], *, last: bool) -> list[str]:
        """What ``words``, the next of a text, settle; after its ``last`` ones, all that is left."""
        for number, one in enumerate(self._passes):
            words, held = one.join_all_but_last([*self._held[number], *words])
            if last:
                words, held = words + held, []
            self._held[number] = held
        return words


class _PairCounts:
    """How often words and pairs of neighbours occur, in 16 bytes a pair.

    Words have numbers from 0.  The pair of words a and b is the key a << 32 | b; keys stand in order.
    A pair never outlives its words: it is as rare as they are, or rarer.
    """

    def __init__(self, most: int) -> None:
        self._most, self.pruned = most, 0
        self._ids: defaultdict[str, int] = defaultdict(count().__next__)
        self._words: NDArray[np.int64] = np.zeros(0, dtype=np.int64)  # by number
        self._keys: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._pairs: NDArray[np.int64] = np.zeros(0, dtype=np.int64)  # by place in keys
        self._waiting: list[int] = []
        self._counted = 0  # of those waiting, words counted before, whose pairs were not

    def add(self, words: Sequence[str], *, last: bool) -> None:
        self._waiting.extend(map(self._ids.__getitem__, words))
        if last:
            self._waiting.append(_END)
        if len(self._waiting) >= _AT_ONCE:
            self.settle()

    def settle(self) -> None:
        """Count what is waiting, and drop what is rare while there is too much."""
        found = np.array(self._waiting, dtype=np.int64)
        fresh = found[self._counted :]
        words = np.bincount(fresh[fresh != _END], minlength=len(self._ids))
        words[: len(self._words)] += self._words
        self._words = words
        first, second = found[:-1], found[1:]
        inside = (first != _END) & (second != _END)
        self._add_pairs(*np.unique(first[inside] << 32 | second[inside], return_counts=True))
        self._waiting = [] if not len(found) or found[-1] == _END else [int(found[-1])]
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
        numbers = np.cumsum(stays) - 1  # in the same order, so keys stay in theirs
        self._waiting = [int(numbers[i]) for i in self._waiting if stays[i]]
        kept = list(compress(self._ids, stays.tolist()))
        self._ids = defaultdict(count(len(kept)).__next__, zip(kept, range(len(kept)), strict=True))
        keys = self._keys[pairs]
        self._keys, self._pairs = numbers[keys >> 32] << 32 | numbers[keys & 0xFFFFFFFF], self._pairs[pairs]
        self._words = self._words[stays]

    def scores(self, min_count: int, threshold: float) -> dict[tuple[str, str], float]:
        """The pairs that occur ``min_count`` times and score above ``threshold``."""
        often = self._pairs >= min_count
        keys, n = self._keys[often], self._pairs[often]
        first, second = keys >> 32, keys & 0xFFFFFFFF
        different = len(self._ids) + len(self._keys)
        scores = (n - min_count) / self._words[first] / self._words[second] * different
        high = scores > threshold
        names = list(self._ids)
        found = zip(first[high].tolist(), second[high].tolist(), scores[high].tolist(), strict=True)
        return {(names[a], names[b]): score for a, b, score in found}


def write_phrases(phrases: Sequence[Phrases], folder: Path) -> None:
    """Write the pairs and scores of each pass to ``phrases.json`` in ``folder``."""
    passes = [[[*pair, score] for pair, score in one.pairs.items()] for one in phrases]
    write_text(folder / FILE, json.dumps(passes, ensure_ascii=False))


def read_phrases(folder: Path) -> list[Phrases]:
    """What :func:`write_phrases` kept; none where there is no such file.

    Raises OSError and ValueError for a file that cannot be read, or holds something else.
    """
    if not (folder / FILE).exists():
        return []
    passes = json.loads((folder / FILE).read_text(encoding="utf-8"))
    return [Phrases({(a, b): score for a, b, score in one}) for one in passes]
