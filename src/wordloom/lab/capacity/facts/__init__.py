"""Synthetic facts about people, whose entropy is known: bioD in tokens, and bioS as English biographies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from torch import Tensor

from wordloom.lab.capacity.bits import KnowledgeSpace
from wordloom.training.trainer import Batches

#: What a predicted token belongs to: markers and words of sentences, a name, or a value.
REST, NAME, VALUE = range(3)


class Rows(NamedTuple):
    """Rows that losses are measured on.

    Attributes:
        tokens: the inputs, [B, T] int64.
        targets: the token after each input, [B, T] int64; IGNORE behind the end of a shorter row.
        parts: what each target belongs to, [B, T]: REST, NAME or VALUE.
    """

    tokens: Tensor
    targets: Tensor
    parts: Tensor


class Facts(Protocol):
    """The facts of ``people`` people, N."""

    @property
    def people(self) -> int: ...

    @property
    def space(self) -> KnowledgeSpace:
        """The possible names, and the bits of the possible values of one person."""
        ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def used_tokens(self) -> int:
        """The number of tokens that occur in the rows."""
        ...

    @property
    def window(self) -> int:
        """T, the number of predictions in a row of training."""
        ...

    def rows(self, exposures: int) -> int:
        """Return the number of rows of training that show each person ``exposures`` times."""
        ...

    def training(self) -> Batches:
        """Return the endless sequence of rows of training."""
        ...

    def measuring(self, orders: int, rows: int) -> Iterator[Rows]:
        """Yield one row of each person in each of ``orders`` orders that training does not use.

        At most ``rows`` rows come together.
        """
        ...
