"""GloVe: word vectors whose products are the logarithms of co-occurrence counts.

Pennington, Socher & Manning 2014.  Equation 8, weighted least squares:

    J = sum over i, j with X_ij > 0 of  f(X_ij) (w_i w~_j + b_i + b~_j - log X_ij)^2
    f(x) = min(1, (x / x_max)^alpha)

is gone down by AdaGrad, one record at a time, as the authors' tool does it: what AdaGrad adds up are squares
of the gradient times the learning rate, from 1 on, and the gradient is that of J / 2.
:mod:`wordloom.vectors.glove.twin` is the same in plain numpy.

**Deterministic mode.**  Words and contexts are divided into parts, by their number modulo ``parts``, so that
X falls into blocks, and blocks that share no part have no parameter in common.  The records of a portion are
sorted into blocks, and the blocks of a diagonal trained at the same time, each by one thread, the diagonals
one after another (Gemulla et al. 2011, "Large-scale matrix factorization with distributed stochastic gradient
descent").  No step sees stale parameters, and the result is that of one thread, bit for bit, for any number
of them.  In the fast mode (hogwild) threads share out a portion as it lies and write over one another's steps
where they meet.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import NonFiniteError, VectorError, did_you_mean
from wordloom.text.cores import cores
from wordloom.vectors.store.keyed import KeyedVectors

if TYPE_CHECKING:
    from wordloom.vectors.corpus.vocabulary import WordVocabulary
    from wordloom.vectors.glove.cooccurrence import Cooccurrences

__all__ = ["GloVe", "GloVeProgress"]

OUTPUTS = ("sum", "words", "contexts", "both")
_CONSTANT = 1e38  # a sum of squares beside which any step is nothing: what has it stays as it is
_SIDES = ("word", "context")
_SLICES = 8  # pieces of a portion that are sorted into blocks at a time


class GloVeProgress(NamedTuple):
    """How far training is.

    Attributes:
        epoch, epochs: the epoch under way, counted from 1, of how many.
        records, total: records of it that are trained, of how many.
        loss: mean of f(x) (...)^2 / 2 over these.
    """

    epoch: int
    epochs: int
    records: int
    total: int
    loss: float


class GloVe:
    """Parameters of GloVe and their training.

    Attributes:
        vocab_size, dim: V words, D components.
        epoch: epochs that are complete.
        position: records trained in the epoch under way.
        losses: mean loss of each complete epoch, as the authors' tool prints it.
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
        """Begins with vectors and biases drawn evenly from -0.5 / D to 0.5 / D.

        Args:
            vocab_size: V.
            dim: D.  (The authors' tool has 50 by default; the paper's tables use 100 and 300.)
            x_max, alpha: of f; the paper's values, for corpora of billions of words.  The authors' demo
                takes x_max 10 on 17 million, which on novels of that size gave better vectors here as well.
            learning_rate: eta of the authors' tool, their value.
            seed: of the first vectors.
            deterministic: see the module.
            workers: threads; by default one per processor.
            portion: records between two looks at ``stop``.
            parts: see the module; a power of two.  In deterministic mode no more threads than that have
                work, and the result depends on ``portion`` and ``parts``.

        Raises:
            VectorError: a setting is out of range.
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
        self._loss = 0.0  # sum over the epoch under way
        self._trained_on = ""
        self._torn = False  # whether a portion was begun and not finished
        self._rows = {side: _rows(vocab_size, dim, n) for n, side in enumerate(_SIDES)}
        random = np.random.default_rng(seed)
        for side in _SIDES:
            first = (random.random((vocab_size, dim + 1), dtype=np.float32) - np.float32(0.5)) / np.float32(
                dim
            )
            self._set(side, first[:, :dim], first[:, dim])

    # -- parameters --------------------------------------------------------------------------------------

    def _own(self, side: str) -> list[int]:
        """Where the components and the bias of a row lie."""
        return [*range(self.dim), self.dim + _SIDES.index(side)]

    def _set(self, side: str, vectors: NDArray[np.float32], biases: NDArray[np.float32]) -> None:
        rows = self._rows[side]
        rows[:, 0, : self.dim], rows[:, 0, self._own(side)[-1]] = vectors, biases

    def vectors(self, output: str = "sum") -> NDArray[np.float32]:
        """Vectors [V, D]: W + W~ as ``"sum"``, W as ``"words"``, W~ as ``"contexts"``; or ``"both"``, W and
        W~ side by side, [V, 2 D].

        Raises VectorError for another name.
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
        """The biases b and b~, [V] each."""
        words, contexts = (self._rows[side][:, 0, self._own(side)[-1]].copy() for side in _SIDES)
        return words, contexts

    def keyed_vectors(self, vocabulary: WordVocabulary, output: str = "sum") -> KeyedVectors:
        """:meth:`vectors` of the words of ``vocabulary``, with their counts.

        Raises VectorError where the vocabulary has another number of words.
        """
        if len(vocabulary) != self.vocab_size:
            raise VectorError(
                f"the vocabulary has {len(vocabulary):,} words and the vectors {self.vocab_size:,}; "
                "give the one they were trained with"
            )
        return KeyedVectors(vocabulary.words, self.vectors(output), counts=vocabulary.counts)

    # -- training ----------------------------------------------------------------------------------------

    def describe(self) -> str:
        """One line on what trains."""
        from wordloom.kernels.registers import LANES

        threads = f"{self.workers} thread{'s' * (self.workers > 1)}"
        if self.deterministic:
            mode = f"deterministic, {self.parts} x {self.parts} blocks"
        else:
            mode = "hogwild: the same seed gives other vectors" if self.workers > 1 else "in order"
        return f"GloVe by AdaGrad, numba, {LANES} floats at a time, {threads}, {mode}"

    def train(
        self,
        cooccurrences: Cooccurrences,
        *,
        epochs: int = 25,
        stop: Callable[[], bool] | None = None,
        progress: Callable[[GloVeProgress], None] | None = None,
    ) -> bool:
        """Train until ``epochs`` are complete in all, those before this call included.

        Args:
            cooccurrences: what to train on.
            epochs: 25 is the default of the authors' tool; the paper takes 50 for vectors below 300.
            stop: asked between portions; training ends there if it says so, and goes on from there by
                another call.
            progress: told after each portion.

        Returns:
            Whether all epochs are complete.

        Raises:
            VectorError: ``cooccurrences`` are of another vocabulary, or others than the epoch was begun with.
            NonFiniteError: the loss is infinite or no number.

        Whatever is raised within a portion, KeyboardInterrupt too, leaves it half trained: then neither this
        nor :meth:`state` will go on before :meth:`restore`.
        """
        self._whole()
        if epochs < 1:
            raise VectorError(f"epochs {epochs} is not allowed; give 1 or more")
        if cooccurrences.vocab_size != self.vocab_size:
            raise VectorError(
                f"the co-occurrences are of {cooccurrences.vocab_size:,} words and the vectors of "
                f"{self.vocab_size:,}; give those of the same vocabulary"
            )
        if self.position and self._trained_on != cooccurrences.fingerprint:
            raise VectorError(f"epoch {self.epoch + 1} was begun with other co-occurrences; go on with those")
        self._trained_on = cooccurrences.fingerprint
        cells, total = cooccurrences.cells, len(cooccurrences)
        with ThreadPoolExecutor(self.workers, "wordloom-glove") as pool:
            while self.epoch < epochs:
                if stop is not None and stop():
                    return False
                part = np.array(cells[self.position : self.position + self.portion])
                if int(part[:, :2].max()) >= self.vocab_size:  # the kernels do not check their bounds
                    raise VectorError(
                        f"'{cooccurrences.folder}' is damaged: it has a pair of words beyond the "
                        f"{self.vocab_size:,} there are; count again"
                    )
                self._train_portion(pool, part)
                self.position = min(self.position + self.portion, total)
                if progress is not None:
                    mean = self._loss / self.position
                    progress(GloVeProgress(self.epoch + 1, epochs, self.position, total, mean))
                if self.position == total:
                    self.losses.append(self._loss / total)
                    self.epoch, self.position, self._loss = self.epoch + 1, 0, 0.0
        return True

    def _whole(self) -> None:
        if self._torn:
            raise VectorError(
                "training was broken off within a portion; restore the last state that was saved"
            )

    def _train_portion(self, pool: ThreadPoolExecutor, cells: NDArray[np.uint32]) -> None:
        self._torn = True
        if self.deterministic:
            self._loss += self._train_blocks(pool, cells)
        else:
            bounds = [len(cells) * n // self.workers for n in range(self.workers + 1)]
            stretches = np.array([bounds[:-1], bounds[1:]], dtype=np.int64).T.copy()  # [workers, 2]
            self._loss += self._descend(pool, cells, list(stretches[:, None]))
        if not math.isfinite(self._loss):
            raise NonFiniteError(
                f"the loss became {self._loss} in epoch {self.epoch + 1}, within {self.portion:,} records "
                f"after the {self.position:,}th; lower learning_rate ({self.learning_rate:g})"
            )
        self._torn = False

    def _train_blocks(self, pool: ThreadPoolExecutor, cells: NDArray[np.uint32]) -> float:
        cells, blocks = sorted_into_blocks(pool, cells, self.parts)
        loss = 0.0
        for diagonal in blocks:  # [parts, 2]
            loss += self._descend(pool, cells, [diagonal[n :: self.workers] for n in range(self.workers)])
        return loss

    def _descend(
        self, pool: ThreadPoolExecutor, cells: NDArray[np.uint32], shares: list[NDArray[np.int64]]
    ) -> float:
        """Train a share of stretches on each thread; the losses are added up in the stretches' order."""
        from wordloom.vectors.glove.kernels import descend

        def train(stretches: NDArray[np.int64]) -> NDArray[np.float64]:
            losses = np.zeros(len(stretches))
            descend(
                cells, np.ascontiguousarray(stretches), self._rows["word"], self._rows["context"],
                self.x_max, self.alpha, self.learning_rate, losses,
            )  # fmt: skip
            return losses

        found = list(pool.map(train, [share for share in shares if len(share)]))
        return math.fsum(np.concatenate(found).tolist())  # exact, so in whatever order

    # -- state -------------------------------------------------------------------------------------------

    def _settings(self) -> dict[str, Any]:
        """What must be the same for training to go on exactly."""
        names = ["vocab_size", "dim", "x_max", "alpha", "learning_rate", "deterministic", "portion", "parts"]
        return {name: getattr(self, name) for name in names}

    def state(self) -> tuple[dict[str, NDArray[np.float32]], dict[str, Any]]:
        """All that :meth:`restore` needs: arrays, and numbers that JSON takes.

        The arrays are, for ``word`` and ``context`` each, ``*_rows`` and ``*_squares`` [V, D + 1]: the
        parameters, bias last, and AdaGrad's sums of them.

        Raises VectorError where training was broken off within a portion.
        """
        self._whole()
        arrays = {}
        for side in _SIDES:
            own = self._own(side)
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
        """Go on from what :meth:`state` gave, exactly.  The number of workers may be another.

        Raises:
            VectorError: the state is of other settings, or arrays are missing or of another shape.
        """
        for name, here in self._settings().items():
            if numbers.get(name) != here:
                raise VectorError(
                    f"the state to go on from has {name} {numbers.get(name)}, not {here}; "
                    "give the same, or begin anew"
                )
        expected = (self.vocab_size, self.dim + 1)
        for name in (f"{side}_{kind}" for side in _SIDES for kind in ("rows", "squares")):
            if name not in arrays or arrays[name].shape != expected:
                found = list(arrays[name].shape) if name in arrays else "missing"
                raise VectorError(
                    f"the state to go on from is damaged: {name} is {found} where {list(expected)} belongs"
                )
        for side in _SIDES:
            own = self._own(side)
            self._rows[side][:, 0, own] = arrays[f"{side}_rows"]
            self._rows[side][:, 1, own] = arrays[f"{side}_squares"]
        self.seed, self.epoch, self.position = numbers["seed"], numbers["epoch"], numbers["position"]
        self.losses, self._loss = list(numbers["losses"]), numbers["loss"]
        self._trained_on, self._torn = numbers["trained_on"], False


def _rows(V: int, dim: int, side: int) -> NDArray[np.float32]:
    """Rows as the kernels take them, [V, 2, P]: components and bias 0, and every row on a cache line."""
    from wordloom.kernels.registers import LANES

    P = -(-(dim + 2) // LANES) * LANES
    room = np.empty(V * 2 * P + 16, dtype=np.float32)
    start = (-room.ctypes.data % 64) // 4
    rows = room[start : start + V * 2 * P].reshape(V, 2, P)
    rows[:, 0], rows[:, 1] = 0, 1
    rows[:, 0, dim + 1 - side], rows[:, 1, dim + 1 - side] = 1, _CONSTANT
    return rows


def sorted_into_blocks(
    pool: ThreadPoolExecutor, cells: NDArray[np.uint32], parts: int
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Records [n, 3] by block, in their order within each, and where blocks begin and end:
    [diagonal, part, 2] int64."""
    from wordloom.vectors.glove.kernels import count_blocks, fill_blocks

    pieces = np.array_split(cells, _SLICES)
    counts = np.empty((_SLICES, parts * parts), dtype=np.int64)
    list(pool.map(lambda n: count_blocks(pieces[n], parts, counts[n]), range(_SLICES)))
    # A block holds what each piece has of it, piece after piece.
    ends = np.cumsum(counts.T).reshape(parts * parts, _SLICES)  # [block, piece]
    places = np.ascontiguousarray((ends - counts.T).T)  # [piece, block]
    blocks = np.stack([places[0], ends[:, -1]], axis=1).reshape(parts, parts, 2)
    out = np.empty_like(cells)
    list(pool.map(lambda n: fill_blocks(pieces[n], parts, places[n], out), range(_SLICES)))
    return out, blocks
