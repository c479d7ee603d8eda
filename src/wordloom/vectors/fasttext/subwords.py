"""What fastText gives vectors of their own beside words: character n-grams, and runs of words in a text.

Neither is listed anywhere.  Each is hashed to one of a number of buckets, and all that fall into a bucket
share its vector (Bojanowski et al. 2017, arXiv:1607.04606, section 3.2; Joulin et al. 2017,
arXiv:1607.01759).
Hashes are those of the C++ tool, oddities and all: else its models could not be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import VectorError

__all__ = ["END_OF_LINE", "Subwords", "word_bytes", "word_hash", "word_hashes", "word_ngrams"]

END_OF_LINE = "</s>"  # fastText's word for a line break; it has no n-grams

_MOST_BUCKETS = 2**31 - 1
_NEXT_WORD = 116049371  # by which a run of words' hash is multiplied before the next word's is added


@dataclass(frozen=True)
class Subwords:
    """The character n-grams of words, by the number of their bucket.

    A word stands in angle brackets while it is cut, so that its first and last letters differ from the same
    letters inside; the brackets alone are no n-grams.  ``</s>`` has none.

    Attributes:
        min_n, max_n: the fewest and most characters of an n-gram.  There are none where ``max_n`` is 0 or
            below ``min_n``; a ``min_n`` of 0 is as good as 1.
        buckets: how many there are; none, and there are no n-grams.

    Raises:
        VectorError: a number is negative, or ``buckets`` does not fit in 31 bits.
    """

    min_n: int = 3
    max_n: int = 6
    buckets: int = 2_000_000

    def __post_init__(self) -> None:
        for name in ("min_n", "max_n", "buckets"):
            number = getattr(self, name)
            if not 0 <= number <= _MOST_BUCKETS:
                raise VectorError(
                    f"{name} {number} is out of range; give 0 (no n-grams) to {_MOST_BUCKETS:,}"
                )

    def __bool__(self) -> bool:
        """Whether words have n-grams at all."""
        return bool(self.buckets) and max(self.min_n, 1) <= self.max_n

    def pieces(self, word: str) -> list[bytes]:
        """The n-grams of ``word`` in UTF-8, by where they begin and then by length.

        Raises VectorError for a word that has no bytes, see :func:`word_bytes`.
        """
        if not self or word == END_OF_LINE:
            return []
        raw = b"<%b>" % word_bytes(word)
        edges = [place for place, byte in enumerate(raw) if byte & 0xC0 != 0x80]  # where characters begin
        last = len(edges)
        edges.append(len(raw))
        return [
            raw[edges[start] : edges[start + n]]
            for start in range(last)
            for n in range(max(self.min_n, 1), min(self.max_n, last - start) + 1)
            if n > 1 or 0 < start < last - 1
        ]

    def ngrams(self, word: str) -> list[int]:
        """The buckets, 0 .. ``buckets`` - 1, of the n-grams of ``word``; what occurs twice is there twice.

        Raises VectorError for a word that has no bytes, see :func:`word_bytes`.
        """
        return [_fnv(piece) % self.buckets for piece in self.pieces(word)]

    def table(self, words: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """:meth:`ngrams` of V words at once: (starts [V + 1], ids [N]), the buckets of word w being
        ``ids[starts[w]:starts[w + 1]]``.

        Raises VectorError for a word that has no bytes, see :func:`word_bytes`.
        """
        if not self:
            return np.zeros(len(words) + 1, dtype=np.int64), np.zeros(0, dtype=np.int32)
        from wordloom.vectors.fasttext.subword_kernels import hash_ngrams

        raw, places = _joined(b"" if word == END_OF_LINE else b"<%b>" % word_bytes(word) for word in words)
        begun = np.zeros(len(raw) + 1, dtype=np.int64)  # characters begun before each byte
        np.cumsum(raw & 0xC0 != 0x80, out=begun[1:])
        characters = np.diff(begun[places])  # [V]
        counts = np.where(characters > 0, -2 * (self.min_n <= 1), 0)  # the brackets alone
        for n in range(max(self.min_n, 1), min(self.max_n, int(characters.max(initial=0))) + 1):
            counts += np.maximum(characters - n + 1, 0)
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        ids = np.empty(starts[-1], dtype=np.int32)
        hash_ngrams(raw, places, self.min_n, self.max_n, self.buckets, starts, ids)
        return starts, ids

    def unit_rows(
        self, words: Sequence[str], n_labels: int = 0, rare: Sequence[str] = ()
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return (starts [V + L + R + 1], rows [N]): the input rows whose mean is each word's vector.

        Row w belongs to word w, and the n-grams' rows follow after the V words'.  L labels have no rows, and
        R ``rare`` words have those of their n-grams alone.
        """
        V, L = len(words), n_labels
        (word_starts, ngrams), (rare_starts, rare_ngrams) = self.table(words), self.table(rare)
        counts = np.concatenate([np.diff(word_starts) + 1, np.zeros(L, np.int64), np.diff(rare_starts)])
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        rows = np.empty(starts[-1], dtype=np.int32)
        own = np.zeros(len(rows), dtype=bool)
        own[starts[:V]] = True
        rows[own] = np.arange(V, dtype=np.int32)
        rows[~own] = np.concatenate([ngrams, rare_ngrams]) + V
        return starts, rows


def word_bytes(word: str) -> bytes:
    """``word`` in UTF-8.  Bytes that are none, which files of fastText's may hold, are U+DC80 .. U+DCFF in a
    string, as Python's ``surrogateescape`` has it, and become what they were.

    Raises VectorError for a word with another half of a character.
    """
    try:
        return word.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise VectorError(f"the word {word!r} holds half a character; give whole ones") from None


def _joined(words: Iterable[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """All bytes, and where each word begins, the end being one more."""
    parts = list(words)
    places = np.zeros(len(parts) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, parts), dtype=np.int64, count=len(parts)), out=places[1:])
    return np.frombuffer(b"".join(parts), dtype=np.uint8), places


def _fnv(raw: bytes) -> int:
    """FNV-1a in 32 bits, except that a byte from 128 on is taken for negative, as the C++ tool did where
    ``char`` is signed and since then does everywhere."""
    value = 2166136261
    for byte in raw:
        value = (value ^ (byte if byte < 128 else byte | 0xFFFFFF00)) * 16777619 & 0xFFFFFFFF
    return value


def word_hash(word: str) -> int:
    """The hash of a whole word, 0 .. 2^32 - 1."""
    return _fnv(word_bytes(word))


def word_hashes(words: Sequence[str]) -> NDArray[np.uint32]:
    """:func:`word_hash` of V words at once, [V]."""
    from wordloom.vectors.fasttext.subword_kernels import hash_words

    raw, places = _joined(map(word_bytes, words))
    hashes = np.empty(len(words), dtype=np.uint32)
    hash_words(raw, places, hashes)
    return hashes


def word_ngrams(hashes: NDArray[Any], n: int, buckets: int) -> NDArray[np.int64]:
    """The buckets of all runs of 2 to ``n`` words in a text, by where they begin and then by length.

    A run's hash is (hash of the run before its last word) * 116049371 + hash of that word, in 64 bits, words'
    hashes being widened as signed numbers (Dictionary::addWordNgrams).

    Args:
        hashes: [T] hashes of the text's words in order, those without a vector too.
        n: the most words in a run; below 2 there are no runs.
        buckets: how many there are.  Character n-grams fall into the same.

    Raises VectorError where runs have no buckets to fall into.
    """
    T = len(hashes)
    n = min(n, T)
    if n < 2:
        return np.zeros(0, dtype=np.int64)
    if buckets < 1:
        raise VectorError(f"runs of {n} words need buckets to fall into, and there are {buckets}; give some")
    wide = np.asarray(hashes).astype(np.uint32).view(np.int32).astype(np.int64).view(np.uint64)
    run = wide.copy()
    runs = np.zeros((T, n - 1), dtype=np.uint64)
    for more in range(1, n):
        run = run[: T - more] * np.uint64(_NEXT_WORD) + wide[more:]  # arrays wrap around without a word
        runs[: T - more, more - 1] = run
    there = np.arange(T)[:, None] + np.arange(1, n) < T
    return (runs[there] % np.uint64(buckets)).astype(np.int64)
