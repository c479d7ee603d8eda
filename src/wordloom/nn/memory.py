"""The output of an encoder that its decoder reads."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Memory(NamedTuple):
    """A batch of encoded sources: B rows, S source positions.

    Attributes:
        values: ``[B, S, D]``, a vector for each source token.
        attend: ``[B, S]``, True for real tokens; ``None``: all are real.
        state: the initial state of a recurrent decoder: ``[B, R]``, or ``[B, S, A]`` by source token.
    """

    values: Tensor
    attend: Tensor | None = None
    state: tuple[Tensor, ...] = ()

    def select(self, rows: Tensor) -> Memory:
        """Return these rows in this order; a row may be repeated."""
        attend = None if self.attend is None else self.attend[rows]
        return Memory(self.values[rows], attend, tuple(part[rows] for part in self.state))

    def join(self, other: Memory) -> Memory:
        """Return the rows of both memories; the shorter sources are padded."""
        S = max(self.values.shape[1], other.values.shape[1])
        first, second = self._padded(S), other._padded(S)
        assert first.attend is not None
        assert second.attend is not None
        state = tuple(torch.cat(parts) for parts in zip(first.state, second.state, strict=True))
        values = torch.cat([first.values, second.values])
        return Memory(values, torch.cat([first.attend, second.attend]), state)

    def _padded(self, S: int) -> Memory:
        B, before = self.values.shape[:2]
        attend = self.attend
        if attend is None:
            attend = torch.ones(B, before, dtype=torch.bool, device=self.values.device)
        by_token = (0, 0, 0, S - before)
        state = tuple(F.pad(part, by_token) if part.dim() == 3 else part for part in self.state)
        return Memory(F.pad(self.values, by_token), F.pad(attend, (0, S - before)), state)
