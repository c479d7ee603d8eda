"""GPT-2: Language Models are Unsupervised Multitask Learners (Radford et al. 2019).

A decoder-only Transformer, trained to predict the next token.

    x = token_embedding(tokens) + position_embedding(positions)
    x = x + attention(attention_norm(x));  x = x + feed_forward(ffn_norm(x))      n_layers times (pre-norm)
    logits = lm_head(final_norm(x))                                               tied to token_embedding

Changes from GPT: LayerNorm at the input of each sub-block (pre-norm) and once more after the last block;
projections into the residual stream initialised smaller, by 1/sqrt(residual layers), of which each block has
two; context 1,024; vocabulary 50,257.

Departures from the paper: GELU is the tanh approximation, as in the released code; ``bias=False`` leaves the
biases out, as nanoGPT does.

Parameters: 124,439,808, 354,823,168, 774,030,080 and 1,557,611,200, like the released tensors; the paper
prints 117M, 345M, 762M and 1542M.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from wordloom.models.checks import check_settings, dropout_or, fills_everything, positions_within
from wordloom.nn import Attention, FeedForward, LayerNorm, Swish
from wordloom.nn.attention import (
    AttentionKind,
    Visibility,
    patterns_of_layers,
    positions_and_visibility,
)
from wordloom.nn.cache import KeyValueCache, LayerCache
from wordloom.nn.dropout import dropout
from wordloom.nn.head import Head


@dataclass(frozen=True, kw_only=True)
class GPT2Config:
    """Shapes and settings of a GPT-2; the defaults are the smallest released model."""

    vocab_size: int = 50257
    max_seq_len: int = 1024
    dim: int = 768
    n_layers: int = 12
    n_heads: int = 12
    hidden_dim: int | None = None  # 4 * dim
    bias: bool = True  # of every Linear and LayerNorm
    activation: str = "gelu_tanh"
    attention: str = "full"  # of each layer: see wordloom.nn.attention.setting
    norm_eps: float = 1e-5
    tie_embeddings: bool = True
    dropout: float = 0.0  # after attention's o_proj and after feed_forward; the paper trains with 0.1
    embedding_dropout: float | None = None  # of the embedding sum; None: dropout
    attention_dropout: float | None = None  # of the attention weights; None: dropout

    def __post_init__(self) -> None:
        check_settings(self)
        _ = self.patterns  # raises ConfigError for an unknown kind of attention

    @property
    def patterns(self) -> tuple[AttentionKind, ...]:
        """The kind of attention of each layer."""
        return patterns_of_layers(self.attention, self.n_layers, causal=True)


class Block(nn.Module):
    """Pre-norm: x + attention(norm(x)), then x + feed_forward(norm(x)); [B, T, D] -> [B, T, D]."""

    def __init__(self, config: GPT2Config, pattern: AttentionKind) -> None:
        super().__init__()
        c = config
        self.dropout = c.dropout
        self.attention_norm = LayerNorm(c.dim, eps=c.norm_eps, bias=c.bias)
        self.attention = Attention(
            dim=c.dim,
            n_heads=c.n_heads,
            bias=c.bias,
            dropout=dropout_or(c.attention_dropout, c.dropout),
            pattern=pattern,
        )
        self.ffn_norm = LayerNorm(c.dim, eps=c.norm_eps, bias=c.bias)
        self.feed_forward = FeedForward(
            dim=c.dim, hidden_dim=c.hidden_dim or 4 * c.dim, activation=c.activation, bias=c.bias
        )

    def forward(self, x: Tensor, visibility: Visibility, cache: LayerCache | None) -> Tensor:
        """x [B, T, D] -> [B, T, D]."""
        attended = self.attention(self.attention_norm(x), visibility=visibility, cache=cache)
        x = x + dropout(attended, self.dropout, self.training)
        return x + dropout(self.feed_forward(self.ffn_norm(x)), self.dropout, self.training)


class GPT2(nn.Module):
    """A causal language model; see :class:`wordloom.models.CausalLM` for the protocol."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.config = c = config
        self.embedding_dropout = dropout_or(c.embedding_dropout, c.dropout)
        self.token_embedding = nn.Embedding(c.vocab_size, c.dim)
        self.position_embedding = nn.Embedding(c.max_seq_len, c.dim)
        self.blocks = nn.ModuleList(Block(c, pattern) for pattern in c.patterns)
        self.final_norm = LayerNorm(c.dim, eps=c.norm_eps, bias=c.bias)
        self.lm_head = Head(c.dim, c.vocab_size, bias=False)
        self.tie_weights()

    def tie_weights(self) -> None:
        """Share the embedding's weights [V, D] with ``lm_head`` if ``tie_embeddings`` is set."""
        if self.config.tie_embeddings:
            self.lm_head.weight = self.token_embedding.weight

    @fills_everything
    def init_weights(self, generator: torch.Generator | None = None) -> None:
        """Normal(0, 0.02), biases zero, norms one; o_proj and down_proj divided by sqrt(2 * n_layers)."""
        residual_std = 0.02 / math.sqrt(2 * self.config.n_layers)
        for name, module in self.named_modules():
            if isinstance(module, LayerNorm | Swish):
                module.reset_parameters()
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, 0.0, 0.02, generator=generator)
            elif isinstance(module, nn.Linear) and not (name == "lm_head" and self.config.tie_embeddings):
                std = residual_std if name.endswith(("o_proj", "down_proj")) else 0.02
                nn.init.normal_(module.weight, 0.0, std, generator=generator)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def hidden(
        self,
        tokens: Tensor,
        *,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
        attend: Tensor | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """tokens [B, T] -> [B, T, D], the vectors that ``lm_head`` reads."""
        default, visibility = positions_and_visibility(
            tokens, attend=attend, documents=documents, cache=cache
        )
        positions = positions_within(default if positions is None else positions, self.config.max_seq_len)
        x = self.token_embedding(tokens) + self.position_embedding(positions)  # [B, T, D]
        x = dropout(x, self.embedding_dropout, self.training)
        for i, block in enumerate(self.blocks):
            x = block(x, visibility, None if cache is None else cache.layer(i))
        if cache is not None:
            cache.advance(tokens, attend)
        return self.final_norm(x)

    def forward(self, tokens: Tensor, **keywords: Tensor | KeyValueCache | None) -> Tensor:
        """tokens [B, T] -> logits [B, T, V]; keywords as in :meth:`hidden`."""
        return self.lm_head(self.hidden(tokens, **keywords))  # type: ignore[arg-type]

    def new_cache(self, batch: int, length: int) -> KeyValueCache:
        """Return an empty cache for ``batch`` rows of up to ``length`` tokens."""
        patterns = self.config.patterns
        return KeyValueCache(n_layers=len(patterns), batch=batch, length=length, patterns=patterns)


PRESETS = {
    "gpt2": GPT2Config(),
    "gpt2-medium": GPT2Config(dim=1024, n_layers=24, n_heads=16),
    "gpt2-large": GPT2Config(dim=1280, n_layers=36, n_heads=20),
    "gpt2-xl": GPT2Config(dim=1600, n_layers=48, n_heads=25),
}
