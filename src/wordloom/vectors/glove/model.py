"""GloVe: word vectors whose dot products are the logarithms of co-occurrence counts.

The loss is weighted least squares (Pennington, Socher & Manning 2014, equation 8):

    J = sum over i, j with X_ij > 0 of  f(X_ij) (w_i w~_j + b_i + b~_j - log X_ij)^2
    f(x) = min(1, (x / x_max)^alpha)

AdaGrad minimises it, one record at a time, as in the authors' tool: its sums start at 1 and add squares of
the gradient of J / 2 times the learning rate.

**Deterministic mode.**  Words and contexts are divided into parts, by their number modulo ``parts``, so that
X is divided into blocks.  Blocks that share no part share no parameters.  The records of a portion are sorted
into blocks.  The blocks of one diagonal are trained at the same time, each on one thread, and the diagonals
one after another (Gemulla et al. 2011, "Large-scale matrix factorization with distributed stochastic gradient
descent").  No step reads stale parameters, and the result is bit-identical for any number of threads.  In the
fast mode (Hogwild), threads divide a portion among them and may overwrite each other's steps.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import NonFiniteError, VectorError, did_you_mean
from wordloom.threads import cores, run_on_threads
from wordloom.vectors.glove.cooccurrence import Cooccurrences
from wordloom.vectors.store.keyed import KeyedVectors
from wordloom.vectors.word2vec.trainer import PortionStats

if TYPE_CHECKING:
    from wordloom.vectors.corpus.vocabulary import WordVocabulary

OUTPUTS = ("sum", "words", "contexts", "both")
_CONSTANT = 1e38  # a sum of squares so large that steps vanish: the parameter stays constant
_SIDES = ("word", "context")
_SLICES = 8  # slices of a portion that are sorted into blocks in parallel


class GloVeProgress(NamedTuple):
    """The progress of training.

    Attributes:
        epoch, epochs: the current epoch, from 1 on, and the total.
        records, total: the trained records of the epoch, and all of them.
        loss: the mean of f(x) (...)^2 / 2 over the trained records.
    """

    epoch: int
    epochs: int
    records: int
    total: int
    loss: float


class GloVe:
    """The parameters of GloVe and their training.

    Attributes:
        vocab_size, dim: V words, D components.
        epoch: the number of complete epochs.
        position: the records trained in the current epoch.
        losses: the mean loss of each complete epoch, as in the authors' tool.
    """

    def __init__(
        self,
        vocab_size: int,
        *,
        dim: int = 100,
        x_max: float = 100.0,
        alpha: float = 0.75,
        learning_rate: float = 0.05,
        seed: int = 1,
        deterministic: bool = True,
        workers: int | None = None,
        portion: int = 1 << 22,
        parts: int = 16,
    ) -> None:
        """Initialise vectors and biases uniformly between -0.5 / D and 0.5 / D.

        Args:
            dim: D.  (The authors' tool has 50 by default; the paper's tables use 100 and 300.)
            x_max, alpha: the parameters of f.  The defaults are the paper's, for billions of words.  The
                authors' demo uses x_max 10 on 17 million words, which also gave better vectors here.
            learning_rate: the learning rate; the default is that of the authors' tool.
            seed: the seed of the initial vectors.
            deterministic: see the module.
            workers: threads; by default one per processor.
            portion: the number of records between calls of ``stop``.
            parts: see the module; a power of two.  In deterministic mode it limits the number of threads, and
                the result depends on ``portion`` and ``parts``.

        Raises VectorError if a setting is out of range.
        """
        whole = {"vocab_size": vocab_size, "dim": dim, "portion": portion, "parts": parts}
        whole["workers"] = workers = cores() if workers is None else workers
        for name, number in whole.items():
            if number < 1:
                raise VectorError(f"{name} {number} is not allowed; give 1 or more")
        if parts & (parts - 1):
            raise VectorError(f"parts {parts} is not allowed; give a power of two, such as 16")
        for name, value in (("x_max", x_max), ("alpha", alpha), ("learning_rate", learning_rate)):
            if not 0 < value < math.inf:
                raise VectorError(f"{name} {value} is not allowed; give a number above 0")
        self.vocab_size, self.dim, self.seed = vocab_size, dim, seed
        self.x_max, self.alpha, self.learning_rate = float(x_max), float(alpha), float(learning_rate)
        self.deterministic, self.workers, self.portion, self.parts = deterministic, workers, portion, parts
        self.epoch = self.position = 0
        self.losses: list[float] = []
        self._loss = 0.0  # sum over the current epoch
        self._trained_on = ""
        self._incomplete = False  # a portion was started and not finished
        self._rows = {side: _rows(vocab_size, dim, n) for n, side in enumerate(_SIDES)}
        random = np.random.default_rng(seed)
        for side in _SIDES:
            numbers = random.random((vocab_size, dim + 1), dtype=np.float32) - np.float32(0.5)
            numbers /= np.float32(dim)
            rows = self._rows[side]
            rows[:, 0, :dim], rows[:, 0, self._columns(side)[-1]] = numbers[:, :dim], numbers[:, dim]

    # -- parameters --------------------------------------------------------------------------------------

    def _columns(self, side: str) -> list[int]:
        """Return the columns of the components and, last, of the bias."""
        return [*range(self.dim), self.dim + _SIDES.index(side)]

    def vectors(self, output: str = "sum") -> NDArray[np.float32]:
        """Return the vectors [V, D]: W + W~ (``"sum"``), W (``"words"``) or W~ (``"contexts"``).

        ``"both"`` returns W and W~ concatenated, [V, 2 D].  Raises VectorError for another name.
        """
        if output not in OUTPUTS:
            raise VectorError(f"unknown output {output!r}; {did_you_mean(output, OUTPUTS)}")
        words, contexts = (self._rows[side][:, 0, : self.dim] for side in _SIDES)
        if output == "sum":
            return words + contexts
        if output == "both":
            return np.concatenate([words, contexts], axis=1)
        return (words if output == "words" else contexts).copy()

    def biases(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the biases b and b~, [V] each."""
        words, contexts = (self._rows[side][:, 0, self._columns(side)[-1]].copy() for side in _SIDES)
        return words, contexts

    def keyed_vectors(self, vocabulary: WordVocabulary, output: str = "sum") -> KeyedVectors:
        """Return :meth:`vectors` with the words and counts of ``vocabulary``.

        Raises VectorError if the vocabulary has another number of words.
        """
        if len(vocabulary) != self.vocab_size:
            raise VectorError(
                f"the vocabulary has {len(vocabulary):,} words and the vectors {self.vocab_size:,}; "
                "give the one they were trained with"
            )
        return KeyedVectors(vocabulary.words, self.vectors(output), counts=vocabulary.counts)

    # -- training ----------------------------------------------------------------------------------------

    def describe(self) -> str:
        """Return one line about the kernel, its threads and its reproducibility."""
        from wordloom.kernels.registers import LANES

        threads = f"{self.workers} thread{'s' * (self.workers > 1)}"
        if self.deterministic:
            mode = f"deterministic, {self.parts} x {self.parts} blocks"
        else:
            mode = "Hogwild: not deterministic" if self.workers > 1 else "in order"
        return f"GloVe by AdaGrad, numba, {LANES} floats at a time, {threads}, {mode}"

    def train(
        self,
        cooccurrences: Cooccurrences,
        *,
        epochs: int = 25,
        stop: Callable[[], bool] | None = None,
        progress: Callable[[GloVeProgress], None] | None = None,
    ) -> bool:
        """Train until ``epochs`` are complete, including those of earlier calls.

        An exception within a portion, such as KeyboardInterrupt, leaves it incomplete.  Then this method and
        :meth:`state` raise VectorError until :meth:`restore` is called.

        Args:
            epochs: the authors' tool has 25 by default; the paper uses 50 for fewer than 300 components.
            stop: called between portions; training stops if it returns True, and another call continues.
            progress: called after each portion.

        Returns:
            Whether all epochs are complete.

        Raises:
            VectorError: ``cooccurrences`` have another vocabulary, or differ from those of the current epoch.
            NonFiniteError: the loss is not finite.
        """
        self._check_complete()
        if epochs < 1:
            raise VectorError(f"epochs {epochs} is not allowed; give 1 or more")
        if cooccurrences.vocab_size != self.vocab_size:
            raise VectorError(
                f"the co-occurrences have {cooccurrences.vocab_size:,} words and the vectors "
                f"{self.vocab_size:,}; give those of the same vocabulary"
            )
        if self.position and self._trained_on != cooccurrences.fingerprint:
            raise VectorError(f"epoch {self.epoch + 1} started with other co-occurrences; continue with them")
        self._trained_on = cooccurrences.fingerprint
        cells, total = cooccurrences.cells, len(cooccurrences)
        while self.epoch < epochs:
            if stop is not None and stop():
                return False
            part = np.array(cells[self.position : self.position + self.portion])
            if int(part[:, :2].max()) >= self.vocab_size:  # the kernels do not check bounds
                raise VectorError(
                    f"'{cooccurrences.folder}' is damaged: it has a word beyond the {self.vocab_size:,} of "
                    "the vocabulary; count again"
                )
            self._train_portion(part)
            self.position = min(self.position + self.portion, total)
            if progress is not None:
                mean = self._loss / self.position
                progress(GloVeProgress(self.epoch + 1, epochs, self.position, total, mean))
            if self.position == total:
                self.losses.append(self._loss / total)
                self.epoch, self.position, self._loss = self.epoch + 1, 0, 0.0
        return True

    def _check_complete(self) -> None:
        if self._incomplete:
            raise VectorError("training was interrupted within a portion; restore the last saved state")

    def _train_portion(self, cells: NDArray[np.uint32]) -> None:
        self._incomplete = True
        if self.deterministic:
            cells, blocks = sorted_into_blocks(cells, self.parts, self.workers)
            portion_loss = 0.0
            for diagonal in blocks:  # [parts, 2]
                shares = [diagonal[n :: self.workers] for n in range(self.workers)]
                portion_loss += self._descend(cells, shares)
            self._loss += portion_loss
        else:
            bounds = [len(cells) * n // self.workers for n in range(self.workers + 1)]
            stretches = np.array([bounds[:-1], bounds[1:]], dtype=np.int64).T.copy()  # [workers, 2]
            self._loss += self._descend(cells, list(stretches[:, None]))
        if not math.isfinite(self._loss):
            raise NonFiniteError(
                f"the loss became {self._loss} in epoch {self.epoch + 1}, within {self.portion:,} records "
                f"after the {self.position:,}th; lower learning_rate ({self.learning_rate:g})"
            )
        self._incomplete = False

    def _descend(self, cells: NDArray[np.uint32], shares: list[NDArray[np.int64]]) -> float:
        """Train each share of ranges on a thread and return the sum of the losses."""
        from wordloom.vectors.glove.kernels import descend

        def train(number: int) -> NDArray[np.float64]:
            stretches = np.ascontiguousarray(shares[number])
            losses = np.zeros(len(stretches))
            descend(
                cells, stretches, self._rows["word"], self._rows["context"], self.x_max, self.alpha,
                self.learning_rate, losses,
            )  # fmt: skip
            return losses

        losses = run_on_threads(len(shares), train)
        return math.fsum(np.concatenate(losses).tolist())  # exact, so the order does not matter

    # -- state -------------------------------------------------------------------------------------------

    def _settings(self) -> dict[str, Any]:
        """Return the settings that must not change when training continues."""
        names = ["vocab_size", "dim", "x_max", "alpha", "learning_rate", "deterministic", "portion", "parts"]
        return {name: getattr(self, name) for name in names}

    def state(self) -> tuple[dict[str, NDArray[np.float32]], dict[str, Any]]:
        """Return the arrays and JSON values that :meth:`restore` needs.

        The arrays are ``*_rows`` and ``*_squares`` [V, D + 1] for ``word`` and ``context``: the parameters,
        with the bias last, and their AdaGrad sums.

        Raises VectorError if training was interrupted within a portion.
        """
        self._check_complete()
        arrays = {}
        for side in _SIDES:
            own = self._columns(side)
            arrays[f"{side}_rows"] = self._rows[side][:, 0, own]
            arrays[f"{side}_squares"] = self._rows[side][:, 1, own]
        numbers = {
            **self._settings(),
            "seed": self.seed,
            "epoch": self.epoch,
            "position": self.position,
            "losses": list(self.losses),
            "loss": self._loss,
            "trained_on": self._trained_on,
        }
        return arrays, numbers

    def restore(self, arrays: dict[str, NDArray[np.float32]], numbers: dict[str, Any]) -> None:
        """Restore a :meth:`state` exactly.  The number of workers may differ.

        Raises VectorError if the state has other settings, or arrays are missing or have another shape.
        """
        for name, here in self._settings().items():
            if numbers.get(name) != here:
                raise VectorError(
                    f"the saved state has {name} {numbers.get(name)}, not {here}; "
                    "use the same settings, or start from scratch"
                )
        expected = (self.vocab_size, self.dim + 1)
        for name in (f"{side}_{kind}" for side in _SIDES for kind in ("rows", "squares")):
            if name not in arrays or arrays[name].shape != expected:
                found = list(arrays[name].shape) if name in arrays else "missing"
                raise VectorError(
                    f"the saved state is damaged: {name} is {found} and must be {list(expected)}"
                )
        for side in _SIDES:
            own = self._columns(side)
            self._rows[side][:, 0, own] = arrays[f"{side}_rows"]
            self._rows[side][:, 1, own] = arrays[f"{side}_squares"]
        self.seed, self.epoch, self.position = numbers["seed"], numbers["epoch"], numbers["position"]
        self.losses, self._loss = list(numbers["losses"]), numbers["loss"]
        self._trained_on, self._incomplete = numbers["trained_on"], False


def _rows(V: int, dim: int, side: int) -> NDArray[np.float32]:
    """Return rows for the kernels, [V, 2, P], aligned to cache lines, with components and biases of 0."""
    from wordloom.kernels.registers import LANES
    from wordloom.vectors.word2vec.layout import aligned

    rows = aligned(V, 2, -(-(dim + 2) // LANES) * LANES)
    rows[:, 1] = 1
    rows[:, 0, dim + 1 - side], rows[:, 1, dim + 1 - side] = 1, _CONSTANT
    return rows


def sorted_into_blocks(
    cells: NDArray[np.uint32], parts: int, workers: int
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Sort records [n, 3] stably by block; also return the start and end of each block
    [diagonal, part, 2] int64."""
    from wordloom.vectors.glove.kernels import count_blocks, fill_blocks

    pieces = np.array_split(cells, _SLICES)
    counts = np.empty((_SLICES, parts * parts), dtype=np.int64)
    run_on_threads(workers, lambda n: count_blocks(pieces[n], parts, counts[n]), _SLICES)
    # A block consists of its records in the first slice, then in the second, and so on.
    ends = np.cumsum(counts.T).reshape(parts * parts, _SLICES)  # [block, piece]
    places = np.ascontiguousarray((ends - counts.T).T)  # [piece, block]
    blocks = np.stack([places[0], ends[:, -1]], axis=1).reshape(parts, parts, 2)
    out = np.empty_like(cells)
    run_on_threads(workers, lambda n: fill_blocks(pieces[n], parts, places[n], out), _SLICES)
    return out, blocks


class GloVeTrainer:
    """Trains ``model`` on co-occurrences.

    Attributes:
        job, jobs: the number of the next portion of records, counted over all epochs, and the total.
        alpha: the initial learning rate of AdaGrad.
        unit: the unit of the reported speed.
        device: always the CPU.
    """

    unit, device = "records", "cpu"

    def __init__(self, model: GloVe, cooccurrences: Cooccurrences, *, epochs: int) -> None:
        self.model, self.cooccurrences, self.epochs = model, cooccurrences, epochs
        self._portions = -(-len(cooccurrences) // model.portion)
        self.jobs = epochs * self._portions
        self.alpha = model.learning_rate

    @property
    def job(self) -> int:
        return self.model.epoch * self._portions + -(-self.model.position // self.model.portion)

    @property
    def done(self) -> bool:
        return self.model.epoch >= self.epochs

    @property
    def kernel(self) -> str:
        """One line about the kernel, its threads and its reproducibility."""
        return self.model.describe()

    @property
    def inputs(self) -> NDArray[np.float32]:
        """The word vectors W + W~ [V, D]."""
        return self.model.vectors()

    def run(self) -> PortionStats:
        """Train on the next portion of records; ``loss`` is the mean over the epoch so far."""
        seen: list[GloVeProgress] = []
        before = self.model.position
        self.model.train(
            self.cooccurrences, epochs=self.epochs, stop=lambda: bool(seen), progress=seen.append
        )
        return PortionStats(words=seen[0].records - before, windows=0, loss=seen[0].loss)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything that :meth:`restore` needs."""
        arrays, numbers = self.model.state()
        return {**arrays, "numbers": np.frombuffer(json.dumps(numbers).encode(), dtype=np.uint8)}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore ``state``; raise VectorError if it belongs to other settings."""
        arrays = {name: array for name, array in state.items() if name != "numbers"}
        self.model.restore(arrays, json.loads(state["numbers"].tobytes()))
