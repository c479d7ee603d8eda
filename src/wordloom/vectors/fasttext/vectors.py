"""FastTextVectors: a word's vector is the mean of its own row and of its n-grams' rows, so that a word never
seen has one too: the mean of its n-grams'.

Names and answers are those of gensim's ``FastTextKeyedVectors``.  Two things differ: a word without so much
as one n-gram is an error, where gensim gives zeros, and ``</s>`` has no n-grams, as in fastText itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import VectorError
from wordloom.text.cores import cores
from wordloom.vectors.fasttext.subwords import Subwords
from wordloom.vectors.store.keyed import Key, KeyedVectors, UnknownWordError, Vector

__all__ = ["FastTextVectors", "broken_row"]

_WORDS_AT_ONCE = 1 << 14  # averaged by a thread at a time
_CHECKED = 1 << 20  # components, 4 MiB, looked at at a time


class FastTextVectors(KeyedVectors):
    """V words and any others, with vectors of D components.

    ``word in wv`` says whether there is a vector, ``word in wv.key_to_index`` whether the word is one of the
    V.  Answers (``most_similar`` and the like) are always of the V; questions need not be.

    Attributes:
        vectors_vocab: [V, D] float32, the words' own rows.
        vectors_ngrams: [buckets, D] float32, the n-grams' rows.
        subwords: which n-grams a word has.
        vectors: [V, D] float32, the words' vectors.  Made of these when first needed, by as many threads as
            there are processors; asking for single words' does not need them.
        index_to_key, key_to_index, counts: as in :class:`KeyedVectors`.
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
        """Takes the rows as they are where they are float32, mapped from a file or not, at any byte of it.

        Args:
            words: V words.
            vectors_vocab: [V, D].
            vectors_ngrams: [buckets, D].
            subwords: as many ``buckets`` as there are rows.
            counts: [V], how often each word occurred in training.
            vectors: [V, D], where they have been made before.
            check: whether all rows are looked through for numbers that are not finite.

        Raises:
            VectorError: these do not fit one another, a word is there twice, or a row is not finite.
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
        row = broken_row(self.vectors_vocab)
        if row is not None:
            raise VectorError(
                f"the row of {self.index_to_key[row]!r} (word number {row + 1:,}) is not finite; train again"
            )
        row = broken_row(self.vectors_ngrams)
        if row is not None:
            raise VectorError(f"the n-gram row number {row + 1:,} is not finite; train again")

    @property
    def vector_size(self) -> int:
        """D."""
        return int(self.vectors_vocab.shape[1])

    @cached_property
    def vectors(self) -> Vector:  # type: ignore[override]
        if not self.subwords:
            return np.require(self.vectors_vocab, requirements=["C", "A"])
        from wordloom.vectors.fasttext.subword_kernels import average

        out = np.empty(self.vectors_vocab.shape, dtype=np.float32)
        own, ngrams = map(np.ascontiguousarray, (self.vectors_vocab, self.vectors_ngrams))

        def make(first: int) -> None:
            some = slice(first, first + _WORDS_AT_ONCE)
            starts, ids = self.subwords.table(self.index_to_key[some])
            average(own[some], ngrams, starts, ids, out[some])

        with ThreadPoolExecutor(cores()) as threads:
            for _ in threads.map(make, range(0, len(out), _WORDS_AT_ONCE)):
                pass
        return out

    def __contains__(self, key: object) -> bool:
        return self.has_index_for(key) or bool(self._ngrams(key))

    def get_vector(self, key: Key, norm: bool = False) -> Vector:
        """[D], of length 1 where ``norm``, not to be written to; of a word that is not in the vocabulary, the
        mean of its n-grams'.

        Raises:
            UnknownWordError: it is not in the vocabulary, and has no n-grams.
        """
        vector = self._made(key)
        if norm:
            vector = vector / (np.linalg.norm(vector) or np.float32(1))
        vector.setflags(write=False)  # it may be a view of ``vectors``
        return vector

    def _made(self, key: Key) -> Vector:
        row = self._row(key)
        if row is not None and "vectors" in self.__dict__:
            return self.vectors[row]
        ids = self._ngrams(self.index_to_key[row] if row is not None else key)
        parts = self.vectors_ngrams[ids]
        if row is not None:
            parts = np.concatenate([self.vectors_vocab[row : row + 1], parts])
        if not len(parts):
            raise UnknownWordError(key, lambda: self._hint(key))
        total: Vector = parts.sum(axis=0)  # row by row, as when all are made
        return total / np.float32(len(parts))

    def _several(self, keys: Iterable[Key]) -> Vector:
        found = [self.get_vector(key) for key in keys]
        return np.stack(found) if found else np.empty((0, self.vector_size), dtype=np.float32)

    def _ngrams(self, key: object) -> list[int]:
        try:
            return self.subwords.ngrams(key) if isinstance(key, str) else []
        except VectorError:  # half a character
            return []

    def _hint(self, key: object) -> str:
        if not isinstance(key, str) or not self.subwords:
            return super()._hint(key)
        near = self._near(key)
        or_else = f"did you mean {' or '.join(map(repr, near))}?" if near else "give another word"
        lengths = f"{self.subwords.min_n} to {self.subwords.max_n} characters"
        return f" and has no n-grams of {lengths}, brackets included; {or_else}"

    def get_sentence_vector(self, words: Sequence[Key]) -> Vector:
        """The mean [D] of words' vectors, each brought to length 1: fastText's, of a model that was not
        supervised.

        Args:
            words: a list of words, or a text whose words have white space between them.

        Raises:
            UnknownWordError: a word has no vector.
            VectorError: there are no words.
        """
        return self.get_mean_vector(words.split() if isinstance(words, str) else words, ignore_missing=False)

    def _keep(self, words: list[str], vectors: Vector, expandos: dict[str, NDArray[Any]]) -> None:
        raise VectorError(
            "vectors that n-grams are part of are not added to, replaced or sorted; do that with "
            "KeyedVectors(wv.index_to_key, wv.vectors), which has none"
        )


def broken_row(matrix: NDArray[np.float32]) -> int | None:
    """The first row of ``matrix`` [n, D] that is not finite."""
    step = max(1, _CHECKED // max(1, matrix.shape[1]))
    for first in range(0, len(matrix), step):
        finite = np.isfinite(np.array(matrix[first : first + step]))  # (slow where numbers lie at odd bytes)
        if not finite.all():
            return first + int((~finite.all(axis=1)).argmax())
    return None


def _float32(rows: NDArray[Any]) -> Vector:
    return rows if rows.dtype == np.float32 else rows.astype(np.float32)
