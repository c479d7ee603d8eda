"""What an encoder leaves for its decoder."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

__all__ = ["Memory"]


class Memory(NamedTuple):
    """A batch of sources, read.  B rows, S source positions.

    Attributes:
        values: ``[B, S, D]`` a vector for each source token.
        attend: ``[B, S]`` True where a token is real; ``None``: everywhere.
        state: further tensors, each ``[B, ...]``: what a recurrent decoder begins with.
    """

    values: Tensor
    attend: Tensor | None = None
    state: tuple[Tensor, ...] = ()

    def select(self, rows: Tensor) -> Memory:
        """These rows in this order, as :meth:`wordloom.nn.cache.Cache.select` takes them."""
        attend = None if self.attend is None else self.attend[rows]
        return Memory(self.values[rows], attend, tuple(part[rows] for part in self.state))
