"""GPT: Improving Language Understanding by Generative Pre-Training (Radford et al. 2018).

A decoder-only Transformer, trained to predict the next token.

    x = token_embedding(tokens) + position_embedding(positions)
    x = attention_norm(x + attention(x));  x = ffn_norm(x + feed_forward(x))      n_layers times (post-norm)
    logits = lm_head(x)                                                           tied to token_embedding

Changes from the 2017 Transformer: the decoder alone, without cross-attention; learned positions; GELU.

Departures from the paper: GELU is the tanh approximation, as in the released code.
``positions="sinusoidal"`` and ``activation="relu"`` restore the choices of 2017.

Parameters: 116,534,784, like the released tensors (vocabulary 40,478 = 40,000 merges, 477 characters and one
unknown token).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from wordloom.errors import ConfigError, did_you_mean
from wordloom.models.checks import check_settings, dropout_or, fills_everything, positions_within
from wordloom.nn import Attention, FeedForward, LayerNorm, Swish, sinusoidal_positions
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
class GPTConfig:
    """Shapes and settings of a 2018 GPT; the defaults are the released model."""

    vocab_size: int = 40478
    max_seq_len: int = 512
    dim: int = 768
    n_layers: int = 12
    n_heads: int = 12
    hidden_dim: int | None = None  # 4 * dim
    positions: str = "learned"  # or "sinusoidal"
    activation: str = "gelu_tanh"
    attention: str = "full"  # of each layer: see wordloom.nn.attention.setting
    norm_eps: float = 1e-5
    tie_embeddings: bool = True
    output_bias: bool = False
    dropout: float = 0.0  # after attention's o_proj and after feed_forward; the paper trains with 0.1
    embedding_dropout: float | None = None  # of the embedding sum; None: dropout
    attention_dropout: float | None = None  # of the attention weights; None: dropout

    def __post_init__(self) -> None:
        check_settings(self)
        if self.positions not in ("learned", "sinusoidal"):
            allowed = ["learned", "sinusoidal"]
            raise ConfigError(
                f"unknown positions {self.positions!r}; {did_you_mean(self.positions, allowed)}"
            )
        if self.positions == "sinusoidal" and self.dim % 2:
            raise ConfigError(f"sinusoidal positions need an even dim, not {self.dim}")
        _ = self.patterns  # raises ConfigError for an unknown kind of attention

    @property
    def patterns(self) -> tuple[AttentionKind, ...]:
        """The kind of attention of each layer."""
        return patterns_of_layers(self.attention, self.n_layers, causal=True)


class Block(nn.Module):
    """Post-norm: norm(x + attention(x)), then norm(x + feed_forward(x)); [B, T, D] -> [B, T, D]."""

    def __init__(self, config: GPTConfig, pattern: AttentionKind) -> None:
        super().__init__()
        c = config
        self.dropout = c.dropout
        self.attention = Attention(
            dim=c.dim,
            n_heads=c.n_heads,
            bias=True,
            dropout=dropout_or(c.attention_dropout, c.dropout),
            pattern=pattern,
        )
        self.attention_norm = LayerNorm(c.dim, eps=c.norm_eps)
        self.feed_forward = FeedForward(
            dim=c.dim, hidden_dim=c.hidden_dim or 4 * c.dim, activation=c.activation, bias=True
        )
        self.ffn_norm = LayerNorm(c.dim, eps=c.norm_eps)

    def forward(self, x: Tensor, visibility: Visibility, cache: LayerCache | None) -> Tensor:
        """x [B, T, D] -> [B, T, D]."""
        attended = self.attention(x, visibility=visibility, cache=cache)
        x = self.attention_norm(x + dropout(attended, self.dropout, self.training))
        return self.ffn_norm(x + dropout(self.feed_forward(x), self.dropout, self.training))


class GPT(nn.Module):
    """A causal language model; see :class:`wordloom.models.CausalLM` for the protocol."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = c = config
        self.embedding_dropout = dropout_or(c.embedding_dropout, c.dropout)
        self.token_embedding = nn.Embedding(c.vocab_size, c.dim)
        if c.positions == "learned":
            self.position_embedding = nn.Embedding(c.max_seq_len, c.dim)
        self._sinusoidal: Tensor | None = None  # built at first use; no weight, never cast to bfloat16
        self.blocks = nn.ModuleList(Block(c, pattern) for pattern in c.patterns)
        self.lm_head = Head(c.dim, c.vocab_size, bias=c.output_bias)
        self.tie_weights()

    def tie_weights(self) -> None:
        """Share the embedding's weights [V, D] with ``lm_head`` if ``tie_embeddings`` is set."""
        if self.config.tie_embeddings:
            self.lm_head.weight = self.token_embedding.weight

    @fills_everything
    def init_weights(self, generator: torch.Generator | None = None) -> None:
        """Normal(0, 0.02) as in the paper, biases zero, norms one."""
        for name, module in self.named_modules():
            if isinstance(module, LayerNorm | Swish):
                module.reset_parameters()
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, 0.0, 0.02, generator=generator)
            elif isinstance(module, nn.Linear):
                if not (name == "lm_head" and self.config.tie_embeddings):
                    nn.init.normal_(module.weight, 0.0, 0.02, generator=generator)
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
        x = self.token_embedding(tokens)  # [B, T, D]
        x = dropout(x + self.position_vectors(positions).to(x.dtype), self.embedding_dropout, self.training)
        for i, block in enumerate(self.blocks):
            x = block(x, visibility, None if cache is None else cache.layer(i))
        if cache is not None:
            cache.advance(tokens, attend)
        return x

    def position_vectors(self, positions: Tensor) -> Tensor:
        """positions [1 or B, T] -> [1 or B, T, D]."""
        if self.config.positions == "learned":
            return self.position_embedding(positions)
        if self._sinusoidal is None or self._sinusoidal.device != positions.device:
            table = sinusoidal_positions(self.config.max_seq_len, self.config.dim)
            self._sinusoidal = table.to(positions.device)
        return self._sinusoidal[positions]

    def forward(self, tokens: Tensor, **keywords: Tensor | KeyValueCache | None) -> Tensor:
        """tokens [B, T] -> logits [B, T, V]; keywords as in :meth:`hidden`."""
        return self.lm_head(self.hidden(tokens, **keywords))  # type: ignore[arg-type]

    def new_cache(self, batch: int, length: int) -> KeyValueCache:
        """Return an empty cache for ``batch`` rows of up to ``length`` tokens."""
        patterns = self.config.patterns
        return KeyValueCache(n_layers=len(patterns), batch=batch, length=length, patterns=patterns)


PRESETS = {"gpt": GPTConfig()}
