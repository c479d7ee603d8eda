"""Words that keep company: ``new york`` becomes the word ``new_york`` (Mikolov et al. 2013, arXiv:1310.4546,
section 4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from wordloom.errors import VectorError

__all__ = ["JOINER", "Phrases"]

JOINER = "_"
MOST_PAIRS = 40_000_000  # distinct words and pairs counted at a time, as in gensim


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
                raised by one.
            progress: told the running words so far, after each text.

        Raises:
            VectorError: a setting is below 1, or the threshold is not above 0.
        """
        if min_count < 1 or most_pairs < 1 or threshold <= 0:
            raise VectorError(
                "phrases need min_count and most_pairs of 1 or more and a threshold above 0, not "
                f"{min_count}, {most_pairs} and {threshold:g}"
            )
        words: Counter[str] = Counter()
        pairs: Counter[tuple[str, str]] = Counter()
        seen = pruned = 0
        for text in texts:
            words.update(text)
            pairs.update(pairwise(text))
            seen += len(text)
            while len(words) + len(pairs) > most_pairs:
                pruned += 1
                words = Counter({word: n for word, n in words.items() if n > pruned})
                pairs = Counter({pair: n for pair, n in pairs.items() if n > pruned})
            if progress is not None:
                progress(seen)
        different = len(words) + len(pairs)
        found = {}
        for (first, second), n in pairs.items():
            if n < min_count or not words[first] or not words[second]:
                continue
            score = (n - min_count) / words[first] / words[second] * different
            if score > threshold:
                found[first, second] = score
        return cls(found, pruned_below=pruned)

    def join(self, words: Sequence[str]) -> list[str]:
        """``words`` with every pair joined, from the left: of ``a b c`` with both pairs known, ``a_b c``."""
        joined: list[str] = []
        pairs, i, last = self.pairs, 0, len(words) - 1
        while i <= last:
            if i < last and (words[i], words[i + 1]) in pairs:
                joined.append(f"{words[i]}{JOINER}{words[i + 1]}")
                i += 2
            else:
                joined.append(words[i])
                i += 1
        return joined

    def __len__(self) -> int:
        return len(self.pairs)
