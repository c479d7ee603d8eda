"""Bits of knowledge from losses.

N people have distinct names out of N0 possible ones, and each has one of S0 possible combinations of values.
A model with the loss p1 on names and p2 on values, in nats for each person, stores about::

    R     = N log2(N0 / e^p1) + N log2(S0 / e^p2)      bits, a lower bound up to lower-order terms
    R_max = N log2(N0 / N)    + N log2(S0)             bits, if it knows all facts and nothing else

p1 is at least ln N, because a model without context can only guess which person comes next.  p2 is at least
0.  So R is at most R_max.  A uniform predictor has p1 = ln N0 and p2 = ln S0, and stores 0 bits.

Source: Allen-Zhu & Li 2024, arXiv:2404.05405, definition of R(F) and theorem 3.2.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from wordloom.errors import ConfigError


class Nats(NamedTuple):
    """The mean loss for each person, in nats; losses of several tokens are added, not averaged.

    Attributes:
        names: p1, of the whole name.
        values: p2, of all values together.
    """

    names: float
    values: float


class StoredBits(NamedTuple):
    """Bits of knowledge of all people together."""

    names: float
    values: float

    @property
    def total(self) -> float:
        return self.names + self.values


class KnowledgeSpace(NamedTuple):
    """The names and values that people can have.

    Attributes:
        names: N0, the number of possible names.
        value_bits: log2 S0, for the S0 possible combinations of one person's values.
    """

    names: int
    value_bits: float

    def stored(self, people: int, nats: Nats) -> StoredBits:
        """Return R for a model with losses ``nats`` on ``people`` people.

        The bits are negative for a model that is worse than the uniform predictor.
        """
        self._check(people)
        return StoredBits(
            people * (math.log2(self.names) - nats.names / math.log(2)),
            people * (self.value_bits - nats.values / math.log(2)),
        )

    def most(self, people: int) -> StoredBits:
        """Return R_max, the bits of a table of all facts of ``people`` people."""
        self._check(people)
        return StoredBits(people * math.log2(self.names / people), people * self.value_bits)

    def _check(self, people: int) -> None:
        if not 1 <= people <= self.names:
            raise ConfigError(f"people must be from 1 to the {self.names:,} possible names, not {people:,}")


#: The biographies of the paper (bioS): 400 x 400 x 1,000 names; 2 pronouns, 12 x 28 x 200 birthdays, 200
#: cities, 300 universities, 100 majors and 263 companies.  A company decides the city where a person works.
BIOGRAPHIES = KnowledgeSpace(400 * 400 * 1_000, math.log2(2 * (12 * 28 * 200) * 200 * 300 * 100 * 263))
