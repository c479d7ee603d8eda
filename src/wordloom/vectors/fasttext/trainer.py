"""Training fastText's supervised mode over token shards: a linear classifier on the mean of a line's rows
(Joulin et al. 2017, arXiv:1607.01759)."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import VectorError
from wordloom.kernels.registers import LANES
from wordloom.text.cores import cores
from wordloom.vectors.fasttext import kernels
from wordloom.vectors.fasttext.labelled_text import LabelledVocabulary
from wordloom.vectors.fasttext.model import LOSSES, FastTextArgs, FastTextModel
from wordloom.vectors.fasttext.subwords import Subwords, word_hashes
from wordloom.vectors.word2vec.layout import DESKS, Part, Tables, addresses, aligned, desk_table
from wordloom.vectors.word2vec.sampling import alias_table, huffman
from wordloom.vectors.word2vec.trainer import (
    Corpus,
    TrainingCorpus,
    WordTrainer,
    fast_mode,
    gather,
    on_threads,
    scatter,
)

__all__ = ["JOB", "SupervisedTrainer", "cut_lines"]

JOB = 2_000  # words at most that one thread takes at a time, where lines allow
_READ = 1 << 22  # words looked at at a time
_EXPONENT = 0.5  # negatives are drawn in proportion to count ** 0.5, as in fastText


class Settings(Protocol):
    """What training asks of its settings; :class:`wordloom.recipe.VectorSettings` has it."""

    dim: int
    loss: str
    negative: int
    word_ngrams: int
    min_n: int
    max_n: int
    buckets: int
    epochs: int
    alpha: float
    min_alpha: float
    deterministic: bool


def cut_lines(shards: Corpus, end_of_line: int | None) -> TrainingCorpus:
    """A corpus whose pieces are lines: each ends with the id ``end_of_line``, or with its document.

    Raises VectorError for a corpus without a word.
    """
    size = len(shards)
    if not size:
        raise VectorError("the corpus holds no word; give more text")
    found = [np.asarray(shards.ends, dtype=np.int64)]
    for start in range(0, size, _READ):
        some = shards.tokens(start, min(size, start + _READ))
        found.append(start + 1 + np.flatnonzero(some == end_of_line))
    ends = np.unique(np.concatenate(found))
    return TrainingCorpus(shards, ends, gather(ends, JOB))


class SupervisedTrainer(WordTrainer):
    """Trains the rows of words, n-grams and runs of words, and one row for each label, portion by portion.

    Attributes:
        inputs: [V + buckets, dim] a view of the rows of words, then of what falls into buckets.
        outputs: [L, dim] a view of the rows of labels, or of the tree's inner nodes.
        job: the next job, counted over all epochs; ``jobs`` of them are to do.
    """

    def __init__(
        self,
        corpus: TrainingCorpus,
        vocabulary: LabelledVocabulary,
        settings: Settings,
        *,
        seed: int,
        threads: int | None = None,
        min_count: int = 1,
    ) -> None:
        """Lays out the rows: inputs evenly between -1/dim and 1/dim, outputs 0, as fastText has them.

        Args:
            corpus: of :func:`cut_lines`, encoded by ``vocabulary``.
            vocabulary: words, labels, and words without a row.
            settings: see :class:`wordloom.recipe.VectorSettings`.
            seed: names the random numbers.
            threads: None: one for every processor that this process may use.
            min_count: of the vocabulary, to be kept with the model.

        Raises VectorError for settings that do not fit one another.
        """
        s: Any = settings
        self.corpus, self.vocabulary, self.settings, self.seed = corpus, vocabulary, s, seed
        self.threads = threads or cores()
        self.job, self.jobs = 0, s.epochs * (len(corpus.jobs) - 1)
        self.args = _args(s, min_count)
        V, L = len(vocabulary.words), len(vocabulary.labels)
        starts, rows = self.args.subwords.unit_rows(vocabulary.words, L, vocabulary.rare)
        loss = LOSSES.index(self.args.loss)
        self._known, path = _known(vocabulary, starts, rows, loss, self.args.negative)
        self._dim, stride = s.dim, -(-s.dim // LANES) * LANES
        self._lines = kernels.Method(
            words=V,
            labels=L,
            stride=stride,
            units=max(1, int(np.diff(starts).max())),
            buckets=self.args.buckets,
            word_ngrams=self.args.word_ngrams,
            negative=self.args.negative,
            path=path,
            loss=loss,
            longest=int(np.diff(corpus.ends, prepend=0).max()),
        )
        inputs, outputs = aligned(V + self.args.buckets, stride), aligned(L, stride)
        scatter(inputs, s.dim, seed, s.dim / 2)
        self._tables = Tables(inputs, outputs)
        desks: Any = kernels.desks(DESKS if s.deterministic else self.threads, self._lines)
        self._desks, self._desk_table = desks, desk_table(desks)

    @property
    def kernel(self) -> str:
        """One line: what runs, on how many threads, and whether it can be repeated."""
        mode = (
            f"deterministic, batches of {DESKS} lines"
            if self.settings.deterministic
            else fast_mode(self.threads)
        )
        L = len(self.vocabulary.labels)
        on = on_threads(self.threads)
        return f"fastText supervised, {self.args.loss} over {L:,} labels, numba kernel on {on} ({mode})"

    def _train(self, part: Part) -> None:
        self._on_threads(
            kernels.together, kernels.apart, addresses(self._tables), addresses(self._known), self._lines,
            kernels.most_of(self._lines), addresses(part), len(part.rates),
        )  # fmt: skip

    def model(self) -> FastTextModel:
        """What is learnt so far, to predict with or to save by save_fasttext; its matrices are views."""
        v = self.vocabulary
        return FastTextModel(
            args=self.args,
            words=v.words,
            counts=v.counts[: len(v.words)],
            labels=v.labels,
            label_counts=v.label_counts,
            input_matrix=self.inputs,
            output_matrix=self.outputs,
            n_tokens=v.n_tokens,
        )


def _args(s: Any, min_count: int) -> FastTextArgs:
    """The settings in fastText's terms; without n-grams and runs there are no buckets."""
    ngrams = bool(Subwords(s.min_n, s.max_n, s.buckets))
    return FastTextArgs(
        model="supervised",
        loss=s.loss,
        dim=s.dim,
        epochs=s.epochs,
        min_count=min_count,
        negative=s.negative,
        word_ngrams=s.word_ngrams,
        buckets=s.buckets if ngrams or s.word_ngrams > 1 else 0,
        min_n=s.min_n if ngrams else 0,
        max_n=s.max_n if ngrams else 0,
    )


def _known(
    v: LabelledVocabulary, starts: NDArray[np.int64], rows: NDArray[np.int32], loss: int, negative: int
) -> tuple[kernels.Known, int]:
    """The tables that a loss needs, and the longest path in the tree."""
    none = np.zeros(0, np.uint32)
    share, other, path = none, none, 1
    path_starts, nodes, codes = np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.uint8)
    counts = v.label_counts
    if loss == kernels.NS:
        if negative < 1:
            raise VectorError(f"negative {negative} leaves nothing to learn against; give 1 or more")
        share, other = alias_table(counts.astype(np.float64) ** _EXPONENT)
    if loss == kernels.HS:
        path_starts, nodes, codes = huffman(counts)
        path = max(1, int(np.diff(path_starts).max()))
    hashes = word_hashes(list(v.ids)).view(np.int32).astype(np.int64).view(np.uint64)
    return kernels.Known(hashes, starts, rows, share, other, path_starts, nodes, codes), path
