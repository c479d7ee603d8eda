"""Attention scorers, which compute one score e for a query q [H] and a vector m [M] of a memory.

    dot         e = q . m, so H = M            (Luong, Pham & Manning 2015, arXiv:1508.04025, section 3.1)
    general     e = q^T W m                    (ibid., bilinear)
    additive    e = v . tanh(W q + U m)        (Bahdanau, Cho & Bengio 2015, arXiv:1409.0473, section A.1.2)

The part that depends on the memory alone, W m or U m, is a key, computed once for all queries:

    scorer(queries, scorer.keys(memory))       queries [B, T, H], memory [B, S, M] -> scores [B, T, S]

``exact`` computes the equation above literally, for one query of each row; ``score_dim`` is the width of a
key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wordloom.errors import ConfigError
from wordloom.nn.linear import Linear


class DotScorer(nn.Module):
    """e = q . m; raises ConfigError if queries and memory differ in width."""

    def __init__(self, *, dim: int, memory_dim: int) -> None:
        super().__init__()
        if dim != memory_dim:
            raise ConfigError(
                f"the dot scorer needs queries and memory of one width, not {dim} and {memory_dim}; "
                "project the memory, or take 'general' or 'additive'"
            )
        self.memory_dim, self.score_dim = memory_dim, dim

    def keys(self, memory: Tensor) -> Tensor:
        """memory [B, S, M] -> [B, S, H]."""
        return memory

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        return queries @ keys.transpose(1, 2)  # [B, T, H] [B, H, S] -> [B, T, S]

    def exact(self, query: Tensor, memory: Tensor) -> Tensor:
        """query [B, H], memory [B, S, M] -> e [B, S]."""
        return torch.einsum("bh,bsh->bs", query, self.keys(memory))


class GeneralScorer(DotScorer):
    """e = q^T W m with the key W m."""

    def __init__(self, *, dim: int, memory_dim: int) -> None:
        super().__init__(dim=dim, memory_dim=dim)
        self.memory_dim = memory_dim
        self.key_proj = Linear(memory_dim, dim, bias=False)

    def keys(self, memory: Tensor) -> Tensor:
        return self.key_proj(memory)  # [B, S, M] -> [B, S, H]


class AdditiveScorer(nn.Module):
    """e = v . tanh(W q + U m) with the key U m; ``score_dim`` (default: ``dim``) is the width of v."""

    def __init__(self, *, dim: int, memory_dim: int, score_dim: int | None = None) -> None:
        super().__init__()
        self.memory_dim, self.score_dim = memory_dim, score_dim or dim
        self.query_proj = Linear(dim, self.score_dim, bias=False)
        self.key_proj = Linear(memory_dim, self.score_dim, bias=False)
        self.v = nn.Parameter(torch.empty(self.score_dim))

    def keys(self, memory: Tensor) -> Tensor:
        return self.key_proj(memory)  # [B, S, M] -> [B, S, A]

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        sums = self.query_proj(queries)[:, :, None] + keys[:, None]  # [B, T, S, A]
        return F.linear(sums.tanh_(), self.v[None])[..., 0]  # in place: the sums are needed nowhere else

    def exact(self, query: Tensor, memory: Tensor) -> Tensor:
        """query [B, H], memory [B, S, M] -> e [B, S]."""
        return torch.tanh(self.query_proj(query)[:, None] + self.key_proj(memory)) @ self.v


AttentionScorer: TypeAlias = DotScorer | AdditiveScorer

SCORERS: dict[str, Callable[..., AttentionScorer]] = {
    "dot": DotScorer,
    "general": GeneralScorer,
    "additive": AdditiveScorer,
}


def attend_to(
    memory: Tensor,
    queries: Tensor,
    scorer: AttentionScorer,
    *,
    keys: Tensor | None = None,
    attend: Tensor | None = None,
    exact: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return means of memory [B, S, M], weighted for queries [B, T, H]: [B, T, M], and weights [B, T, S].

    Weights are the softmax of the scores over S in float32, and 0 where ``attend`` [B, S] is False, also if
    it is False in a whole row.  ``keys`` None computes the keys; ``exact`` uses :meth:`exact` of the scorer.
    """
    if exact:
        scores = torch.stack([scorer.exact(query, memory) for query in queries.unbind(1)], dim=1)
    else:
        scores = scorer(queries, scorer.keys(memory) if keys is None else keys)  # [B, T, S]
    if attend is None:
        weights = scores.float().softmax(dim=-1)
    else:
        masked = ~attend[:, None]  # [B, 1, S]
        weights = scores.float().masked_fill(masked, -torch.inf).softmax(dim=-1)
        weights = weights.masked_fill(masked, 0.0)  # a row that is masked wholly would be NaN
    return weights.to(memory.dtype) @ memory, weights
