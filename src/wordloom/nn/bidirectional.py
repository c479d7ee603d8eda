"""A recurrent layer that reads a whole sequence, from its beginning or from both of its ends."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from wordloom.nn.recurrent import Recurrent, State

__all__ = ["ReadingLayer"]


class ReadingLayer(nn.Module):
    """x [B, S, D] -> h of every token [B, S, H]; of both directions joined, [B, S, 2 H].

    Schuster & Paliwal 1997, "Bidirectional Recurrent Neural Networks".
    """

    def __init__(self, *, cell: str, dim: int, hidden_dim: int, bias: bool, bidirectional: bool) -> None:
        super().__init__()
        self.forwards = Recurrent(cell=cell, dim=dim, hidden_dim=hidden_dim, bias=bias)
        back = Recurrent(cell=cell, dim=dim, hidden_dim=hidden_dim, bias=bias) if bidirectional else None
        self.backwards = back

    def forward(self, x: Tensor, *, attend: Tensor | None = None) -> tuple[Tensor, State]:
        """x [B, S, D], ``attend`` [B, S] True for real tokens -> (h, the state after each direction's last).

        A row's padding is passed over: one direction ends in its last real token, the other begins there.
        """
        there, state = self.forwards(x, attend=attend)
        if self.backwards is None:
            return there, state
        back, other = self.backwards(x.flip(1), attend=None if attend is None else attend.flip(1))
        joined = tuple(torch.cat(parts, dim=-1) for parts in zip(state, other, strict=True))
        return torch.cat([there, back.flip(1)], dim=-1), joined
