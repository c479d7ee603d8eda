"""bioD, facts without prose: people with two-token names, and a one-token value for each attribute.

This is the data set bioD of Allen-Zhu & Li 2024 (arXiv:2404.05405), with C = L = 1.  An exposure shows all
people once, in a new order.  A row is one person, whose attributes also come in a new order each time::

    end  name name  marker value  marker value  ...  marker value  end
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from wordloom.data.batches.causal import CausalBatch
from wordloom.errors import ConfigError
from wordloom.lab.capacity.bits import KnowledgeSpace
from wordloom.lab.capacity.facts import NAME, VALUE, Rows

END = 0  # the token before and after each person
_WORLD, _TRAINING, _MEASURING = range(3)  # streams of random numbers of one seed


@dataclass(frozen=True, kw_only=True)
class BioD:
    """The facts of ``people`` people, which depend on ``seed`` alone.

    Attributes:
        people: N.
        seed: the random seed of names, values and orders.
        name_tokens: the number of tokens that names are made of; names are distinct pairs of them.
        attributes: K.
        values: D, the number of value tokens, which all attributes share.
    """

    people: int
    seed: int = 0
    name_tokens: int = 256
    attributes: int = 8
    values: int = 512

    def __post_init__(self) -> None:
        for name in ("people", "name_tokens", "attributes", "values"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be 1 or more, not {getattr(self, name)}")
        if self.seed < 0:
            raise ConfigError(f"seed must be 0 or more, not {self.seed}")
        if self.people > self.name_tokens**2:
            raise ConfigError(
                f"{self.name_tokens} name tokens make {self.name_tokens**2:,} names, too few for "
                f"{self.people:,} people"
            )

    @property
    def space(self) -> KnowledgeSpace:
        """The possible names, and the bits of the possible values of one person."""
        return KnowledgeSpace(self.name_tokens**2, self.attributes * float(np.log2(self.values)))

    @property
    def vocab_size(self) -> int:
        """The number of tokens: end, then names, markers and values."""
        return 1 + self.name_tokens + self.attributes + self.values

    @property
    def window(self) -> int:
        """T, the number of predictions in a row."""
        return 2 * self.attributes + 3

    def rows(self, exposures: int) -> int:
        """Return the number of rows that show each person ``exposures`` times."""
        return self.people * exposures

    def training(self) -> Exposures:
        """Return the endless sequence of rows of training."""
        return Exposures(self)

    def measuring(self, orders: int, rows: int) -> Iterator[Rows]:
        """Yield one row of each person in each of ``orders`` orders that training does not use."""
        exposures, count = Exposures(self, measuring=True), self.people * orders
        parts = torch.zeros(self.window, dtype=torch.uint8)  # REST
        parts[:2] = NAME
        parts[3:-1:2] = VALUE
        for start in range(0, count, rows):
            batch = exposures.batch(start, min(rows, count - start))
            yield Rows(batch.tokens, batch.targets, parts.expand_as(batch.targets))

    @cached_property
    def _world(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        draw = np.random.default_rng([self.seed, _WORLD])
        chosen = draw.random(self.name_tokens**2).argsort()[: self.people]  # [N]
        names = np.stack(np.divmod(chosen, self.name_tokens), axis=1) + 1  # [N, 2]
        first_value = 1 + self.name_tokens + self.attributes
        shape = (self.people, self.attributes)
        values = first_value + (draw.random(shape) * self.values).astype(np.int64)  # [N, K]
        return names.astype(np.int64), values

    @property
    def names(self) -> NDArray[np.int64]:
        """The two tokens of each name, [N, 2]; all names differ."""
        return self._world[0]

    @property
    def value_tokens(self) -> NDArray[np.int64]:
        """The value of each attribute, [N, K]."""
        return self._world[1]

    @property
    def used_tokens(self) -> int:
        """The number of tokens that occur in the rows."""
        return 1 + self.attributes + len(np.unique(self.names)) + len(np.unique(self.value_tokens))

    def tokens(self, people: NDArray[np.int64], orders: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of ``people`` [B] with their attributes in ``orders`` [B, K]: [B, T + 1]."""
        rows = np.full((len(people), self.window + 1), END, dtype=np.int64)
        rows[:, 1:3] = self.names[people]
        rows[:, 3:-1:2] = 1 + self.name_tokens + orders  # markers
        rows[:, 4:-1:2] = self.value_tokens[people[:, None], orders]
        return rows


class Exposures:
    """An endless sequence of rows of ``facts``, addressed by index; row i belongs to exposure i // N.

    The rows are a function of (seed, index).  The memory does not grow with the number of exposures.  With
    ``measuring``, the orders differ from those of training.
    """

    def __init__(self, facts: BioD, *, measuring: bool = False) -> None:
        self.facts = facts
        self.samples_per_epoch = facts.people
        self._stream = _MEASURING if measuring else _TRAINING
        self._exposure = lru_cache(maxsize=2)(self._draw)

    def batch(self, start: int, count: int) -> CausalBatch:
        """Return rows ``start`` to ``start + count`` as tokens and targets [count, T]."""
        rows = torch.from_numpy(self._rows(start, count))  # [count, T + 1]
        return CausalBatch(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())

    def document_ids(self, start: int, count: int) -> list[str]:
        """Return the names of rows for error messages."""
        N = self.facts.people
        return [f"row {i % N} of exposure {i // N}" for i in range(start, start + count)]

    def _rows(self, start: int, count: int) -> NDArray[np.int64]:
        parts, N = [], self.facts.people
        while count > 0:
            exposure, first = divmod(start, N)
            taken = slice(first, min(N, first + count))
            people, orders = self._exposure(exposure)
            parts.append(self.facts.tokens(people[taken], orders[taken]))
            start, count = start + taken.stop - first, count - (taken.stop - first)
        return np.concatenate(parts)

    def _draw(self, exposure: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the people [N] of an exposure and the orders of their attributes [N, K]."""
        draw = np.random.default_rng([self.facts.seed, self._stream, exposure])
        people = draw.random(self.facts.people).argsort()
        return people, draw.random((self.facts.people, self.facts.attributes)).argsort(axis=1)
