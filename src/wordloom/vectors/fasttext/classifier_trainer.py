"""Train fastText's supervised mode on token shards (Joulin et al. 2017, arXiv:1607.01759)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import VectorError
from wordloom.vectors.fasttext import kernels
from wordloom.vectors.fasttext.labelled_text import LabelledVocabulary
from wordloom.vectors.fasttext.model import LOSSES, FastTextArgs, FastTextModel
from wordloom.vectors.fasttext.subwords import Subwords, word_hashes
from wordloom.vectors.word2vec.layout import STREAMS, Tables, aligned
from wordloom.vectors.word2vec.sampling import alias_table, huffman
from wordloom.vectors.word2vec.trainer import (
    CompiledTrainer,
    Corpus,
    Settings,
    TrainingCorpus,
    fill_uniform,
    group_pieces,
)

JOB = 2_000  # most words of a job, unless a line is longer
_READ = 1 << 22  # words read at a time
_EXPONENT = 0.5  # of counts, for sampling negatives, as in fastText


def cut_lines(shards: Corpus, end_of_line: int | None) -> TrainingCorpus:
    """Divide a corpus into lines, which end with the id ``end_of_line`` or with their document.

    Raises VectorError for a corpus without a word.
    """
    size = len(shards)
    if not size:
        raise VectorError("the corpus holds no word; give more text")
    line_ends = [np.asarray(shards.ends, dtype=np.int64)]
    for start in range(0, size, _READ):
        some = shards.tokens(start, min(size, start + _READ))
        line_ends.append(start + 1 + np.flatnonzero(some == end_of_line))
    ends = np.unique(np.concatenate(line_ends))
    return TrainingCorpus(shards, ends, group_pieces(ends, JOB))


class SupervisedTrainer(CompiledTrainer):
    """Trains the rows of words, n-grams and labels, portion by portion.

    Attributes:
        inputs: [V + buckets, dim] a view of the rows of words and then of buckets.
        outputs: [L, dim] a view of the rows of labels, or of the tree's inner nodes.
    """

    kernels = kernels

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
        """Initialise inputs uniformly between -1/dim and 1/dim, and outputs with 0, as in fastText.

        Args:
            corpus: the result of :func:`cut_lines`, encoded by ``vocabulary``.
            vocabulary: words, labels, and rare words without a row.
            threads: the number of threads; None: one for each available processor.
            min_count: the vocabulary's lowest count, which the model file stores.

        Raises VectorError for inconsistent settings.
        """
        super().__init__(corpus, settings, seed=seed, threads=threads)
        s, self.vocabulary = settings, vocabulary
        self.args = _args(s, min_count)
        V, L = len(vocabulary.words), len(vocabulary.labels)
        starts, rows = self.args.subwords.unit_rows(vocabulary.words, L, vocabulary.rare)
        loss = LOSSES.index(self.args.loss)
        self._words, path = _known(vocabulary, starts, rows, loss, self.args.negative)
        self._method = kernels.Method(
            words=V,
            labels=L,
            stride=self._stride,
            units=max(1, int(np.diff(starts).max())),
            buckets=self.args.buckets,
            word_ngrams=self.args.word_ngrams,
            negative=self.args.negative,
            path=path,
            loss=loss,
            longest=int(np.diff(corpus.ends, prepend=0).max()),
        )
        inputs, outputs = aligned(V + self.args.buckets, self._stride), aligned(L, self._stride)
        fill_uniform(inputs, s.dim, seed, s.dim / 2)
        self._tables = Tables(inputs, outputs)
        self._scratch = kernels.allocate_scratch(STREAMS if s.deterministic else self.threads, self._method)

    @property
    def kernel(self) -> str:
        L = len(self.vocabulary.labels)
        mode = self._describe_mode(f"{STREAMS} lines")
        return f"fastText supervised, {self.args.loss} over {L:,} labels, {mode}"

    def model(self) -> FastTextModel:
        """Return the current model, whose matrices are views of the trainer's."""
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


def _args(s: Settings, min_count: int) -> FastTextArgs:
    """Return the settings under fastText's names; without n-grams there are no buckets."""
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
    """Return the tables for a loss, and the length of the longest path in the tree."""
    none = np.zeros(0, np.uint32)
    share, other, path = none, none, 1
    path_starts, nodes, codes = np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.uint8)
    counts = v.label_counts
    if loss == kernels.NS:
        if negative < 1:
            raise VectorError(f"negative {negative} leaves no negatives; give 1 or more")
        share, other = alias_table(counts.astype(np.float64) ** _EXPONENT)
    if loss == kernels.HS:
        path_starts, nodes, codes = huffman(counts)
        path = max(1, int(np.diff(path_starts).max()))
    hashes = word_hashes(list(v.ids)).view(np.int32).astype(np.int64).view(np.uint64)
    return kernels.Known(hashes, starts, rows, share, other, path_starts, nodes, codes), path
