"""Character n-grams and word n-grams of fastText, and the buckets that they are hashed to.

All n-grams in a bucket share its vector (Bojanowski et al. 2017, arXiv:1607.04606, section 3.2; Joulin et al.
2017, arXiv:1607.01759).  The hashes are exactly those of the C++ tool, because its models depend on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import VectorError

END_OF_LINE = "</s>"  # fastText's word for a line break; it has no n-grams

_MOST_BUCKETS = 2**31 - 1
_NEXT_WORD = 116049371  # multiplies the hash of a word n-gram before the next word is added


@dataclass(frozen=True)
class Subwords:
    """The character n-grams of words, as numbers of buckets.

    N-grams are taken from the word in angle brackets, so that its first and last letters differ from letters
    inside.  A single bracket is not an n-gram.  ``</s>`` has no n-grams.

    Attributes:
        min_n, max_n: the lowest and highest number of characters.  There are no n-grams if ``max_n`` is 0 or
            below ``min_n``.  A ``min_n`` of 0 means 1.
        buckets: the number of buckets; 0 means no n-grams.

    Raises VectorError if a number is negative, or ``buckets`` exceeds 31 bits.
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
        """Return whether words have n-grams."""
        return bool(self.buckets) and max(self.min_n, 1) <= self.max_n

    def pieces(self, word: str) -> list[bytes]:
        """Return the n-grams of ``word`` in UTF-8, sorted by start and then by length.

        Raises VectorError for half a surrogate pair, see :func:`word_bytes`.
        """
        if not self or word == END_OF_LINE:
            return []
        raw = b"<%b>" % word_bytes(word)
        edges = [place for place, byte in enumerate(raw) if byte & 0xC0 != 0x80]  # starts of characters
        last = len(edges)
        edges.append(len(raw))
        return [
            raw[edges[start] : edges[start + n]]
            for start in range(last)
            for n in range(max(self.min_n, 1), min(self.max_n, last - start) + 1)
            if n > 1 or 0 < start < last - 1
        ]

    def ngrams(self, word: str) -> list[int]:
        """Return the buckets, 0 to ``buckets`` - 1, of the n-grams of ``word``, including repeated ones.

        Raises VectorError for half a surrogate pair, see :func:`word_bytes`.
        """
        return [_fnv(piece) % self.buckets for piece in self.pieces(word)]

    def table(self, words: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return :meth:`ngrams` of V words as (starts [V + 1], ids [N]).

        The buckets of word w are ``ids[starts[w]:starts[w + 1]]``.

        Raises VectorError for half a surrogate pair, see :func:`word_bytes`.
        """
        if not self:
            return np.zeros(len(words) + 1, dtype=np.int64), np.zeros(0, dtype=np.int32)
        from wordloom.vectors.fasttext.subword_kernels import hash_ngrams

        raw, places = _joined(b"" if word == END_OF_LINE else b"<%b>" % word_bytes(word) for word in words)
        begun = np.zeros(len(raw) + 1, dtype=np.int64)  # the number of characters that start before each byte
        np.cumsum(raw & 0xC0 != 0x80, out=begun[1:])
        characters = np.diff(begun[places])  # [V]
        counts = np.where(characters > 0, -2 * (self.min_n <= 1), 0)  # without the single brackets
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
    """Return ``word`` in UTF-8.  U+DC80 to U+DCFF become the invalid bytes that they represent.

    Raises VectorError for any other half of a surrogate pair.
    """
    try:
        return word.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise VectorError(f"the word {word!r} holds half a surrogate pair; remove it") from None


def _joined(words: Iterable[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return all bytes, and [V + 1] the start of each word and the end."""
    parts = list(words)
    places = np.zeros(len(parts) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, parts), dtype=np.int64, count=len(parts)), out=places[1:])
    return np.frombuffer(b"".join(parts), dtype=np.uint8), places


def _fnv(raw: bytes) -> int:
    """Return the 32-bit FNV-1a hash, with bytes from 128 on read as negative, as in the C++ tool."""
    value = 2166136261
    for byte in raw:
        value = (value ^ (byte if byte < 128 else byte | 0xFFFFFF00)) * 16777619 & 0xFFFFFFFF
    return value


def word_hash(word: str) -> int:
    """Return the hash of a word, 0 to 2^32 - 1."""
    return _fnv(word_bytes(word))


def word_hashes(words: Sequence[str]) -> NDArray[np.uint32]:
    """Return :func:`word_hash` of V words, [V]."""
    from wordloom.vectors.fasttext.subword_kernels import hash_words

    raw, places = _joined(map(word_bytes, words))
    hashes = np.empty(len(words), dtype=np.uint32)
    hash_words(raw, places, hashes)
    return hashes


def word_ngrams(hashes: NDArray[Any], n: int, buckets: int) -> NDArray[np.int64]:
    """Return the buckets of all word n-grams of 2 to ``n`` words, sorted by start and then by length.

    The 64-bit hash of an n-gram is (hash without its last word) * 116049371 + hash of that word.  Hashes of
    words are sign-extended to 64 bits (Dictionary::addWordNgrams).

    Args:
        hashes: [T] hashes of the words of a text in order, including words without a vector.
        n: the highest number of words; below 2 there are no word n-grams.
        buckets: the number of buckets, shared with character n-grams.

    Raises VectorError if there are no buckets.
    """
    T = len(hashes)
    n = min(n, T)
    if n < 2:
        return np.zeros(0, dtype=np.int64)
    if buckets < 1:
        raise VectorError(f"n-grams of {n} words need buckets, and there are {buckets}; give some")
    wide = np.asarray(hashes).astype(np.uint32).view(np.int32).astype(np.int64).view(np.uint64)
    ngrams = wide.copy()
    table = np.zeros((T, n - 1), dtype=np.uint64)
    for more in range(1, n):
        ngrams = ngrams[: T - more] * np.uint64(_NEXT_WORD) + wide[more:]  # [T - more], modulo 2^64
        table[: T - more, more - 1] = ngrams
    inside = np.arange(T)[:, None] + np.arange(1, n) < T  # [T, n - 1]
    return (table[inside] % np.uint64(buckets)).astype(np.int64)
