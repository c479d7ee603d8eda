"""FastTextVectors: a word's vector is the mean of its row and its n-grams' rows.

An unseen word has the mean of its n-grams' rows.  Names and answers are those of gensim's
``FastTextKeyedVectors``, with two differences: an unseen word without n-grams raises an error, where gensim
returns zeros, and ``</s>`` has no n-grams, as in fastText.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import VectorError
from wordloom.threads import cores, run_on_threads
from wordloom.vectors.fasttext.subwords import Subwords
from wordloom.vectors.store.keyed import KeyedVectors
from wordloom.vectors.store.refusals import UnknownWordError
from wordloom.vectors.store.word_store import Key, Vector

_WORDS_AT_ONCE = 1 << 14  # words that a thread averages at a time
_CHECKED = 1 << 20  # components checked at a time, 4 MiB


class FastTextVectors(KeyedVectors):
    """The vectors of V words, and of unseen words with n-grams.

    ``word in wv`` tests for a vector, and ``word in wv.key_to_index`` for one of the V words.  The answers of
    ``most_similar`` and other queries are always among the V words; the questions need not be.

    Attributes:
        vectors_vocab: [V, D] float32, the words' own rows.
        vectors_ngrams: [buckets, D] float32, the n-grams' rows.
        subwords: the n-grams of words.
        vectors: [V, D] float32, the words' vectors, computed on all processors when a query first needs all
            of them.
    """

    def __init__(
        self,
        words: Iterable[str],
        vectors_vocab: NDArray[Any],
        vectors_ngrams: NDArray[Any],
        subwords: Subwords,
        *,
        counts: NDArray[np.int64] | None = None,
        vectors: NDArray[np.float32] | None = None,
        check: bool = True,
    ) -> None:
        """Take the rows without a copy if they are float32; they may be unaligned in a mapped file.

        Args:
            words: V words.
            vectors_vocab: [V, D].
            vectors_ngrams: [buckets, D].
            subwords: with as many ``buckets`` as there are rows.
            counts: [V], the count of each word in training.
            vectors: [V, D], if they were computed before.
            check: check all rows for numbers that are not finite.

        Raises VectorError if the sizes differ, a word occurs twice, or a row is not finite.
        """
        self._take_words(words, vectors_vocab, counts)
        V, D = vectors_vocab.shape
        if vectors_ngrams.shape != (subwords.buckets, D):
            raise VectorError(
                f"n-gram vectors of shape {vectors_ngrams.shape} do not fit {subwords.buckets:,} buckets and "
                f"words' vectors of shape {vectors_vocab.shape}; give one row for each bucket"
            )
        if vectors is not None:
            if vectors.shape != (V, D):
                raise VectorError(f"vectors of shape {vectors.shape} do not fit own rows of shape {(V, D)}")
            self.vectors = vectors
        self.vectors_vocab: Vector = _float32(vectors_vocab)
        self.vectors_ngrams: Vector = _float32(vectors_ngrams)
        self.subwords = subwords
        if check:
            self._refuse_non_finite()

    def _refuse_non_finite(self) -> None:
        if (row := broken_row(self.vectors_vocab)) is not None:
            raise VectorError(
                f"the row of {self.index_to_key[row]!r} (word number {row + 1:,}) is not finite; train again"
            )
        if (row := broken_row(self.vectors_ngrams)) is not None:
            raise VectorError(f"the n-gram row number {row + 1:,} is not finite; train again")

    @property
    def vector_size(self) -> int:
        """The number of components D."""
        return int(self.vectors_vocab.shape[1])

    @cached_property
    def vectors(self) -> Vector:  # type: ignore[override]
        if not self.subwords:
            return np.require(self.vectors_vocab, requirements=["C", "A"])
        from wordloom.vectors.fasttext.subword_kernels import average

        out = np.empty(self.vectors_vocab.shape, dtype=np.float32)
        own, ngrams = map(np.ascontiguousarray, (self.vectors_vocab, self.vectors_ngrams))

        def make(number: int) -> None:
            some = slice(number * _WORDS_AT_ONCE, (number + 1) * _WORDS_AT_ONCE)
            starts, ids = self.subwords.table(self.index_to_key[some])
            average(own[some], ngrams, starts, ids, out[some])

        run_on_threads(cores(), make, -(-len(out) // _WORDS_AT_ONCE))
        return out

    def __contains__(self, key: object) -> bool:
        return self.has_index_for(key) or bool(self._ngrams(key))

    def get_vector(self, key: Key, norm: bool = False) -> Vector:
        """Return the read-only vector [D] of a word, scaled to length 1 if ``norm``.

        Raises UnknownWordError if the word is not in the vocabulary, and has no n-grams.
        """
        vector = self._vector_of(key)
        if norm:
            vector = vector / (np.linalg.norm(vector) or np.float32(1))
        vector.setflags(write=False)  # it may be a view of ``vectors``
        return vector

    def _vector_of(self, key: Key) -> Vector:
        row = self._row(key)
        if row is not None and "vectors" in self.__dict__:
            return self.vectors[row]
        ids = self._ngrams(self.index_to_key[row] if row is not None else key)
        parts = self.vectors_ngrams[ids]
        if row is not None:
            parts = np.concatenate([self.vectors_vocab[row : row + 1], parts])
        if not len(parts):
            raise UnknownWordError(key, lambda: self._hint(key))
        total: Vector = parts.sum(axis=0)  # row by row, as in ``vectors``
        return total / np.float32(len(parts))

    def _several(self, keys: Iterable[Key]) -> Vector:
        rows = [self.get_vector(key) for key in keys]
        return np.stack(rows) if rows else np.empty((0, self.vector_size), dtype=np.float32)

    def _ngrams(self, key: object) -> list[int]:
        try:
            return self.subwords.ngrams(key) if isinstance(key, str) else []
        except VectorError:  # half a surrogate pair
            return []

    def _hint(self, key: object) -> str:
        if not isinstance(key, str) or not self.subwords:
            return super()._hint(key)
        near = self._near(key)
        advice = f"did you mean {' or '.join(map(repr, near))}?" if near else "give another word"
        lengths = f"{self.subwords.min_n} to {self.subwords.max_n} characters"
        return f" and has no n-grams of {lengths}, brackets included; {advice}"

    def get_sentence_vector(self, words: Sequence[Key]) -> Vector:
        """Return the mean [D] of words' vectors scaled to length 1, as fastText does for unsupervised models.

        Args:
            words: a list of words, or a text with white space between words.

        Raises:
            UnknownWordError: a word has no vector.
            VectorError: there are no words.
        """
        return self.get_mean_vector(words.split() if isinstance(words, str) else words, ignore_missing=False)

    def _keep(self, words: list[str], vectors: Vector, expandos: dict[str, NDArray[Any]]) -> None:
        raise VectorError(
            "vectors with n-grams cannot be added, replaced or sorted; use KeyedVectors(wv.index_to_key, "
            "wv.vectors), which has no n-grams"
        )


def broken_row(matrix: NDArray[np.float32]) -> int | None:
    """Return the first row of ``matrix`` [n, D] that is not finite, or None."""
    step = max(1, _CHECKED // max(1, matrix.shape[1]))
    for first in range(0, len(matrix), step):
        # isfinite is slow on unaligned numbers, so it reads a copy
        finite = np.isfinite(np.array(matrix[first : first + step]))
        if not finite.all():
            return first + int((~finite.all(axis=1)).argmax())
    return None


def _float32(rows: NDArray[Any]) -> Vector:
    return rows if rows.dtype == np.float32 else rows.astype(np.float32)
