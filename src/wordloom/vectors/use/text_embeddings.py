"""Text embeddings from word vectors: mean, sum, and smooth inverse frequency (SIF).

SIF (Arora, Liang & Ma 2017, "A simple but tough-to-beat baseline for sentence embeddings", algorithm 1) gives
a word of probability p the weight a / (a + p), which is low for frequent words.  It then removes the first
principal direction of the texts' vectors, which all texts share.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import VectorError, did_you_mean
from wordloom.vectors.corpus.vocabulary import SPLITS, split_words
from wordloom.vectors.files.checkpoints import TokenVectors
from wordloom.vectors.store.keyed import KeyedVectors
from wordloom.vectors.store.refusals import UnknownWordError
from wordloom.vectors.store.word_store import Key, Vector

Method = Literal["mean", "sum", "sif"]
Frequencies: TypeAlias = "Literal['counts', 'rank'] | Mapping[str, int] | None"
Split: TypeAlias = "Literal['words', 'whitespace'] | Callable[[str], Sequence[str]]"

METHODS = ("mean", "sum", "sif")

_ROUNDING = 1e-12  # the relative rounding error of squares in float32


@dataclass
class TextReport:
    """Statistics of embedded texts.

    Attributes:
        texts: the number of texts.
        words: the number of words.
        unknown: the number of words without a vector, which are ignored.
        empty: the numbers, from 0, of texts without known words, whose rows are zero.
    """

    texts: int
    words: int
    unknown: int
    empty: list[int]

    def add(self, further: TextReport) -> None:
        """Add the statistics of another batch."""
        self.empty.extend(self.texts + place for place in further.empty)
        self.texts += further.texts
        self.words += further.words
        self.unknown += further.unknown

    def __str__(self) -> str:
        counts = f"{self.texts:,} texts, {self.words:,} words, {self.unknown:,} of them unknown"
        if not self.empty:
            return counts
        lines = ", ".join(f"{place + 1:,}" for place in self.empty[:5])
        more = f" and {len(self.empty) - 5:,} more" if len(self.empty) > 5 else ""
        return f"{counts}; rows of zeros for texts without known words: {lines}{more}"


class TextEmbedder:
    """Embeds texts as vectors [D] by the vectors of their words.

    Attributes:
        vectors: the word vectors.
        method: ``mean``, ``sum`` or ``sif``.
        weights: [V] float32, the weight of each word.
        frequencies_from: the source of SIF's probabilities: ``counts`` or ``rank``; otherwise None.
        components: [k, D] float32, the directions that are removed, or None before :meth:`fit`.
    """

    def __init__(
        self,
        vectors: KeyedVectors,
        method: Method = "mean",
        *,
        split: Split | None = None,
        lower: bool = True,
        a: float = 1e-3,
        frequencies: Frequencies = None,
        n_components: int = 1,
        components: NDArray[Any] | None = None,
    ) -> None:
        """Create an embedder.  ``sif`` also needs :meth:`fit`, or the ``components`` of an earlier fit.

        Args:
            vectors: word vectors, or a model's token vectors.
            method: ``mean`` or ``sum`` of the vectors of known words, or ``sif``.
            split: how a text is split into words: see :func:`wordloom.vectors.split_words`, or a function
                such as the result of :func:`wordloom.vectors.word_rule`.  None: ``words``, or the tokenizer
                for token vectors.
            lower: lower-case texts first, except for a tokenizer.
            a: the smoothing parameter of SIF.
            frequencies: the source of SIF's word probabilities.  ``counts`` uses the counts of the vectors.
                ``rank`` assumes Zipf's law, 1 / rank, for vectors in order of falling frequency.  A mapping
                has counts of words; missing words count 1.  None: ``counts`` if available, else ``rank``.
            n_components: the number of directions that SIF removes: 1 in the paper, 0 for none.
            components: [k, D], those of an earlier fit.

        Raises:
            VectorError: a setting is unknown or out of range, there are no counts for ``counts``, or ``rank``
                is used for token vectors, which are not sorted by frequency.
        """
        if method not in METHODS:
            raise VectorError(f"unknown method {method!r}; {did_you_mean(method, METHODS)}")
        if not a > 0:
            raise VectorError(f"a {a} is out of range; give a number above 0, usually 1e-3")
        if method == "sif" and not 0 <= n_components < vectors.vector_size:
            raise VectorError(f"n_components {n_components} is out of range: 0 to {vectors.vector_size - 1}")
        self.vectors, self.method, self.n_components = vectors, method, n_components
        self._split = _splitter(vectors, split, lower)
        self.frequencies_from: str | None = None
        self.components: Vector | None = None
        self.weights: Vector = np.ones(len(vectors), dtype=np.float32)
        self._rarest = 1.0  # the weight of an unseen word with a vector (fastText)
        if method == "sif":
            probabilities, self.frequencies_from = _probabilities(vectors, frequencies)
            self.weights = (a / (a + probabilities)).astype(np.float32)
            self._rarest = float(self.weights.max())
            if components is not None:
                self.components = self._checked(components)
            elif not n_components:
                self.components = np.zeros((0, vectors.vector_size), dtype=np.float32)

    def _checked(self, components: NDArray[Any]) -> Vector:
        components = np.atleast_2d(np.asarray(components, dtype=np.float32))
        if components.ndim != 2 or components.shape[1] != self.vectors.vector_size:
            raise VectorError(
                f"components of shape {list(components.shape)} do not fit vectors of "
                f"{self.vectors.vector_size} components; give those fitted with the same vectors"
            )
        if not np.allclose(components @ components.T, np.eye(len(components)), atol=1e-3):
            raise VectorError(
                "the components are not of length 1 and at right angles; give those of an earlier fit"
            )
        return components

    def fit(self, texts: Iterable[str], *, batch_size: int = 1024) -> TextReport:
        """Compute the components of ``texts``: the first right singular vectors of their vectors' matrix.

        The texts are read once; one batch and a matrix [D, D] are in memory.  At least ``n_components`` + 2
        different texts are needed.  With fewer, the remainders are zero or lie on one line, where every
        cosine is 1 or -1.

        Raises VectorError if the method is not ``sif``, no text has a known word, or too few texts differ.
        """
        if self.method != "sif":
            raise VectorError(f"the method {self.method!r} has nothing to fit; only 'sif' has")
        D = self.vectors.vector_size
        moment = np.zeros((D, D))
        total = TextReport(0, 0, 0, [])
        for batch in _batches(texts, batch_size):
            rows, report = self._averages(batch)
            total.add(report)
            wide = rows.astype(np.float64)
            moment += wide.T @ wide
        if len(total.empty) == total.texts:
            raise VectorError(f"none of {total.texts:,} texts has a known word; give texts in the same words")
        values, vectors = np.linalg.eigh(moment)  # by rising eigenvalue
        self._refuse_too_alike(total, int((values > _ROUNDING * values[-1]).sum()))
        self.components = vectors.T[::-1][: self.n_components].astype(np.float32)
        return total

    def _refuse_too_alike(self, texts: TextReport, rank: int) -> None:
        """Raise VectorError if the texts cannot be distinguished without the components."""
        k = self.n_components
        if not k or rank >= min(k + 2, self.vectors.vector_size):
            return
        n = texts.texts - len(texts.empty)
        given = "one text with a known word" if n == 1 else f"{n:,} texts with known words"
        result = "nothing" if rank <= k else "vectors on one line, with cosines of 1 or -1"
        raise VectorError(
            f"'sif' removes what texts share, which leaves {result} for {given}; fit on more texts "
            "(--fit-on), give the components of an earlier fit (--component), or use 'mean'"
        )

    def encode(
        self,
        sentences: str | Sequence[str],
        *,
        batch_size: int = 1024,
        show_progress_bar: bool = False,
        normalize_embeddings: bool = False,
    ) -> Vector:
        """Return the embeddings [N, D] of N texts, or [D] of one, with the arguments of
        sentence-transformers.

        A text without known words becomes a row of zeros, with a warning.

        Raises VectorError for ``sif`` before :meth:`fit`.
        """
        texts = [sentences] if isinstance(sentences, str) else list(sentences)
        embedded = np.empty((len(texts), self.vectors.vector_size), dtype=np.float32)
        total = TextReport(0, 0, 0, [])
        for start in _shown(range(0, len(texts), batch_size), show_progress_bar):
            rows, report = self.encode_batch(texts[start : start + batch_size], normalize_embeddings)
            embedded[start : start + len(rows)] = rows
            total.add(report)
        if total.empty:
            warnings.warn(str(total), stacklevel=2)
        return embedded[0] if isinstance(sentences, str) else embedded

    def encode_batch(
        self, texts: Sequence[str], normalize_embeddings: bool = False
    ) -> tuple[Vector, TextReport]:
        """Return embeddings [N, D] and statistics.  Raises VectorError for ``sif`` before :meth:`fit`."""
        if self.method == "sif" and self.components is None:
            raise VectorError("'sif' removes what texts have in common: call fit first, or give components")
        rows, report = self._averages(texts)
        if self.components is not None:
            rows -= (rows @ self.components.T) @ self.components
        if normalize_embeddings:
            lengths = np.linalg.norm(rows, axis=1, keepdims=True)
            rows /= np.where(lengths > 0, lengths, 1)
        return rows, report

    def stream(
        self, texts: Iterable[str], *, batch_size: int = 1024, normalize_embeddings: bool = False
    ) -> Iterator[tuple[list[str], Vector, TextReport]]:
        """Yield texts, their embeddings and statistics batch by batch, for files larger than memory.

        Raises VectorError for ``sif`` before :meth:`fit`.
        """
        for batch in _batches(texts, batch_size):
            yield batch, *self.encode_batch(batch, normalize_embeddings)

    def _averages(self, texts: Sequence[str]) -> tuple[Vector, TextReport]:
        """Return weighted sums [N, D] of words' vectors, divided by their number unless the method is sum."""
        from scipy.sparse import csr_matrix

        found = [self._split(text) for text in texts]
        columns, beyond = self._columns(found)
        known = [np.array([c for w in words if (c := columns[w]) >= 0], dtype=np.int64) for words in found]
        sizes = np.array([len(each) for each in known])
        at = np.concatenate([*known, np.zeros(0, dtype=np.int64)])
        starts = np.concatenate([[0], np.cumsum(sizes)])
        V = len(self.vectors)
        weights = np.append(self.weights, np.full(len(beyond), self._rarest, dtype=np.float32))
        counted = csr_matrix((weights[at], at, starts), shape=(len(texts), V + len(beyond)))
        counted.sum_duplicates()
        total: Vector = np.asarray(counted[:, :V] @ self.vectors.vectors)
        if beyond:
            total += counted[:, V:] @ np.stack(beyond)
        if self.method != "sum":
            total /= np.maximum(sizes, 1).astype(np.float32)[:, None]
        n_words = sum(map(len, found))
        empty = np.flatnonzero(sizes == 0).tolist()
        return total, TextReport(len(texts), n_words, n_words - int(sizes.sum()), empty)

    def _columns(self, found: list[Sequence[Key]]) -> tuple[dict[Key, int], list[Vector]]:
        """Return the column of each word, and the vectors of unseen words (fastText).

        The column is the row of a word, V or above for an unseen word, and -1 without a vector.
        """
        columns: dict[Key, int] = {}
        beyond: list[Vector] = []
        for word in dict.fromkeys(chain.from_iterable(found)):
            columns[word] = self.vectors.get_index(word, -1)
            if columns[word] < 0:
                with suppress(UnknownWordError):
                    beyond.append(self.vectors.get_vector(word))
                    columns[word] = len(self.vectors) + len(beyond) - 1
        return columns, beyond


def _splitter(vectors: KeyedVectors, split: Split | None, lower: bool) -> Callable[[str], Sequence[Key]]:
    """Return a function from a text to its words, or to the rows of its tokens."""
    if split is None and isinstance(vectors, TokenVectors):
        return vectors.rows_of
    if callable(split):
        return split
    kind = split or "words"
    if kind not in SPLITS:
        raise VectorError(f"unknown split {kind!r}; {did_you_mean(kind, SPLITS)}")
    return lambda text: split_words(text, split=kind, lower=lower)


def _probabilities(vectors: KeyedVectors, given: Frequencies) -> tuple[NDArray[np.float64], str]:
    """Return the probabilities of the words [V], and their source."""
    if given is None:
        given = "counts" if vectors.counts is not None else "rank"
    if isinstance(given, Mapping):
        counts = np.array([given.get(word, 1) for word in vectors.index_to_key], dtype=np.float64)
        total = float(sum(given.values()))
        if not total > 0 or counts.min() < 0:
            raise VectorError("counts must not be negative, nor all zero")
        return counts / total, "counts"
    if given == "counts":
        if vectors.counts is None:
            raise VectorError("these vectors have no counts; give a mapping of words to counts, or 'rank'")
        if vectors.counts.min() < 0 or not vectors.counts.any():
            raise VectorError("the counts of these vectors are negative or all zero; give others, or 'rank'")
        return vectors.counts / vectors.counts.sum(), "counts"
    if given != "rank":
        raise VectorError(f"unknown frequencies {given!r}; {did_you_mean(given, ('counts', 'rank'))}")
    if isinstance(vectors, TokenVectors):
        raise VectorError(
            "a model's tokens are not sorted by frequency, which 'rank' needs; give their counts"
        )
    shares = 1.0 / np.arange(1, len(vectors) + 1)
    return shares / shares.sum(), "rank"


def _batches(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    running = iter(texts)
    while batch := list(islice(running, size)):
        yield batch


def _shown(starts: range, show: bool) -> Iterable[int]:
    """Return the starts of batches, with a progress bar on stderr if ``show``."""
    if not show:
        return starts
    from rich.console import Console
    from rich.progress import track

    return track(starts, description="embedding", console=Console(stderr=True), transient=True)
