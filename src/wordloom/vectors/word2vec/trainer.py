"""Training word2vec and fastText over token shards: jobs, threads, learning rates, and where it stopped."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from wordloom.data.batches.order import Purpose, keyed
from wordloom.errors import NonFiniteError, VectorError
from wordloom.kernels.machine_code import compiled
from wordloom.kernels.registers import LANES
from wordloom.text.cores import cores
from wordloom.vectors.word2vec.kernels import MOST, apart, together
from wordloom.vectors.word2vec.layout import (
    DESKS,
    Method,
    Part,
    Tables,
    Words,
    addresses,
    aligned,
    desk_table,
    desks,
    most_of,
)
from wordloom.vectors.word2vec.sampling import alias_table, huffman, keep_probabilities

__all__ = [
    "JOB",
    "PORTION",
    "Figures",
    "Schedule",
    "TrainingCorpus",
    "WordTrainer",
    "check_shape",
    "fast_mode",
    "gather",
    "on_threads",
    "scatter",
]

JOB = 10_000  # words at most that one thread takes at a time, and that a piece of text has (as in gensim)
PORTION = 256  # jobs between two looks at the clock: about a second
_TIMES = 3  # noise words, where one vector is to tell them from all words around it: more of them teach more
_STALE = 32.0  # times that a row is expected to be met in a deterministic batch, all by one old value
_SHARED = 3  # windows of a desk: shorter deterministic batches take two threads longer than one


class Settings(Protocol):
    """What training asks of its settings; :class:`wordloom.recipe.VectorSettings` has it."""

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


class Corpus(Protocol):
    """What training asks of :class:`wordloom.data.TokenShards`."""

    ends: NDArray[np.int64]

    def __len__(self) -> int: ...
    def tokens(self, start: int = 0, stop: int | None = None) -> NDArray[Any]: ...


class Figures(NamedTuple):
    """What was seen since the last look: ``loss`` in nats for a word predicted, its negatives included."""

    words: int
    windows: int
    loss: float | None


@dataclass(frozen=True)
class TrainingCorpus:
    """A corpus in pieces of JOB words at most, none across two documents, and jobs of some pieces.

    Attributes:
        shards: the ids.
        ends: [P] int64, where each piece ends.
        jobs: [J + 1] int64, which pieces are whose: as many as fit into JOB words.
    """

    shards: Corpus
    ends: NDArray[np.int64]
    jobs: NDArray[np.int64]

    @classmethod
    def cut(cls, shards: Corpus) -> TrainingCorpus:
        """Raises VectorError for a corpus without a word of the vocabulary."""
        if not len(shards):
            raise VectorError("the corpus holds no word of the vocabulary; give more text")
        ends = np.ascontiguousarray(shards.ends, dtype=np.int64)
        lengths = np.diff(ends, prepend=0)
        pieces = _cut(ends, int((-(-lengths // JOB)).sum()), JOB)
        return cls(shards, pieces, gather(pieces, JOB))

    def part(self, first: int, last: int, rates: NDArray[np.float32], seeds: NDArray[np.uint64]) -> Part:
        """Jobs ``first`` to ``last`` (excluded), read into memory."""
        head, tail = self.jobs[first], self.jobs[last]
        begin = int(self.ends[head - 1]) if head else 0
        stop = int(self.ends[tail - 1]) if tail else 0
        ids = self.shards.tokens(begin, stop).astype(np.int32)
        return Part(ids, self.ends[head:tail] - begin, self.jobs[first : last + 1] - head, rates, seeds)


@compiled()
def _cut(ends: Any, pieces: int, most: int) -> Any:
    """Where pieces end: documents in stretches of ``most`` words."""
    out, n, at = np.empty(pieces, np.int64), 0, 0
    for end in ends:
        while at < end:
            at = min(at + most, end)
            out[n] = at
            n += 1
    return out[:n]


@compiled()
def gather(ends: Any, most: int) -> Any:
    """[J + 1]: the first piece of each job, and how many pieces there are."""
    jobs, n, begin = np.empty(ends.shape[0] + 1, np.int64), 1, 0
    jobs[0] = 0
    for piece in range(1, ends.shape[0]):
        if ends[piece] - begin > most:
            jobs[n] = piece
            n, begin = n + 1, ends[piece - 1]
    jobs[n] = ends.shape[0]
    return jobs[: n + 1].copy()


class Schedule:
    """Which jobs are trained on next, and at what learning rate: the same on every device.

    Attributes:
        job: the next job, counted over all epochs; ``jobs`` of them are to do.
        device: where it runs, as torch calls it.
        unit: what :class:`Figures` counts.
    """

    device = "cpu"
    unit = "words"

    def __init__(self, corpus: TrainingCorpus, settings: Settings, seed: int) -> None:
        self.corpus, self.settings, self.seed = corpus, settings, seed
        self.job, self.jobs = 0, settings.epochs * (len(corpus.jobs) - 1)

    @property
    def done(self) -> bool:
        return self.job >= self.jobs

    @property
    def alpha(self) -> float:
        """The learning rate of the next job."""
        s = self.settings
        return max(s.alpha - (s.alpha - s.min_alpha) * self.job / self.jobs, s.min_alpha)

    def portion(self, job: int) -> Part:
        """The jobs from ``job`` on that are done in one go; an epoch's last portion may be shorter."""
        s, J = self.settings, len(self.corpus.jobs) - 1
        epoch, first = divmod(job, J)
        last = min(J, first + PORTION)
        number = np.arange(epoch * J + first, epoch * J + last, dtype=np.uint64)
        rates = np.maximum(s.alpha - (s.alpha - s.min_alpha) * number / self.jobs, s.min_alpha)
        return self.corpus.part(
            first, last, rates.astype(np.float32), keyed(self.seed, Purpose.WORD_JOB, number)
        )

    def diverged(self) -> NonFiniteError:
        """What is raised where the vectors are numbers no longer."""
        return NonFiniteError(
            f"the vectors have grown beyond bounds by job {self.job:,} of {self.jobs:,}: alpha "
            f"{self.settings.alpha:g} is too high for this corpus; lower it"
        )


class WordTrainer(Schedule):
    """Trains input and output vectors on a corpus, portion by portion, on the processor's cores.

    Attributes:
        inputs: [rows, dim] a view of the input vectors: of words, then of n-grams where there are units.
        outputs: [V or V - 1, dim] a view of the output vectors.
    """

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
        """Lays out the vectors: inputs evenly between -1/(2 dim) and 1/(2 dim), outputs 0.

        Args:
            corpus: ids below V.
            counts: [V], how often each word occurs, falling.
            settings: see :class:`wordloom.recipe.VectorSettings`.
            seed: names the random numbers.
            threads: None: one for every processor that this process may use.
            units: (starts [V + 1], rows [N]) the rows a word is the mean of (fastText); None: its own.
            rows: input vectors in all where there are units.
        """
        super().__init__(corpus, settings, seed)
        s, V = settings, len(counts)
        self.threads = threads or cores()
        skipgram = s.architecture == "skipgram"
        from_centre = units is not None and skipgram
        times = _TIMES if from_centre else 1
        self._words, path = _words(counts, s, units)
        self._dim, stride = s.dim, -(-s.dim // LANES) * LANES
        self._method = Method(
            vocabulary=V,
            stride=stride,
            window=s.window,
            negative=times * s.negative,
            times=times,
            units=0 if units is None else int(np.diff(units[0]).max()),
            path=path,
            joined=int(units is not None or not skipgram),
            mean=int(s.mean or skipgram),
            from_centre=int(from_centre),
            sliding=int(units is not None and not skipgram),
            batch=_batch(counts, s) if s.deterministic else 0,
        )
        inputs = aligned(V if rows is None else rows, stride)
        scatter(inputs, s.dim, seed, s.dim)
        outputs = aligned(V if s.negative else max(1, V - 1), stride)
        self._tables = Tables(inputs, outputs)
        if s.deterministic and self._method.batch < _SHARED:
            self.threads = 1
        self._desks = desks(DESKS if s.deterministic else self.threads, self._method, job=JOB)
        self._desk_table = desk_table(self._desks)

    @property
    def inputs(self) -> NDArray[np.float32]:
        return self._tables.inputs[:, : self._dim]

    @property
    def outputs(self) -> NDArray[np.float32]:
        return self._tables.outputs[:, : self._dim]

    @property
    def kernel(self) -> str:
        """One line: what runs, on how many threads, and whether it can be repeated."""
        s = self.settings
        drawn = f"{s.negative} negatives" if self._method.times == 1 else f"{_TIMES} x {s.negative} negatives"
        how = f"{drawn} shared by a window" if s.negative else "hierarchical softmax"
        mode = (
            f"deterministic, batches of {DESKS * self._method.batch} windows"
            if s.deterministic
            else fast_mode(self.threads)
        )
        return f"{s.architecture}, {how}, numba kernel on {on_threads(self.threads)} ({mode})"

    def run(self) -> Figures:
        """Train on the next portion of jobs."""
        part = self.portion(self.job)
        jobs = len(part.rates)
        figures = self._desks.figures
        figures[:] = 0
        self._train(part)
        self.job += jobs
        words, windows, loss, pairs = figures.sum(axis=0)[:4]
        if not np.isfinite(loss):
            raise self.diverged()
        return Figures(int(words), int(windows), float(loss / pairs) if pairs else None)

    def _train(self, part: Part) -> None:
        most_inputs, most_targets, _ = most_of(self._method)
        self._on_threads(
            together, apart, addresses(self._tables), addresses(self._words), self._method,
            (most_inputs, most_targets), addresses(part), len(part.rates),
        )  # fmt: skip

    def _on_threads(self, together: Any, apart: Any, *arguments: Any) -> None:
        """Run one of two programs on every thread: it is given ``arguments``, the desks, and which it is."""
        shared = (*arguments, self._desk_table.ctypes.data, np.zeros(16, dtype=np.int64))

        def work(thread: int) -> None:
            if self.settings.deterministic:
                together(*shared, thread, self.threads)
            else:
                apart(*shared, thread)

        with ThreadPoolExecutor(self.threads) as pool:
            for future in [pool.submit(work, thread) for thread in range(self.threads)]:
                future.result()

    # -- where it stopped --------------------------------------------------------------------------------

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything that goes on from here: the vectors [.., dim], and the job."""
        return {"inputs": self.inputs, "outputs": self.outputs, "job": np.array([self.job])}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Go on from ``state``; raises VectorError where it is of other vectors."""
        for name, ours in (("inputs", self.inputs), ("outputs", self.outputs)):
            check_shape(name, state[name], ours.shape)
            ours[:] = state[name]
        self.job = int(state["job"][0])


def on_threads(threads: int) -> str:
    return f"{threads} thread{'s' * (threads > 1)}"


def fast_mode(threads: int) -> str:
    """Whether a run in the fast mode can be repeated: one thread has nobody to meet."""
    if threads == 1:
        return "fast: on one thread two runs are the same"
    return "fast: not deterministic, two runs differ"


def check_shape(name: str, saved: NDArray[Any], shape: tuple[int, ...]) -> None:
    """Raises VectorError where vectors that were saved are of another shape than those here."""
    if saved.shape != shape:
        raise VectorError(
            f"the saved {name} are {list(saved.shape)}, these {list(shape)}: another "
            "vocabulary or dim; start again, or put back what was there"
        )


def _words(
    counts: NDArray[np.int64], s: Settings, units: tuple[NDArray[np.int64], NDArray[np.int32]] | None
) -> tuple[Words, int]:
    """The tables that ``s`` needs, and the longest path in the tree."""
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


def _batch(counts: NDArray[np.int64], s: Settings) -> int:
    """Windows of a desk in a deterministic batch.

    Every change of a batch is worked out by the rows as they stood before it.  Where few words, or the root
    of the tree, are met again and again, their changes would add up to far more than one after another, so
    the batch is as long as the row met most often allows.
    """
    met = 1.0
    if s.negative:
        trained, drawn = counts * keep_probabilities(counts, s.sample), counts**s.exponent
        around = s.window + 1  # words on average, the one in the middle with them
        met = around * trained.max() / trained.sum() + s.negative * drawn.max() / drawn.sum()
    return int(np.clip(_STALE / (met * DESKS), 1, MOST))


def scatter(inputs: NDArray[np.float32], dim: int, seed: int, divisor: float) -> None:
    """Fill rows evenly between -0.5 and 0.5 over ``divisor``, a stretch at a time."""
    random = np.random.default_rng([seed, Purpose.WORD_VECTORS])
    step = max(1, (1 << 22) // dim)
    for start in range(0, len(inputs), step):
        some = random.random((min(step, len(inputs) - start), dim), dtype=np.float32)
        inputs[start : start + step, :dim] = (some - np.float32(0.5)) / np.float32(divisor)
