"""A fastText model: settings, dictionary and both matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import VectorError, did_you_mean
from wordloom.vectors.fasttext.subwords import Subwords
from wordloom.vectors.fasttext.vectors import FastTextVectors

# in the order of their numbers in files, which start at 1
MODELS = ("cbow", "skipgram", "supervised")
LOSSES = ("hs", "ns", "softmax", "ova")


@dataclass(frozen=True, kw_only=True)
class FastTextArgs:
    """The settings that a model file stores.  They include neither the learning rate nor the label prefix.

    Attributes:
        model: ``cbow``, ``skipgram`` or ``supervised``.
        loss: ``hs`` (hierarchical softmax), ``ns`` (negative sampling), ``softmax`` or ``ova`` (one binary
            classifier for each label).
        dim: the number of components D.
        window, epochs, min_count, negative, sample: fastText's ws, epoch, minCount, neg and t.
        word_ngrams: the words of the longest word n-gram that has a vector, in supervised models.
        min_n, max_n, buckets: see :class:`Subwords`; fastText's minn, maxn and bucket.
        lr_update_rate: the number of words between updates of the learning rate.

    Raises:
        VectorError: an unknown ``model`` or ``loss``, or a number out of range.
    """

    model: str = "skipgram"
    loss: str = "ns"
    dim: int = 100
    window: int = 5
    epochs: int = 5
    min_count: int = 5
    negative: int = 5
    word_ngrams: int = 1
    buckets: int = 2_000_000
    min_n: int = 3
    max_n: int = 6
    lr_update_rate: int = 100
    sample: float = 1e-4

    def __post_init__(self) -> None:
        for name, allowed in (("model", MODELS), ("loss", LOSSES)):
            given = getattr(self, name)
            if given not in allowed:
                raise VectorError(f"unknown {name} {given!r}; {did_you_mean(str(given), allowed)}")
        numbers = (self.dim, self.window, self.epochs, self.min_count, self.negative, self.word_ngrams)
        if self.dim < 1 or not all(-(2**31) <= number < 2**31 for number in (*numbers, self.lr_update_rate)):
            raise VectorError(
                f"{self} does not fit the format; give numbers below 2^31, and a dim of 1 or more"
            )
        if self.word_ngrams > 1 and not self.buckets:
            raise VectorError(f"word_ngrams {self.word_ngrams} needs buckets, and buckets is 0; give some")
        Subwords(self.min_n, self.max_n, self.buckets)  # raises for values out of range

    @property
    def subwords(self) -> Subwords:
        """The character n-grams of words."""
        return Subwords(self.min_n, self.max_n, self.buckets)


@dataclass(frozen=True, kw_only=True, eq=False)
class FastTextModel:
    """A fastText model of V words and, if it is supervised, L labels.

    Attributes:
        args: the settings.
        words: V words, by falling count.
        counts: [V] int64.
        labels: L labels with their prefix (``__label__`` by default), by falling count.
        label_counts: [L] int64.
        input_matrix: [V + buckets, D] float32, the rows of words and then of n-grams.
        output_matrix: float32, [L, D] in a supervised model, otherwise [V, D].  With hierarchical softmax,
            row i belongs to inner node i of the Huffman tree (see ``huffman``), and the last row is unused.
        n_tokens: the number of words and labels in the training text, including rare ones.

    Raises VectorError if the sizes differ.
    """

    args: FastTextArgs
    words: Sequence[str]
    counts: NDArray[np.int64]
    input_matrix: NDArray[np.float32]
    output_matrix: NDArray[np.float32]
    labels: Sequence[str] = ()
    label_counts: NDArray[np.int64] | None = None
    n_tokens: int = 0

    def __post_init__(self) -> None:
        if self.label_counts is None and not len(self.labels):
            object.__setattr__(self, "label_counts", np.zeros(0, dtype=np.int64))
        for names, counts in (("words", self.counts), ("labels", self.label_counts)):
            n, n_counts = len(getattr(self, names)), 0 if counts is None else len(counts)
            if n != n_counts:
                raise VectorError(f"{n:,} {names} have {n_counts:,} counts; give one for each")
        V, D = len(self.words), self.args.dim
        classes = len(self.labels) if self.args.model == "supervised" else V
        if self.input_matrix.shape != (V + self.args.buckets, D):
            raise VectorError(
                f"an input matrix of shape {self.input_matrix.shape} does not fit {V:,} words, "
                f"{self.args.buckets:,} buckets and {D:,} components; give one row for each"
            )
        if self.output_matrix.shape != (classes, D):
            of = "labels" if self.args.model == "supervised" else "words"
            raise VectorError(
                f"an output matrix of shape {self.output_matrix.shape} does not fit {classes:,} {of} of "
                f"{D:,} components; give one row for each"
            )

    def __repr__(self) -> str:
        return (
            f"FastTextModel({self.args.model}, {len(self.words):,} words, {len(self.labels):,} labels, "
            f"{self.args.buckets:,} buckets, {self.args.dim:,} components)"
        )

    @cached_property
    def wv(self) -> FastTextVectors:
        """The word vectors, which share this model's rows.

        Raises VectorError if there are no words, or a word occurs twice.
        """
        V = len(self.words)
        rows, ngrams = self.input_matrix[:V], self.input_matrix[V:]
        return FastTextVectors(
            self.words, rows, ngrams, self.args.subwords, counts=np.asarray(self.counts), check=False
        )
