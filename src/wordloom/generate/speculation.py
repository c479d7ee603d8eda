"""Speculation without a draft model: guess the next tokens from n-grams, and check them in one pass.

A model reads several tokens in little more than the time of one.  So a step reads the last token of a row
with the tokens that a :class:`Drafter` expects after it, and draws at each place from the logits there, with
the row's own generator, as long as what is drawn equals what was expected.  The ids and log-probabilities are
those of a generation without drafts, bit for bit, because the compiled decoding programs compute a row's
logits with the same bits for any number of tokens at once (Leviathan et al. 2023, arXiv:2211.17192, have the
idea for draft models; Saxena 2023 that of n-grams of the prompt).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

FIRST_LENGTH = 4  # of a row's drafts


class Drafter(Protocol):
    """Expects the next tokens of one row."""

    def draft(self, ids: Sequence[int], most: int) -> list[int]:
        """Return at most ``most`` tokens that may follow the row's ``ids``, which only ever grow."""
        ...


NewDrafter: TypeAlias = Callable[[], Drafter]
"""Makes a drafter for a new row."""


class DraftLength:
    """How long a row's drafts are: twice as long after a draft that was right, half after a wrong one."""

    def __init__(self) -> None:
        self.length = FIRST_LENGTH

    def update(self, accepted: int, drafted: int) -> None:
        """Take into account that ``accepted`` of ``drafted`` tokens were drawn."""
        if accepted == drafted:
            self.length = min(2 * self.length, 64)
        elif 2 * accepted < drafted:
            self.length = max(1, self.length // 2)


class Lookup:
    """Expects what followed the last tokens where they occurred before in the same row.

    The longest of the last 4, 3 and 2 tokens that occurred before count, at the place where they did last.
    """

    sizes = (4, 3, 2)

    def __init__(self) -> None:
        self.indexed = 0
        self.places: dict[tuple[int, ...], int] = {}  # n-gram -> the place after it

    def draft(self, ids: Sequence[int], most: int) -> list[int]:
        """See :meth:`Drafter.draft`."""
        for end in range(self.indexed, len(ids)):  # n-grams that end before the last token
            for n in self.sizes:
                if n <= end:
                    self.places[tuple(ids[end - n : end])] = end
        self.indexed = max(self.indexed, len(ids))
        for n in self.sizes:
            place = self.places.get(tuple(ids[-n:])) if n <= len(ids) else None
            if place is not None:
                return list(ids[place : place + most])
        return []


class CorpusNgrams:
    """Expects what follows the last tokens most often in a corpus.

    Attributes:
        vocab_size: V; the code of a context is its number in base V.
        contexts: For n = 3 and 2, the sorted codes of the contexts of n tokens that occur twice or more.
        followers: The most frequent token after each.
        reused: The table was read from a file.
    """

    sizes = (3, 2)
    reused = False

    def __init__(
        self, vocab_size: int, contexts: list[NDArray[np.uint64]], followers: list[NDArray[np.int64]]
    ) -> None:
        self.vocab_size, self.contexts, self.followers = vocab_size, contexts, followers

    @classmethod
    def count(cls, tokens: NDArray[np.integer], vocab_size: int) -> Self:
        """Count the n-grams of ``tokens`` [N]."""
        found = [_most_frequent(tokens, n, vocab_size) for n in cls.sizes]
        return cls(vocab_size, [contexts for contexts, _ in found], [after for _, after in found])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the table as arrays by name, which :meth:`from_arrays` reads."""
        arrays: dict[str, NDArray[Any]] = {"vocab_size": np.array(self.vocab_size)}
        for n, contexts, followers in zip(self.sizes, self.contexts, self.followers, strict=True):
            arrays |= {f"contexts_{n}": contexts, f"followers_{n}": followers}
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return the table of these arrays; raises KeyError where one is missing."""
        contexts = [arrays[f"contexts_{n}"] for n in cls.sizes]
        return cls(int(arrays["vocab_size"]), contexts, [arrays[f"followers_{n}"] for n in cls.sizes])

    def __call__(self) -> CorpusNgrams:
        """Return the drafter of a new row: the table, which all rows share."""
        return self

    def draft(self, ids: Sequence[int], most: int) -> list[int]:
        """See :meth:`Drafter.draft`."""
        text = list(ids[-self.sizes[0] :])
        drafted: list[int] = []
        while len(drafted) < most:
            token = self._follower(text)
            if token is None:
                break
            drafted.append(token)
            text = [*text, token][-self.sizes[0] :]
        return drafted

    def _follower(self, text: list[int]) -> int | None:
        for n, contexts, followers in zip(self.sizes, self.contexts, self.followers, strict=True):
            if n <= len(text) and len(contexts):
                code = np.uint64(_code(text[-n:], self.vocab_size))
                place = int(contexts.searchsorted(code))
                if place < len(contexts) and contexts[place] == code:
                    return int(followers[place])
        return None


def _code(context: Sequence[int], vocab_size: int) -> int:
    code = 0
    for token in context:
        code = code * vocab_size + token
    return code


def _most_frequent(
    tokens: NDArray[np.integer], n: int, vocab_size: int
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the codes of contexts of n tokens that occur at least twice, sorted, and their followers.

    The follower is the token that comes most often, and of equal ones the lowest.
    """
    empty = np.empty(0, np.uint64), np.empty(0, np.int64)
    if len(tokens) <= n or vocab_size ** (n + 1) >= 1 << 64:
        return empty
    codes = np.zeros(len(tokens) - n, np.uint64)
    for i in range(n + 1):
        codes *= np.uint64(vocab_size)
        codes += tokens[i : len(tokens) - n + i].astype(np.uint64)
    grams, counts = np.unique(codes, return_counts=True)
    contexts, followers = grams // np.uint64(vocab_size), (grams % np.uint64(vocab_size)).astype(np.int64)
    order = np.lexsort((followers, -counts, contexts))
    first = np.ones(len(order), bool)
    first[1:] = contexts[order[1:]] != contexts[order[:-1]]
    totals = np.add.reduceat(counts[order], np.flatnonzero(first))
    kept = order[first][totals > 1]
    return contexts[kept], followers[kept]
