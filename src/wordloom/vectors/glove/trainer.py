"""GloVe a portion of records at a time, with the interface that :class:`wordloom.vectors.WordTrainer` has."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wordloom.vectors.glove.cooccurrence import Cooccurrences
from wordloom.vectors.glove.model import GloVe, GloVeProgress
from wordloom.vectors.word2vec.trainer import Figures

__all__ = ["GloVeTrainer"]


class GloVeTrainer:
    """Trains ``model`` on co-occurrences.

    Attributes:
        job: the next portion of records, counted over all epochs; ``jobs`` of them are to do.
        alpha: the learning rate; AdaGrad divides it as it goes.
        unit: what :class:`Figures` counts.
        device: where it runs.
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
        """One line: what runs, on how many threads, and whether it can be repeated."""
        return self.model.describe()

    @property
    def inputs(self) -> NDArray[np.float32]:
        """W + W~, [V, D]."""
        return self.model.vectors()

    def run(self) -> Figures:
        """Train on the next portion of records; ``loss`` is the mean of the epoch so far."""
        seen: list[GloVeProgress] = []
        before = self.model.position
        self.model.train(
            self.cooccurrences, epochs=self.epochs, stop=lambda: bool(seen), progress=seen.append
        )
        return Figures(words=seen[0].records - before, windows=0, loss=seen[0].loss)

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything that goes on from here."""
        arrays, numbers = self.model.state()
        return {**arrays, "numbers": np.frombuffer(json.dumps(numbers).encode(), dtype=np.uint8)}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Go on from ``state``; raises VectorError where it is of other settings."""
        arrays = {name: array for name, array in state.items() if name != "numbers"}
        self.model.restore(arrays, json.loads(state["numbers"].tobytes()))
