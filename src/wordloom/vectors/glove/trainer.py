"""Train GloVe one portion of records at a time, with the interface of :class:`WordTrainer`."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wordloom.vectors.glove.cooccurrence import Cooccurrences
from wordloom.vectors.glove.model import GloVe, GloVeProgress
from wordloom.vectors.word2vec.trainer import PortionStats


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
