"""A recurrent encoder layer in one direction or in both."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from wordloom.nn.recurrent import Recurrent, State

__all__ = ["EncoderLayer"]


class EncoderLayer(nn.Module):
    """x [B, S, D] -> h of every token [B, S, H], or the concatenation of both directions [B, S, 2 H].

    Schuster & Paliwal 1997, "Bidirectional Recurrent Neural Networks".
    """

    def __init__(self, *, cell: str, dim: int, hidden_dim: int, bias: bool, bidirectional: bool) -> None:
        super().__init__()
        self.forwards = Recurrent(cell=cell, dim=dim, hidden_dim=hidden_dim, bias=bias)
        backwards = Recurrent(cell=cell, dim=dim, hidden_dim=hidden_dim, bias=bias) if bidirectional else None
        self.backwards = backwards

    def forward(self, x: Tensor, *, attend: Tensor | None = None) -> tuple[Tensor, State]:
        """Return h and the last state of each direction for x [B, S, D].

        ``attend`` [B, S] is True for real tokens.  Padding is skipped: one direction ends at the last real
        token, and the other begins there.
        """
        h, state = self.forwards(x, attend=attend)  # [B, S, H]
        if self.backwards is None:
            return h, state
        h_back, state_back = self.backwards(x.flip(1), attend=None if attend is None else attend.flip(1))
        joined = tuple(torch.cat(parts, dim=-1) for parts in zip(state, state_back, strict=True))  # [B, 2 H]
        return torch.cat([h, h_back.flip(1)], dim=-1), joined  # [B, S, 2 H]
