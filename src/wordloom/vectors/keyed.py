"""KeyedVectors: words, their vectors, and the questions people ask of them.

Names and answers are those that gensim's users know (its ``KeyedVectors``, version 4).  Two things differ: a
word that has no vector is an error that says which words come near (``doesnt_match`` warns instead), and a
vector of length 0 is at cosine 0 to everything, where gensim's is NaN.
"""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import VectorError

if TYPE_CHECKING:
    from wordloom.vectors.judging import Agreement, Analogies

__all__ = ["KeyedVectors", "UnknownWordError"]

Vector: TypeAlias = NDArray[np.float32]
Key: TypeAlias = "str | int"
Term: TypeAlias = "Key | Vector | tuple[Key | Vector, float]"

_SCANNED = 4000  # words compared in full with one that is not there: difflib takes microseconds for each
_LETTERS = 64  # tried in each place of it
_CACHED = 1 << 18  # components, 1 MiB: less than a core's cache


class UnknownWordError(VectorError, KeyError):
    """A word that has no vector; a KeyError too, as gensim's users expect.

    Which words come near is looked for when the message is read, not when the error is raised: a loop that
    catches it for thousands of words does not pay for that.

    Attributes:
        key: the word.
    """

    def __init__(self, key: object, hint: str | Callable[[], str] = "") -> None:
        super().__init__(key)
        self.key = key
        self._hint = hint

    def __str__(self) -> str:
        if not isinstance(self._hint, str):
            self._hint = self._hint()
        return f"{self.key!r} is not in the vocabulary{self._hint}"

    def __reduce__(self) -> tuple[Any, ...]:
        str(self)  # the vectors stay here
        return type(self), (self.key, self._hint)


class KeyedVectors:
    """V words with a vector of D components each.

    Wherever a word is asked for, the number of its row will do.

    Attributes:
        index_to_key: the V words, by falling frequency where that is known.
        key_to_index: word -> row.
        vectors: [V, D] float32, in memory or memory-mapped.  Whoever changes it makes ``norms`` wrong.
        counts: [V] int64, how often each word occurred in training, or None.
    """

    def __init__(
        self,
        words: Iterable[str],
        vectors: NDArray[Any],
        *,
        counts: NDArray[np.int64] | None = None,
        check: bool = True,
    ) -> None:
        """Takes V ``words`` and ``vectors`` [V, D], which are made float32 and otherwise not copied.

        Raises:
            VectorError: they do not fit one another or are none at all, a word is there twice, or a vector
                is not finite (which ``check=False`` does not look at: it means reading them all).
        """
        self._take_words(words, vectors, counts)
        self.vectors: Vector = vectors if vectors.dtype == np.float32 else vectors.astype(np.float32)
        if check:
            self._refuse_non_finite()

    def _take_words(
        self, words: Iterable[str], vectors: NDArray[Any], counts: NDArray[np.int64] | None
    ) -> None:
        """Takes ``words`` and ``counts``, which must fit one another and ``vectors``."""
        self.index_to_key = list(words)
        if vectors.ndim != 2 or len(vectors) != len(self.index_to_key):
            raise VectorError(
                f"{len(self.index_to_key)} words and vectors of shape {vectors.shape} do not fit; "
                "give one row for each word"
            )
        if not vectors.size:
            raise VectorError(
                "there is not a single vector here; give one word or more, of one component or more"
            )
        if counts is not None and len(counts) != len(self.index_to_key):
            raise VectorError(f"{len(self.index_to_key)} words have {len(counts)} counts; give one for each")
        self.key_to_index = {word: row for row, word in enumerate(self.index_to_key)}
        if len(self.key_to_index) != len(self.index_to_key):
            # the dictionary kept the last row of each word
            first = next(r for r, word in enumerate(self.index_to_key) if self.key_to_index[word] != r)
            word = self.index_to_key[first]
            again = self.index_to_key.index(word, first + 1)
            raise VectorError(
                f"the word {word!r} is there twice, as number {first + 1:,} and {again + 1:,}; keep one"
            )
        self.counts = counts

    def _refuse_non_finite(self) -> None:
        with np.errstate(invalid="ignore"):  # inf - inf
            if np.isfinite(self.vectors.sum(dtype=np.float64)):  # as no sum is with such a summand
                return
        bad = np.flatnonzero(~np.isfinite(self.vectors).all(axis=1))
        if len(bad):
            others = f", nor are those of {len(bad) - 1:,} other words" if len(bad) > 1 else ""
            raise VectorError(
                f"the vector of {self.index_to_key[bad[0]]!r} (word number {bad[0] + 1:,}) is not finite"
                f"{others}; drop what is broken"
            )

    def __len__(self) -> int:
        return len(self.index_to_key)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} words, {self.vector_size} components)"

    def __contains__(self, key: object) -> bool:
        return key in self.key_to_index

    @property
    def vector_size(self) -> int:
        """D."""
        return int(self.vectors.shape[1])

    @cached_property
    def norms(self) -> Vector:
        """[V] lengths of the vectors."""
        return _lengths(self.vectors)

    @cached_property
    def _divisors(self) -> Vector:
        """[V] lengths of the vectors, 1 for those of length 0."""
        return _nonzero(self.norms)

    # -- words to vectors ------------------------------------------------------------------------------

    def __getitem__(self, key: Key | Iterable[Key]) -> Vector:
        """The vector [D] of a word, or those [n, D] of several.

        Raises:
            UnknownWordError: a word has none.
        """
        if isinstance(key, str | int | np.integer):
            return self.get_vector(key)
        return self._several(key)

    def get_index(self, key: Key) -> int:
        """The row of ``key``.

        Raises:
            UnknownWordError: there is none; its message names the words that come nearest.
        """
        row = self.key_to_index.get(key)  # type: ignore[arg-type]
        if row is not None:
            return row
        if isinstance(key, int | np.integer) and 0 <= key < len(self):
            return int(key)
        raise UnknownWordError(key, lambda: self._hint(key))

    def get_vector(self, key: Key, norm: bool = False) -> Vector:
        """[D], of length 1 where ``norm``."""
        row = self.get_index(key)
        return self.vectors[row] / self._divisors[row] if norm else self.vectors[row]

    def _several(self, keys: Iterable[Key]) -> Vector:
        """The vectors [n, D] of ``keys``."""
        return self.vectors[[self.get_index(key) for key in keys]]

    def _hint(self, key: object) -> str:
        near = self._near(key) if isinstance(key, str) else []
        if near:
            return f"; did you mean {' or '.join(map(repr, near))}?"
        return f" of {len(self):,} words; ask for one that is in index_to_key"

    def _near(self, key: str) -> list[str]:
        """At most three words that ``key`` may be a slip for, the likeliest first.

        Half a million words cannot each be compared.  What one wrong, missing, superfluous or exchanged
        letter makes of ``key`` is looked up; where that finds nothing, the frequent words of about its length
        and with its first letter are compared.
        """
        cased = dict.fromkeys([key.lower(), key.capitalize(), key.upper(), key.casefold(), key.strip()])
        found = [word for word in cased if word in self.key_to_index]
        if found:
            return found[:3]
        if len(key) > 100:  # no word: do not try every letter in every place
            return []
        letters = dict.fromkeys(key + "".join(self.index_to_key[:1000]))
        tried = set()
        for cut in range(len(key) + 1):
            before, after = key[:cut], key[cut:]
            tried.add(before + after[1:])
            tried.add(before + after[1:2] + after[:1] + after[2:])
            for letter in islice(letters, _LETTERS):
                tried.update((before + letter + after, before + letter + after[1:]))
        rows = sorted(self.key_to_index[word] for word in tried if word in self.key_to_index)
        if rows:
            return [self.index_to_key[row] for row in rows[:3]]
        like = (w for w in self.index_to_key if abs(len(w) - len(key)) <= 2 and w[:1] == key[:1])
        return difflib.get_close_matches(key, islice(like, _SCANNED), n=3, cutoff=0.7)

    def get_mean_vector(
        self,
        keys: Iterable[Term],
        weights: Sequence[float] | None = None,
        *,
        pre_normalize: bool = True,
        post_normalize: bool = False,
    ) -> Vector:
        """The mean [D] of words and vectors: sum(weight * vector) / sum(abs(weight)).

        Args:
            keys: words, vectors [D], or either in a pair with its weight.
            weights: one for each of ``keys``; 1 where neither says.
            pre_normalize: whether words' vectors are brought to length 1 first.  Vectors given are taken as
                they are.
            post_normalize: whether the mean is brought to length 1.

        Raises:
            UnknownWordError: a word has no vector.
            VectorError: there are no keys, or not as many weights, or a vector is not [D].
        """
        terms = [_weighed(key) for key in keys]
        if weights is not None:
            if len(weights) != len(terms):
                raise VectorError(f"{len(terms)} keys have {len(weights)} weights; give one for each")
            terms = [(key, float(weight)) for (key, _), weight in zip(terms, weights, strict=True)]
        if not terms:
            raise VectorError("the mean of no words is not defined; give at least one")
        total = self._sum(terms, normalize=pre_normalize)
        total /= sum(abs(weight) for _, weight in terms) or 1.0
        return total / (np.linalg.norm(total) or np.float32(1)) if post_normalize else total

    def _sum(self, terms: Iterable[tuple[Key | Vector, float]], *, normalize: bool) -> Vector:
        total = np.zeros(self.vector_size, dtype=np.float32)
        for key, weight in terms:
            total += np.float32(weight) * self._vector(key, norm=normalize)
        return total

    def _vector(self, key: Key | Vector, *, norm: bool) -> Vector:
        if isinstance(key, str | int | np.integer):
            return self.get_vector(key, norm=norm)
        vector = np.asarray(key, dtype=np.float32)
        if vector.shape != (self.vector_size,):
            raise VectorError(
                f"a vector of shape {vector.shape} was given where [{self.vector_size}] is needed"
            )
        if not np.isfinite(vector).all():
            raise VectorError("a vector was given that is not finite; nothing is near it")
        return vector

    # -- questions -------------------------------------------------------------------------------------

    @overload
    def most_similar(
        self,
        positive: Term | Iterable[Term] = ...,
        negative: Term | Iterable[Term] = ...,
        topn: int = ...,
        *,
        restrict_vocab: int | None = ...,
        dot: bool = ...,
    ) -> list[tuple[str, float]]: ...
    @overload
    def most_similar(
        self,
        positive: Term | Iterable[Term],
        negative: Term | Iterable[Term],
        topn: None,
        *,
        restrict_vocab: int | None = ...,
        dot: bool = ...,
    ) -> Vector: ...
    @overload
    def most_similar(
        self,
        positive: Term | Iterable[Term] = ...,
        negative: Term | Iterable[Term] = ...,
        *,
        topn: None,
        restrict_vocab: int | None = ...,
        dot: bool = ...,
    ) -> Vector: ...
    def most_similar(
        self,
        positive: Term | Iterable[Term] = (),
        negative: Term | Iterable[Term] = (),
        topn: int | None = 10,
        *,
        restrict_vocab: int | None = None,
        dot: bool = False,
    ) -> list[tuple[str, float]] | Vector:
        """The words nearest, by cosine, to the mean of ``positive`` and of minus ``negative``.

        Args:
            positive, negative: a word, a vector [D], or several of these.  In a pair with a number, that is
                its weight, sign and all, instead of 1 in ``positive`` and -1 in ``negative``.
            topn: how many; None gives the scores of all words, [V], and leaves out none.
            restrict_vocab: look at the first so many words alone.
            dot: rank by the raw dot product with the plain weighted sum of vectors, lengths and all.

        Returns:
            (word, score), best first and ties in the order of the vocabulary, without the words asked about.

        Raises:
            UnknownWordError: a word has no vector.
            VectorError: nothing is asked about.
        """
        terms = [*_terms(positive, 1.0), *_terms(negative, -1.0)]
        if not terms:
            raise VectorError("most_similar needs at least one word; give positive or negative")
        query = self._sum(terms, normalize=False) if dot else self.get_mean_vector(terms, post_normalize=True)
        n = self._first(restrict_vocab)
        scores = self.vectors[:n] @ query  # [n]
        if not dot:
            scores /= self._divisors[:n]
        return scores if topn is None else self._best(scores, topn, terms)

    def most_similar_cosmul(
        self,
        positive: Term | Iterable[Term] = (),
        negative: Term | Iterable[Term] = (),
        topn: int = 10,
        *,
        restrict_vocab: int | None = None,
    ) -> list[tuple[str, float]]:
        """3CosMul (Levy & Goldberg 2014, equation 4): the product of (1 + cos) / 2 with each of ``positive``,
        over that with each of ``negative`` + 1e-6.

        Raises:
            UnknownWordError: a word has no vector.
            VectorError: ``positive`` is empty, or a word has a weight: in a product there are none.
        """
        above, below = _terms(positive, 1.0), _terms(negative, 1.0)
        if not above:
            raise VectorError("most_similar_cosmul needs at least one word in positive")
        if any(weight != 1.0 for _, weight in above + below):
            raise VectorError("most_similar_cosmul takes words without weights; most_similar takes both")
        n = self._first(restrict_vocab)

        queries = [self._vector(key, norm=True) for key, _ in above + below]
        shifted = self._products([query / (np.linalg.norm(query) or np.float32(1)) for query in queries], n)
        shifted /= self._divisors[:n]
        shifted += 1  # [terms, n], in 0 .. 2
        shifted /= 2
        numerator, denominator = (part.prod(axis=0) for part in np.split(shifted, [len(above)]))  # [n]
        return self._best(numerator / (denominator + np.float32(1e-6)), topn, above + below)

    def _products(self, queries: Sequence[Vector], n: int) -> Vector:
        """[queries, n] dot products with the first n vectors.

        Memory is what takes the time: each stretch of vectors is fetched once and stays in the cache until
        all queries are through.  A single matrix product takes half as long again.
        """
        products = np.empty((len(queries), n), dtype=np.float32)
        stretch = max(1, _CACHED // self.vector_size)
        for start in range(0, n, stretch):
            stop = min(start + stretch, n)
            for query, row in zip(queries, products, strict=True):
                np.dot(self.vectors[start:stop], query, out=row[start:stop])
        return products

    def _first(self, restrict_vocab: int | None) -> int:
        if restrict_vocab is None:
            return len(self)
        if restrict_vocab < 1:
            raise VectorError(
                f"restrict_vocab {restrict_vocab} leaves no words; give 1 or more, or None for all"
            )
        return min(restrict_vocab, len(self))

    def _best(self, scores: Vector, topn: int, asked: Iterable[tuple[Any, float]]) -> list[tuple[str, float]]:
        if topn < 1:
            return []
        no_answers = {self._row(key) for key, _ in asked if not isinstance(key, np.ndarray | list)} - {None}
        wanted = topn + len(no_answers)
        if wanted < len(scores):
            lowest = np.partition(scores, len(scores) - wanted)[len(scores) - wanted]
            top = np.flatnonzero(scores >= lowest)  # rising, so that a stable sort keeps ties in order
        else:
            top = np.arange(len(scores))
        top = top[np.argsort(-scores[top], kind="stable")]
        best = (int(row) for row in top if int(row) not in no_answers)
        return [(self.index_to_key[row], float(scores[row])) for row in islice(best, topn)]

    def similar_by_word(
        self, word: Key, topn: int = 10, restrict_vocab: int | None = None
    ) -> list[tuple[str, float]]:
        """:meth:`most_similar` of one word."""
        return self.most_similar(word, topn=topn, restrict_vocab=restrict_vocab)

    def similar_by_vector(
        self, vector: Vector, topn: int = 10, restrict_vocab: int | None = None
    ) -> list[tuple[str, float]]:
        """:meth:`most_similar` of one vector [D]."""
        return self.most_similar([vector], topn=topn, restrict_vocab=restrict_vocab)

    def similarity(self, w1: Key, w2: Key) -> float:
        """Cosine of two words."""
        u, v = self[w1], self[w2]
        return float(u @ v / ((np.linalg.norm(u) or 1.0) * (np.linalg.norm(v) or 1.0)))

    def distance(self, w1: Key, w2: Key) -> float:
        """1 - cosine of two words."""
        return 1.0 - self.similarity(w1, w2)

    def distances(self, word_or_vector: Key | Vector, other_words: Sequence[Key] = ()) -> Vector:
        """1 - cosine of a word or vector with each of ``other_words``, [n], or with all words, [V]."""
        query = self._vector(word_or_vector, norm=False)
        query = query / (np.linalg.norm(query) or np.float32(1))
        if not len(other_words):
            return 1 - self.vectors @ query / self._divisors
        others = self._several(other_words)
        return 1 - others @ query / _nonzero(_lengths(others))

    def n_similarity(self, ws1: Sequence[Key], ws2: Sequence[Key]) -> float:
        """Cosine of the means of two lists of words."""
        a, b = (self.get_mean_vector(ws, pre_normalize=False, post_normalize=True) for ws in (ws1, ws2))
        return float(a @ b)

    def rank_by_centrality(self, words: Iterable[Key]) -> list[tuple[float, str]]:
        """(cosine with the mean of all, word), the most central first.

        Words that have no vector are left out, with a warning.

        Raises:
            VectorError: none has one.
        """
        given = list(words)
        known = [word for word in given if self._has(word)]
        if not known:
            raise VectorError("none of the words has a vector; give some that have")
        if len(known) < len(given):
            missing = [word for word in given if not self._has(word)]
            warnings.warn(f"without vectors, so left out: {', '.join(map(repr, missing))}", stacklevel=3)
        units = self._several(known)
        units = units / _nonzero(_lengths(units))[:, None]
        mean = units.mean(axis=0)
        cosines = units @ (mean / (np.linalg.norm(mean) or np.float32(1)))
        names = (word if isinstance(word, str) else self.index_to_key[word] for word in known)
        return sorted(zip(cosines.tolist(), names, strict=True), reverse=True)

    def _has(self, key: Key) -> bool:
        """Whether there is a vector for the word or row ``key``."""
        return self._row(key) is not None

    def _row(self, key: Key) -> int | None:
        try:
            return self.get_index(key)
        except UnknownWordError:
            return None

    def doesnt_match(self, words: Iterable[Key]) -> str:
        """The word farthest, by cosine, from the mean of all ``words``; see :meth:`rank_by_centrality`."""
        return self.rank_by_centrality(words)[-1][1]

    def rank(self, key1: Key, key2: Key) -> int:
        """The place of ``key2`` among the words by their nearness to ``key1``: 1 for the nearest."""
        return int(self._closer(key1, key2).sum()) + 1

    def closer_than(self, key1: Key, key2: Key) -> list[str]:
        """The words nearer to ``key1`` than ``key2`` is, in the order of the vocabulary."""
        return [self.index_to_key[row] for row in np.flatnonzero(self._closer(key1, key2))]

    def _closer(self, key1: Key, key2: Key) -> NDArray[np.bool_]:
        """[V], whether a word is nearer to ``key1`` than ``key2`` is."""
        distances = self.distances(key1)
        row1, row2 = self._row(key1), self._row(key2)
        bar = self.distances(key1, [key2])[0] if row2 is None else distances[row2]
        closer: NDArray[np.bool_] = distances < bar
        if row1 is not None:
            closer[row1] = False
        return closer

    # -- judgements ------------------------------------------------------------------------------------

    def evaluate_word_analogies(
        self,
        analogies: str | os.PathLike[str],
        restrict_vocab: int | None = 300_000,
        case_insensitive: bool = True,
    ) -> Analogies:
        """See :func:`wordloom.vectors.evaluate_word_analogies`."""
        from wordloom.vectors import judging

        return judging.evaluate_word_analogies(
            self, analogies, restrict_vocab=restrict_vocab, case_insensitive=case_insensitive
        )

    def evaluate_word_pairs(
        self,
        pairs: str | os.PathLike[str],
        delimiter: str = "\t",
        restrict_vocab: int | None = 300_000,
        case_insensitive: bool = True,
    ) -> Agreement:
        """See :func:`wordloom.vectors.evaluate_word_pairs`."""
        from wordloom.vectors import judging

        return judging.evaluate_word_pairs(
            self, pairs, delimiter=delimiter, restrict_vocab=restrict_vocab, case_insensitive=case_insensitive
        )


def _lengths(vectors: Vector) -> Vector:
    """[n] lengths of vectors [n, D]."""
    return np.sqrt(np.einsum("vd,vd->v", vectors, vectors))


def _nonzero(lengths: Vector) -> Vector:
    """``lengths``, with 1 for 0."""
    return np.where(lengths > 0, lengths, np.float32(1))


def _weighed(given: Term) -> tuple[Key | Vector, float]:
    return (given[0], float(given[1])) if isinstance(given, tuple) else (given, 1.0)


def _terms(given: Any, weight: float) -> list[tuple[Key | Vector, float]]:
    """One term or several, each as (word or vector, weight)."""
    if given is None:
        return []
    alone = isinstance(given, str | int | np.integer) or (isinstance(given, np.ndarray) and given.ndim == 1)
    pair = isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], int | float | np.number)
    terms = [given] if alone or pair else list(given)
    return [_weighed(term) if isinstance(term, tuple) else (term, weight) for term in terms]
