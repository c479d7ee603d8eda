"""Queries of word vectors, such as nearest words and similarities, with gensim's method names."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from numbers import Real
from typing import Any, Protocol, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import VectorError
from wordloom.vectors.store.refusals import QuestionError
from wordloom.vectors.store.word_store import (
    Key,
    Vector,
    WordStore,
    as_vectors,
    lengths,
    nonzero,
    whole_number,
)

Term: TypeAlias = "Key | Vector | tuple[Key | Vector, float]"
Terms: TypeAlias = "Term | Iterable[Term] | None"
Answers: TypeAlias = "list[tuple[str, float]]"
K = TypeVar("K", bound="str | int")

_CACHED = 1 << 18  # components, 1 MiB: fits into the cache of a core


class Indexer(Protocol):
    """A search for the neighbours of a vector [D], such as an approximate index."""

    def most_similar(self, vector: Vector, num_neighbors: int, /) -> Answers: ...


class Questions(WordStore):
    """A :class:`WordStore` with queries.  Every method that takes a word also takes the number of its row."""

    def get_mean_vector(
        self,
        keys: Iterable[Term],
        weights: Sequence[float] | NDArray[Any] | None = None,
        pre_normalize: bool = True,
        post_normalize: bool = False,
        ignore_missing: bool = True,
    ) -> Vector:
        """Return the mean [D] of words and vectors: sum(weight * vector) / sum(abs(weight)).

        Args:
            keys: words, vectors [D], or pairs of either with a weight.
            weights: one weight for each key.  The default weight is 1.
            pre_normalize: first scale words' vectors to length 1.  Vectors in ``keys`` stay as they are.
            post_normalize: scale the mean to length 1.
            ignore_missing: skip words without vectors.  If no other words remain, the mean is 0.

        Raises:
            UnknownWordError: a word has no vector, and ``ignore_missing`` is false.
            QuestionError: there are no keys, the number of weights differs, or a vector is not [D].
        """
        terms = [_weighed(key, 1.0) for key in keys]
        if weights is not None:
            if len(weights) != len(terms):
                raise QuestionError(f"{len(terms)} keys have {len(weights)} weights; give one for each")
            terms = [_weighed((key, weight), 1.0) for (key, _), weight in zip(terms, weights, strict=True)]
        if not terms:
            raise QuestionError("the mean of no words is not defined; give at least one")
        if ignore_missing:
            terms = [(key, weight) for key, weight in terms if _is_vector(key) or key in self]
        mean = self._mean(terms, normalize=pre_normalize)
        return _unit(mean) if post_normalize else mean

    def _mean(self, terms: Sequence[tuple[Key | Vector, float]], *, normalize: bool) -> Vector:
        return self._sum(terms, normalize=normalize) / (sum(abs(weight) for _, weight in terms) or 1.0)

    def _sum(self, terms: Iterable[tuple[Key | Vector, float]], *, normalize: bool) -> Vector:
        total = np.zeros(self.vector_size, dtype=np.float32)
        for key, weight in terms:
            total += np.float32(weight) * self._vector(key, norm=normalize)
        return total

    def _vector(self, key: Key | Vector, *, norm: bool) -> Vector:
        """Return a word's vector, scaled to length 1 if ``norm``.  A vector is returned unchanged."""
        if not _is_vector(key):
            return self.get_vector(key, norm=norm)  # type: ignore[arg-type]
        vector = as_vectors(key)
        if vector.shape != (self.vector_size,):
            raise QuestionError(
                f"a vector of shape {vector.shape} was given where [{self.vector_size}] is needed"
            )
        return vector

    # -- nearest words ---------------------------------------------------------------------------------

    @overload
    def most_similar(
        self, positive: Terms = None, negative: Terms = None, topn: int = 10, clip_start: int = 0,
        clip_end: int | None = None, restrict_vocab: int | None = None, indexer: Indexer | None = None, *,
        dot: bool = False,
    ) -> Answers: ...  # fmt: skip
    @overload
    def most_similar(
        self, positive: Terms = None, negative: Terms = None, *, topn: None, clip_start: int = 0,
        clip_end: int | None = None, restrict_vocab: int | None = None, indexer: Indexer | None = None,
        dot: bool = False,
    ) -> Vector: ...  # fmt: skip
    def most_similar(
        self, positive: Terms = None, negative: Terms = None, topn: int | None = 10, clip_start: int = 0,
        clip_end: int | None = None, restrict_vocab: int | None = None, indexer: Indexer | None = None, *,
        dot: bool = False,
    ) -> Answers | Vector:  # fmt: skip
        """Return the words nearest, by cosine, to the mean of ``positive`` and minus ``negative``.

        Args:
            positive, negative: a word, a vector [D], or several.  A pair with a number sets the signed
                weight, which is otherwise 1 in ``positive`` and -1 in ``negative``.
            topn: the number of words.  None returns the scores [n] of all searched words.
            clip_start, clip_end: search only the rows ``vectors[clip_start:clip_end]``.
            restrict_vocab: search only this many words, instead of ``clip_start`` and ``clip_end``.
            indexer: an index that is searched for the mean instead.
            dot: rank by the dot product with the weighted sum of the vectors, without any scaling.

        Returns:
            (word, score) pairs, best first and ties in vocabulary order, without the words of the question.

        Raises:
            UnknownWordError: a word has no vector.
            QuestionError: there is no word and no vector.
        """
        if topn is not None and whole_number(topn, "topn") < 1:
            return []
        terms = [*_terms(positive, 1.0), *_terms(negative, -1.0)]
        if not terms:
            raise QuestionError("most_similar needs at least one word; give positive or negative")
        query = self._sum(terms, normalize=False) if dot else _unit(self._mean(terms, normalize=True))
        if indexer is not None and topn is not None:
            if not callable(getattr(indexer, "most_similar", None)):
                raise QuestionError(f"indexer is a {type(indexer).__name__} without most_similar(vector, n)")
            return indexer.most_similar(query, topn)
        if restrict_vocab is None:
            start, stop = (None if at is None else whole_number(at, "a row") for at in (clip_start, clip_end))
            rows = slice(*slice(start, stop or None).indices(len(self)))
        else:
            rows = slice(0, searched_rows(restrict_vocab, len(self)))
        scores = self.vectors[rows] @ query  # [n]
        if not dot:
            scores /= self._divisors[rows]
        return scores if topn is None else self._best(scores, topn, terms, rows.start)

    @overload
    def most_similar_cosmul(
        self,
        positive: Terms = None,
        negative: Terms = None,
        topn: int = 10,
        restrict_vocab: int | None = None,
    ) -> Answers: ...
    @overload
    def most_similar_cosmul(
        self, positive: Terms = None, negative: Terms = None, *, topn: None, restrict_vocab: int | None = None
    ) -> Vector: ...
    def most_similar_cosmul(
        self, positive: Terms = None, negative: Terms = None, topn: int | None = 10,
        restrict_vocab: int | None = None,
    ) -> Answers | Vector:  # fmt: skip
        """Return the words with the highest 3CosMul score (Levy & Goldberg 2014, equation 4).

        The score is the product of (1 + cos) / 2 over ``positive``, divided by that product over ``negative``
        + 1e-6.  Vectors are taken to have length 1.  ``topn`` of None returns all scores [n].

        Raises:
            UnknownWordError: a word has no vector.
            QuestionError: ``positive`` is empty, or a word has a weight.
        """
        if topn is not None and whole_number(topn, "topn") < 1:
            return []
        above, below = _terms(positive, 1.0), _terms(negative, 1.0)
        if not above:
            raise QuestionError("most_similar_cosmul needs at least one word in positive")
        if any(weight != 1.0 for _, weight in above + below):
            raise QuestionError("most_similar_cosmul takes words without weights; most_similar takes both")
        n = searched_rows(restrict_vocab, len(self))
        shifted = self._products([self._vector(key, norm=True) for key, _ in above + below], n)
        shifted /= self._divisors[:n]
        shifted += 1  # [terms, n], in 0 .. 2
        shifted /= 2
        numerator, denominator = (part.prod(axis=0) for part in np.split(shifted, [len(above)]))  # [n]
        scores = numerator / (denominator + np.float32(1e-6))
        return scores if topn is None else self._best(scores, topn, above + below)

    def _products(self, queries: Sequence[Vector], n: int) -> Vector:
        """Return [queries, n] dot products with the first n vectors.

        The time goes into reading memory.  Each block of vectors is read once and stays in the cache for all
        queries; a single matrix product takes 1.5 times as long.
        """
        products = np.empty((len(queries), n), dtype=np.float32)
        stretch = max(1, _CACHED // self.vector_size)
        for start in range(0, n, stretch):
            stop = min(start + stretch, n)
            for query, row in zip(queries, products, strict=True):
                np.dot(self.vectors[start:stop], query, out=row[start:stop])
        return products

    def _best(self, scores: Vector, topn: int, asked: Iterable[tuple[Any, float]], first: int = 0) -> Answers:
        """Return the words with the best ``scores`` [n], which belong to the rows from ``first`` on."""
        no_answers = {self._row(key) for key, _ in asked if not _is_vector(key)} - {None}
        wanted = topn + len(no_answers)
        if wanted < len(scores):
            lowest = np.partition(scores, len(scores) - wanted)[len(scores) - wanted]
            top = np.flatnonzero(scores >= lowest)  # rising, so that a stable sort keeps ties in order
        else:
            top = np.arange(len(scores))
        top = top[np.argsort(-scores[top], kind="stable")]
        best = (int(place) for place in top if int(place) + first not in no_answers)
        return [(self.index_to_key[place + first], float(scores[place])) for place in islice(best, topn)]

    @overload
    def similar_by_key(self, key: Key, topn: int = 10, restrict_vocab: int | None = None) -> Answers: ...
    @overload
    def similar_by_key(self, key: Key, topn: None, restrict_vocab: int | None = None) -> Vector: ...
    def similar_by_key(
        self, key: Key, topn: int | None = 10, restrict_vocab: int | None = None
    ) -> Answers | Vector:
        """Call :meth:`most_similar` with one word."""
        return self.most_similar([key], topn=topn, restrict_vocab=restrict_vocab)

    @overload
    def similar_by_word(self, word: Key, topn: int = 10, restrict_vocab: int | None = None) -> Answers: ...
    @overload
    def similar_by_word(self, word: Key, topn: None, restrict_vocab: int | None = None) -> Vector: ...
    def similar_by_word(
        self, word: Key, topn: int | None = 10, restrict_vocab: int | None = None
    ) -> Answers | Vector:
        """Call :meth:`most_similar` with one word."""
        return self.similar_by_key(word, topn, restrict_vocab)

    @overload
    def similar_by_vector(
        self, vector: Vector, topn: int = 10, restrict_vocab: int | None = None
    ) -> Answers: ...
    @overload
    def similar_by_vector(self, vector: Vector, topn: None, restrict_vocab: int | None = None) -> Vector: ...
    def similar_by_vector(
        self, vector: Vector, topn: int | None = 10, restrict_vocab: int | None = None
    ) -> Answers | Vector:
        """Call :meth:`most_similar` with one vector [D]."""
        return self.most_similar([vector], topn=topn, restrict_vocab=restrict_vocab)

    # -- how near --------------------------------------------------------------------------------------

    @staticmethod
    def cosine_similarities(vector_1: Vector, vectors_all: Vector) -> Vector:
        """Return the cosines [n] of a vector [D] with vectors [n, D]."""
        one, all_ = as_vectors(vector_1), as_vectors(vectors_all)
        if one.ndim != 1 or all_.ndim != 2 or all_.shape[1] != len(one):
            shapes = f"{one.shape} and {all_.shape}"
            raise QuestionError(f"vectors of shapes {shapes} were given where [D] and [n, D] are needed")
        return all_ @ _unit(one) / nonzero(lengths(all_))

    def similarity(self, w1: Key, w2: Key) -> float:
        """Return the cosine of two words."""
        return float(_unit(self.get_vector(w1)) @ _unit(self.get_vector(w2)))

    def distance(self, w1: Key, w2: Key) -> float:
        """Return 1 - cosine of two words."""
        return 1.0 - self.similarity(w1, w2)

    def distances(self, word_or_vector: Key | Vector, other_words: Iterable[Key] | None = ()) -> Vector:
        """Return 1 - cosine of a word or vector with each of ``other_words`` [n], or with all words [V]."""
        query = _unit(self._vector(word_or_vector, norm=False))
        words = [] if other_words is None else list(other_words)
        if not words:
            return 1 - self.vectors @ query / self._divisors
        others = self._several(words)
        return 1 - others @ query / nonzero(lengths(others))

    def n_similarity(self, ws1: Iterable[Term], ws2: Iterable[Term]) -> float:
        """Return the cosine of the means of two lists of words, without words that have no vector."""
        a, b = (self.get_mean_vector(ws, pre_normalize=False, post_normalize=True) for ws in (ws1, ws2))
        return float(a @ b)

    def relative_cosine_similarity(self, wa: Key, wb: Key, topn: int = 10) -> float:
        """Return the cosine of two words over the sum of the cosines of ``wa`` with its ``topn`` neighbours
        (Leeuwenberg et al. 2016, equation 1).

        Raises QuestionError if the sum is 0.
        """
        nearest = self.most_similar(wa, topn=whole_number(topn, "topn"))
        total = sum(cosine for _, cosine in nearest)
        if not total:
            near = f"the {len(nearest)} words nearest to {wa!r}"
            raise QuestionError(f"the cosines of {near} add up to 0; give another topn")
        return self.similarity(wa, wb) / total

    def wmdistance(self, document1: Iterable[Key], document2: Iterable[Key], norm: bool = True) -> float:
        """Return the Word Mover's Distance of two texts, given as lists of words.

        ``norm`` scales the vectors to length 1 first.  Words without vectors are skipped; the distance is
        infinite if a text has no other words.

        The distance is the lowest total of mass * Euclidean distance that moves the words of one text onto
        those of the other, where each word has its share of the text as mass (Kusner et al. 2015).  It is
        solved exactly as a linear program.

        Raises VectorError if the solver fails.
        """
        from scipy.optimize import linprog
        from scipy.sparse import eye_array, kron, vstack
        from scipy.spatial.distance import cdist

        counted = [Counter(word for word in words if word in self) for words in (document1, document2)]
        if not all(counted):
            return float("inf")
        rows = (np.stack([self.get_vector(word, norm=norm) for word in counts]) for counts in counted)
        costs: NDArray[np.float64] = cdist(*rows)  # [n, m]
        n, m = costs.shape
        outflow = kron(eye_array(n), np.ones((1, m)))  # [n, n * m]: sums over the mass that leaves each word
        inflow = kron(np.ones((1, n)), eye_array(m))  # [m, n * m]
        masses = [np.array(list(counts.values())) / counts.total() for counts in counted]
        solution = linprog(
            costs.ravel(), A_eq=vstack([outflow, inflow]), b_eq=np.concatenate(masses), method="highs"
        )
        if not solution.success:
            raise VectorError(f"no distance of texts of {n:,} and {m:,} words was found: {solution.message}")
        return float(solution.fun)

    # -- among words -----------------------------------------------------------------------------------

    def most_similar_to_given(self, key1: Key, keys_list: Sequence[K]) -> K:
        """Return the word of ``keys_list`` that is nearest to ``key1``."""
        if not len(keys_list):
            raise QuestionError("there are no words to choose from; give at least one")
        return keys_list[int(np.argmax([self.similarity(key1, key) for key in keys_list]))]

    def rank_by_centrality(self, words: Iterable[K], use_norm: bool = True) -> list[tuple[float, K]]:
        """Return (dot product with the mean of all, scaled to length 1; word), the most central first.

        ``use_norm`` scales the vectors to length 1 first.  Words without a vector are left out with a
        warning.

        Raises QuestionError if no word has a vector.
        """
        given = list(words)
        known = [word for word in given if word in self]
        if not known:
            raise QuestionError("none of the words has a vector; give words of the vocabulary")
        if len(known) < len(given):
            missing = [word for word in given if word not in self]
            warnings.warn(f"left out, without vectors: {', '.join(map(repr, missing))}", stacklevel=3)
        vectors = np.stack([self.get_vector(word, norm=use_norm) for word in known])
        products = vectors @ _unit(vectors.mean(axis=0))
        ranked = zip(products.tolist(), known, strict=True)
        return sorted(ranked, key=lambda pair: (pair[0], str(pair[1])), reverse=True)

    def doesnt_match(self, words: Iterable[K]) -> K:
        """Return the word farthest, by cosine, from the mean of ``words``; see :meth:`rank_by_centrality`."""
        return self.rank_by_centrality(words)[-1][1]

    def rank(self, key1: Key, key2: Key) -> int:
        """Return the rank of ``key2`` among the neighbours of ``key1``: 1 for the nearest."""
        return int(self._closer(key1, key2).sum()) + 1

    def closer_than(self, key1: Key, key2: Key) -> list[str]:
        """Return the words that are nearer to ``key1`` than ``key2``, in vocabulary order."""
        return [self.index_to_key[row] for row in np.flatnonzero(self._closer(key1, key2))]

    def _closer(self, key1: Key, key2: Key) -> NDArray[np.bool_]:
        """Return [V]: which words are nearer to ``key1`` than ``key2`` is."""
        distances = self.distances(key1)
        row1, row2 = self._row(key1), self._row(key2)
        bar = self.distances(key1, [key2])[0] if row2 is None else distances[row2]
        closer: NDArray[np.bool_] = distances < bar
        if row1 is not None:
            closer[row1] = False
        return closer


def searched_rows(restrict_vocab: int | None, n_words: int) -> int:
    """Return the number of rows that a search with ``restrict_vocab`` covers."""
    if restrict_vocab is None:
        return n_words
    if whole_number(restrict_vocab, "restrict_vocab") < 1:
        raise QuestionError(
            f"restrict_vocab {restrict_vocab} leaves no words; give 1 or more, or None for all"
        )
    return min(restrict_vocab, n_words)


def _unit(vector: Vector) -> Vector:
    """Return ``vector`` scaled to length 1; 0 stays 0."""
    return vector / (np.linalg.norm(vector) or np.float32(1))


def _is_vector(given: object) -> bool:
    return isinstance(given, np.ndarray | list)


def _weighed(given: Term, weight: float) -> tuple[Key | Vector, float]:
    """Return (word or vector, weight); ``weight`` is the default."""
    if not isinstance(given, tuple):
        return given, weight
    if not _is_pair(given) or not np.isfinite(given[1]):
        shown = ", ".join(type(part).__name__ for part in given)
        raise QuestionError(f"a tuple ({shown}) is not a word or vector and its finite weight")
    return given[0], float(given[1])


def _terms(given: Any, weight: float) -> list[tuple[Key | Vector, float]]:
    """Return one or several terms as (word or vector, weight)."""
    if given is None:
        return []
    alone = isinstance(given, str | bytes) or not isinstance(given, Iterable) or _is_pair(given)
    alone = alone or (isinstance(given, np.ndarray) and given.ndim < 2)
    return [_weighed(term, weight) for term in ([given] if alone else given)]


def _is_pair(given: object) -> bool:
    return isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Real)
