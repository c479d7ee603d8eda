"""Train word2vec and fastText on token shards: jobs, learning rates, threads and saved state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from wordloom.data.batches.order import Purpose, keyed
from wordloom.data.shards.arrays import IntArray
from wordloom.errors import NonFiniteError, VectorError
from wordloom.kernels.machine_code import compiled
from wordloom.kernels.registers import LANES
from wordloom.threads import cores, run_on_threads
from wordloom.vectors.word2vec import kernels
from wordloom.vectors.word2vec.layout import (
    STREAMS,
    Method,
    Part,
    Tables,
    Words,
    addresses,
    aligned,
    allocate_scratch,
    scratch_table,
)
from wordloom.vectors.word2vec.sampling import alias_table, huffman, keep_probabilities

JOB = 10_000  # most words of a job and of a piece of text, as in gensim
PORTION = 256  # jobs between reports: about a second
_NEGATIVES_FACTOR = 3  # more negatives for fastText's skip-gram, which improve it
_MAX_STALE_UPDATES = 32.0  # expected updates of a row in a deterministic batch, all from one old value
_MIN_PARALLEL_BATCH = 3  # windows of a stream: shorter batches are slower on two threads than on one


class Settings(Protocol):
    """The settings of training; :class:`wordloom.recipe.vectors.VectorSettings` has them."""

    architecture: str
    dim: int
    window: int
    negative: int
    exponent: float
    sample: float
    epochs: int
    alpha: float
    min_alpha: float
    mean: bool
    deterministic: bool
    loss: str  # this and the following: of fastText's supervised mode
    word_ngrams: int
    min_n: int
    max_n: int
    buckets: int


class Corpus(Protocol):
    """The part of :class:`wordloom.data.TokenShards` that training uses."""

    @property
    def ends(self) -> IntArray: ...
    def __len__(self) -> int: ...
    def tokens(self, start: int = 0, stop: int | None = None) -> NDArray[Any]: ...


class PortionStats(NamedTuple):
    """Statistics of a portion: ``loss`` is in nats for each prediction with its negatives."""

    words: int
    windows: int
    loss: float | None


@dataclass(frozen=True)
class TrainingCorpus:
    """A corpus, divided into pieces of at most JOB words within documents, and pieces into jobs.

    Attributes:
        shards: the ids.
        ends: [P] int64, the ends of pieces.
        jobs: [J + 1] int64, the first piece of each job.  A job has as many pieces as fit into JOB words.
    """

    shards: Corpus
    ends: NDArray[np.int64]
    jobs: NDArray[np.int64]

    @classmethod
    def cut(cls, shards: Corpus) -> TrainingCorpus:
        """Divide ``shards``; raise VectorError for a corpus without a word of the vocabulary."""
        if not len(shards):
            raise VectorError("the corpus holds no word of the vocabulary; give more text")
        ends = np.ascontiguousarray(shards.ends, dtype=np.int64)
        lengths = np.diff(ends, prepend=0)
        pieces = _split(ends, int((-(-lengths // JOB)).sum()), JOB)
        return cls(shards, pieces, group_pieces(pieces, JOB))

    def part(self, first: int, last: int, rates: NDArray[np.float32], seeds: NDArray[np.uint64]) -> Part:
        """Read jobs ``first`` to ``last`` (excluded) into memory."""
        head, tail = self.jobs[first], self.jobs[last]
        begin = int(self.ends[head - 1]) if head else 0
        stop = int(self.ends[tail - 1]) if tail else 0
        ids = self.shards.tokens(begin, stop).astype(np.int32)
        return Part(ids, self.ends[head:tail] - begin, self.jobs[first : last + 1] - head, rates, seeds)


@compiled()
def _split(ends: Any, pieces: int, most: int) -> Any:
    """Return the ends of pieces: documents, divided after every ``most`` words."""
    out, n, at = np.empty(pieces, np.int64), 0, 0
    for end in ends:
        while at < end:
            at = min(at + most, end)
            out[n] = at
            n += 1
    return out[:n]


@compiled()
def group_pieces(ends: Any, most: int) -> Any:
    """Return [J + 1]: the first piece of each job, and the number of pieces."""
    jobs, n, begin = np.empty(ends.shape[0] + 1, np.int64), 1, 0
    jobs[0] = 0
    for piece in range(1, ends.shape[0]):
        if ends[piece] - begin > most:
            jobs[n] = piece
            n, begin = n + 1, ends[piece - 1]
    jobs[n] = ends.shape[0]
    return jobs[: n + 1].copy()


class Schedule(ABC):
    """The order of jobs, their learning rates and the saved state, which are equal on every device.

    Attributes:
        job, jobs: the number of the next job, counted over all epochs, and the total.
        device: the name of the torch device.
        unit: the unit of the reported speed.
    """

    device = "cpu"
    unit = "words"
    _tables: Tables

    def __init__(self, corpus: TrainingCorpus, settings: Settings, seed: int) -> None:
        self.corpus, self.settings, self.seed = corpus, settings, seed
        self.job, self.jobs = 0, settings.epochs * (len(corpus.jobs) - 1)

    @property
    @abstractmethod
    def kernel(self) -> str:
        """One line about the kernel, the device and the reproducibility."""

    @property
    def done(self) -> bool:
        return self.job >= self.jobs

    @property
    def alpha(self) -> float:
        """The learning rate of the next job."""
        s = self.settings
        return max(s.alpha - (s.alpha - s.min_alpha) * self.job / self.jobs, s.min_alpha)

    def portion(self, job: int) -> Part:
        """Return the jobs of the portion that starts with ``job``; the last of an epoch may be shorter."""
        s, J = self.settings, len(self.corpus.jobs) - 1
        epoch, first = divmod(job, J)
        last = min(J, first + PORTION)
        number = np.arange(epoch * J + first, epoch * J + last, dtype=np.uint64)
        rates = np.maximum(s.alpha - (s.alpha - s.min_alpha) * number / self.jobs, s.min_alpha)
        return self.corpus.part(
            first, last, rates.astype(np.float32), keyed(self.seed, Purpose.WORD_JOB, number)
        )

    @property
    def inputs(self) -> NDArray[np.float32]:
        """The input vectors [rows, dim], copied from a GPU."""
        return self._on_cpu(self._tables.inputs)

    @property
    def outputs(self) -> NDArray[np.float32]:
        """The output vectors [rows, dim], copied from a GPU."""
        return self._on_cpu(self._tables.outputs)

    def _on_cpu(self, table: Any) -> NDArray[np.float32]:
        return table[:, : self.settings.dim]

    def _on_device(self, array: NDArray[Any]) -> Any:
        return array

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the vectors [.., dim] and the job, which :meth:`restore` needs."""
        return {"inputs": self.inputs, "outputs": self.outputs, "job": np.array([self.job])}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore ``state`` of any device; raise VectorError if its shapes differ."""
        for name, table in self._tables._asdict().items():
            saved, rows = state[name], table[:, : self.settings.dim]
            if saved.shape != tuple(rows.shape):
                raise VectorError(
                    f"the saved {name} have the shape {list(saved.shape)}, not {list(rows.shape)}: the "
                    "vocabulary or dim has changed; restore it, or start from scratch"
                )
            rows[:] = self._on_device(saved)
        self.job = int(state["job"][0])

    def diverged(self) -> NonFiniteError:
        """Return the error for vectors that are no longer finite."""
        return NonFiniteError(
            f"the vectors diverged by job {self.job:,} of {self.jobs:,}: alpha "
            f"{self.settings.alpha:g} is too high for this corpus; lower it"
        )


class CompiledTrainer(Schedule):
    """Trains on the CPU with the compiled programs of ``kernels``, portion by portion.

    A subclass sets the tables, the method and the scratch memory of its kernels.
    """

    kernels: Any
    _words: Any
    _method: Any
    _scratch: Any

    def __init__(self, corpus: TrainingCorpus, settings: Settings, *, seed: int, threads: int | None) -> None:
        super().__init__(corpus, settings, seed)
        self.threads = threads or cores()
        self._stride = -(-settings.dim // LANES) * LANES

    def _describe_mode(self, batch: str) -> str:
        """Describe the threads and the reproducibility; the fast mode has no races on one thread."""
        if self.settings.deterministic:
            mode = f"deterministic, batches of {batch}"
        else:
            mode = f"fast: {'deterministic on one thread' if self.threads == 1 else 'not deterministic'}"
        return f"numba kernel on {self.threads} thread{'s' * (self.threads > 1)} ({mode})"

    def run(self) -> PortionStats:
        """Train on the next portion of jobs."""
        part = self.portion(self.job)
        self._scratch.stats[:] = 0
        self._train(part)
        self.job += len(part.rates)
        words, windows, loss, pairs = self._scratch.stats.sum(axis=0)[:4]
        if not np.isfinite(loss):
            raise self.diverged()
        return PortionStats(int(words), int(windows), float(loss / pairs) if pairs else None)

    def _train(self, part: Part) -> None:
        """Run the program of the mode on every thread."""
        table = scratch_table(self._scratch)
        arguments = (
            addresses(self._tables), addresses(self._words), self._method,
            self.kernels.max_sizes(self._method), addresses(part), len(part.rates), table.ctypes.data,
            np.zeros(16, dtype=np.int64),
        )  # fmt: skip

        def work(thread: int) -> None:
            if self.settings.deterministic:
                self.kernels.run_deterministic(*arguments, thread, self.threads)
            else:
                self.kernels.run_fast(*arguments, thread)

        run_on_threads(self.threads, work)


class WordTrainer(CompiledTrainer):
    """Trains input and output vectors on the CPU, portion by portion.

    Attributes:
        inputs: [rows, dim] a view of the input vectors of words and then, with ``units``, of n-grams.
        outputs: [V or V - 1, dim] a view of the output vectors.
    """

    kernels = kernels

    def __init__(
        self,
        corpus: TrainingCorpus,
        counts: NDArray[np.int64],
        settings: Settings,
        *,
        seed: int,
        threads: int | None = None,
        units: tuple[NDArray[np.int64], NDArray[np.int32]] | None = None,
        rows: int | None = None,
    ) -> None:
        """Initialise inputs uniformly between -1/(2 dim) and 1/(2 dim), and outputs with 0.

        Args:
            corpus: ids below V.
            counts: [V], the counts of words, falling.
            threads: the number of threads; None: one for each available processor.
            units: (starts [V + 1], rows [N]) of :meth:`Subwords.unit_rows`; None: a word has one row.
            rows: the number of input vectors, with ``units``.
        """
        super().__init__(corpus, settings, seed=seed, threads=threads)
        s, V = settings, len(counts)
        skipgram = s.architecture == "skipgram"
        from_centre = units is not None and skipgram
        times = _NEGATIVES_FACTOR if from_centre else 1
        self._words, path = _words(counts, s, units)
        self._method = Method(
            vocabulary=V,
            stride=self._stride,
            window=s.window,
            negative=times * s.negative,
            times=times,
            units=0 if units is None else int(np.diff(units[0]).max()),
            path=path,
            joined=int(units is not None or not skipgram),
            mean=int(s.mean or skipgram),
            from_centre=int(from_centre),
            sliding=int(units is not None and not skipgram),
            batch=_batch_size(counts, s) if s.deterministic else 0,
        )
        inputs = aligned(V if rows is None else rows, self._stride)
        fill_uniform(inputs, s.dim, seed, s.dim)
        outputs = aligned(V if s.negative else max(1, V - 1), self._stride)
        self._tables = Tables(inputs, outputs)
        if s.deterministic and self._method.batch < _MIN_PARALLEL_BATCH:
            self.threads = 1
        self._scratch = allocate_scratch(STREAMS if s.deterministic else self.threads, self._method, job=JOB)

    @property
    def kernel(self) -> str:
        s = self.settings
        drawn = (
            f"{s.negative} negatives"
            if self._method.times == 1
            else f"{_NEGATIVES_FACTOR} x {s.negative} negatives"
        )
        how = f"{drawn} shared by a window" if s.negative else "hierarchical softmax"
        return f"{s.architecture}, {how}, {self._describe_mode(f'{STREAMS * self._method.batch} windows')}"


def _words(
    counts: NDArray[np.int64], s: Settings, units: tuple[NDArray[np.int64], NDArray[np.int32]] | None
) -> tuple[Words, int]:
    """Return the tables for ``s``, and the length of the longest path in the tree."""
    none32, none64 = np.zeros(0, np.uint32), np.zeros(0, np.int64)
    keep = np.minimum(keep_probabilities(counts, s.sample) * 2.0**32, 2.0**32 - 1).astype(np.uint32)
    share, other = none32, none32
    starts, nodes, codes, path = none64, np.zeros(0, np.int32), np.zeros(0, np.uint8), 0
    if s.negative:
        share, other = alias_table(counts.astype(np.float64) ** s.exponent)
    else:
        starts, nodes, codes = huffman(counts)
        path = max(1, int(np.diff(starts).max()))
    unit_starts, rows = (none64, np.zeros(0, np.int32)) if units is None else units
    return Words(keep, share, other, starts, nodes, codes, unit_starts, rows), path


def _batch_size(counts: NDArray[np.int64], s: Settings) -> int:
    """Return the number of windows of a stream in a deterministic batch.

    All updates of a batch are computed from the rows before it.  A very frequent word, or the root of the
    tree, would get the sum of many equal updates, so the most frequent row limits the batch.
    """
    updates = 1.0
    if s.negative:
        trained, drawn = counts * keep_probabilities(counts, s.sample), counts**s.exponent
        around = s.window + 1  # words of a window on average
        updates = around * trained.max() / trained.sum() + s.negative * drawn.max() / drawn.sum()
    return int(np.clip(_MAX_STALE_UPDATES / (updates * STREAMS), 1, kernels.MAX_BATCH))


def fill_uniform(inputs: NDArray[np.float32], dim: int, seed: int, divisor: float) -> None:
    """Fill rows uniformly between -0.5 and 0.5 divided by ``divisor``, a block at a time."""
    random = np.random.default_rng([seed, Purpose.WORD_VECTORS])
    step = max(1, (1 << 22) // dim)
    for start in range(0, len(inputs), step):
        some = random.random((min(step, len(inputs) - start), dim), dtype=np.float32)
        inputs[start : start + step, :dim] = (some - np.float32(0.5)) / np.float32(divisor)
