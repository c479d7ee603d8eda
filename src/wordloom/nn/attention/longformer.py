"""Attention whose global tokens have projections of their own (Beltagy et al. 2020, section 3.1)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from wordloom.errors import ConfigError
from wordloom.nn.attention.kinds import Global
from wordloom.nn.attention.layer import Attention, masked_attention
from wordloom.nn.attention.setting import AttentionKind
from wordloom.nn.attention.visibility import EVERYTHING, Visibility
from wordloom.nn.linear import Linear


def global_tokens(pattern: AttentionKind | None) -> int:
    """Return G of ``global:G`` in a pattern; 0 without it."""
    kinds = () if pattern is None else pattern.kinds
    return next((kind.tokens for kind in kinds if isinstance(kind, Global)), 0)


def check_global_tokens(pattern: AttentionKind) -> None:
    """Raise ConfigError unless an encoder's ``pattern`` has ``global:G``."""
    if not global_tokens(pattern) or pattern.causal:
        raise ConfigError(
            f"global_projections are for the tokens of 'global:G', and the attention is '{pattern}'; "
            "add global:1, or leave them out"
        )


class LongformerAttention(Attention):
    """Self-attention of an encoder in which the first G tokens of a text query all keys by other projections.

    The other tokens attend to them by the usual projections.

    Raises ConfigError for a pattern without ``global:G``.
    """

    def __init__(self, *, dim: int, n_heads: int, pattern: AttentionKind, **settings: Any) -> None:
        super().__init__(dim=dim, n_heads=n_heads, bias=True, pattern=pattern, **settings)
        check_global_tokens(pattern)
        self.q_global_proj = Linear(dim, n_heads * self.head_dim)
        self.k_global_proj = Linear(dim, n_heads * self.head_dim)
        self.v_global_proj = Linear(dim, n_heads * self.head_dim)

    @property
    def tokens(self) -> int:
        """How many tokens are global: those of the pattern, which another one may replace."""
        return global_tokens(self.pattern)

    def mixed(self, x: Tensor, *, visibility: Visibility = EVERYTHING, **others: Any) -> Tensor:
        """x [B, T, D] -> [B, T, H * E], the weighted means of values."""
        recorded, by_usual = self.recorded, list[Tensor]()
        if recorded is not None:
            self.recorded = by_usual  # the rows of the global tokens are replaced below
        out = super().mixed(x, visibility=visibility, **others)
        self.recorded = recorded
        B, T = x.shape[:2]
        text, position, _ = visibility.texts(B, T, x.device)  # [B, T]
        is_global = (position < self.tokens) & (text >= 0)
        most = int(is_global.sum(dim=1).max())
        place = is_global.int().argsort(dim=1, descending=True, stable=True)[:, :most]  # [B, G]
        row = torch.arange(B, device=x.device)[:, None]
        mask = (text[row, place][:, :, None] == text[:, None]) & (text >= 0)[:, None]  # [B, G, T]
        q = self.q_global_proj(x[row, place])  # [B, G, H * E]
        q, k, v = (
            y.unflatten(-1, (self.n_heads, self.head_dim)).transpose(1, 2)
            for y in (q, self.k_global_proj(x), self.v_global_proj(x))
        )  # [B, H, G, E], [B, H, T, E]
        dropout = self.dropout if self.training else 0.0
        weights = None
        if dropout or self.backend == "exact":
            found, weights = masked_attention(
                q, k, v, mask=mask[:, None], scale=self.scale, dropout=dropout
            )  # [B, H, G, E], [B, H, G, T]
        else:
            found = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None], scale=self.scale)
        is_kept = is_global[row, place]  # [B, G]; a row with fewer global tokens keeps its others

        def replaced(whole: Tensor, rows: Tensor) -> Tensor:
            """Return ``whole`` [B, T, ..] with the ``rows`` [B, G, ..] of the global tokens."""
            chosen = is_kept.view(*is_kept.shape, *[1] * (rows.dim() - 2))  # [B, G, 1, ..]
            new = torch.where(chosen, rows.to(whole.dtype), whole[row, place])
            return whole.index_put((row.expand_as(place), place), new)

        if recorded is not None and by_usual and weights is not None:
            usual = by_usual[0].transpose(1, 2)  # [B, T, H, T]
            recorded.append(replaced(usual, weights.transpose(1, 2)).transpose(1, 2))  # [B, H, T, T]
        return replaced(out, found.transpose(1, 2).flatten(-2))
