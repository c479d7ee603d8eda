"""LLaMA: Open and Efficient Foundation Language Models (Touvron et al. 2023, arXiv:2302.13971).
Llama 2: Open Foundation and Fine-Tuned Chat Models (Touvron et al. 2023, arXiv:2307.09288).

A decoder-only Transformer, trained to predict the next token.

    x = token_embedding(tokens)
    x = x + attention(attention_norm(x), rotary);  x = x + feed_forward(ffn_norm(x))      n_layers times
    logits = lm_head(final_norm(x))

Changes from GPT-2: RMSNorm instead of LayerNorm; SwiGLU instead of GELU, with a hidden width of 8/3 dim
rounded up to a multiple of 256; rotary positions on queries and keys instead of the learned table; no
biases; an untied head.  Llama 2 adds grouped-query attention (34B and 70B), context 4,096 and norm_eps 1e-5.

Departures from the papers: dropout, which the papers do not use, is available for small corpora.  A rotary
pair is elements i and i + E/2, as in the Hugging Face layout; Meta's own files pair neighbours and order the
rows of q_proj and k_proj differently (``nn.pairs_to_halves``).

Parameters: 7B 6,738,415,616; 13B 13,015,864,320; 33B 32,528,943,616; 65B 65,285,660,672; Llama 2 70B
68,976,648,192.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from wordloom.models.checks import check_settings, dropout_or, fills_everything
from wordloom.nn import Attention, GatedFeedForward, RMSNorm, Rotary, Swish
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
class LlamaConfig:
    """Shapes and settings of a LLaMA; the defaults are LLaMA-1 7B."""

    vocab_size: int = 32000
    max_seq_len: int = 2048
    dim: int = 4096
    n_layers: int = 32
    n_heads: int = 32
    n_kv_heads: int | None = None  # n_heads: multi-head; 1: multi-query
    head_dim: int | None = None  # dim / n_heads
    hidden_dim: int | None = None  # 8/3 of dim, rounded up to a multiple of 256
    activation: str = "silu"
    attention: str = "full"  # of each layer: see wordloom.nn.attention.setting
    attention_bias: bool = False
    feed_forward_bias: bool = False
    norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: Mapping[str, Any] | None = None  # transformers' keys: rope_type, factor, ...
    tie_embeddings: bool = False
    dropout: float = 0.0  # after attention's o_proj and after feed_forward
    embedding_dropout: float | None = None  # of the embedding; None: dropout
    attention_dropout: float | None = None  # of the attention weights; None: dropout

    def __post_init__(self) -> None:
        check_settings(self)
        # raises ConfigError for an odd head_dim and for unknown or impossible scaling
        Rotary(head_dim=self.head_width, theta=self.rope_theta, scaling=self.rope_scaling)
        _ = self.patterns  # raises ConfigError for an unknown kind of attention

    @property
    def patterns(self) -> tuple[AttentionKind, ...]:
        """The kind of attention of each layer."""
        return patterns_of_layers(self.attention, self.n_layers, causal=True)

    @property
    def generates_on(self) -> bool:
        """Whether texts can grow past ``max_seq_len``: every cache has a fixed size, and positions never end.

        Then no query sees keys further away than in training, except global tokens.
        """
        kind = (self.rope_scaling or {}).get("rope_type", (self.rope_scaling or {}).get("type"))
        return kind != "dynamic" and all(pattern.bounded_cache for pattern in self.patterns)

    @property
    def kv_heads(self) -> int:
        """Key and value heads: ``n_kv_heads``, or one for each query head."""
        return self.n_kv_heads or self.n_heads

    @property
    def head_width(self) -> int:
        """Elements of a head, E: ``head_dim``, or dim / n_heads."""
        return self.head_dim or self.dim // self.n_heads

    @property
    def ffn_dim(self) -> int:
        """Hidden width of the feed-forward: ``hidden_dim``, or 8/3 of dim rounded up to a multiple of 256."""
        return self.hidden_dim or 256 * math.ceil(int(8 * self.dim / 3) / 256)


class Block(nn.Module):
    """Pre-norm: x + attention(norm(x)), then x + feed_forward(norm(x)); [B, T, D] -> [B, T, D]."""

    def __init__(self, config: LlamaConfig, pattern: AttentionKind) -> None:
        super().__init__()
        c = config
        self.dropout = c.dropout
        self.attention_norm = RMSNorm(c.dim, eps=c.norm_eps)
        self.attention = Attention(
            dim=c.dim,
            n_heads=c.n_heads,
            n_kv_heads=c.kv_heads,
            head_dim=c.head_width,
            bias=c.attention_bias,
            dropout=dropout_or(c.attention_dropout, c.dropout),
            pattern=pattern,
        )
        self.ffn_norm = RMSNorm(c.dim, eps=c.norm_eps)
        self.feed_forward = GatedFeedForward(
            dim=c.dim, hidden_dim=c.ffn_dim, activation=c.activation, bias=c.feed_forward_bias
        )

    def forward(
        self, x: Tensor, rotary: tuple[Tensor, Tensor], visibility: Visibility, cache: LayerCache | None
    ) -> Tensor:
        """x [B, T, D], rotary 2 x [1 or B, T, E/2] -> [B, T, D]."""
        attended = self.attention(self.attention_norm(x), visibility=visibility, rotary=rotary, cache=cache)
        x = x + dropout(attended, self.dropout, self.training)
        return x + dropout(self.feed_forward(self.ffn_norm(x)), self.dropout, self.training)


class Llama(nn.Module):
    """A LLaMA with its language-model head; see :class:`wordloom.models.CausalLM` for the protocol."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = c = config
        self.embedding_dropout = dropout_or(c.embedding_dropout, c.dropout)
        self.rotary = Rotary(head_dim=c.head_width, theta=c.rope_theta, scaling=c.rope_scaling)
        self.token_embedding = nn.Embedding(c.vocab_size, c.dim)
        self.blocks = nn.ModuleList(Block(c, pattern) for pattern in c.patterns)
        self.final_norm = RMSNorm(c.dim, eps=c.norm_eps)
        self.lm_head = Head(c.dim, c.vocab_size, bias=False)
        self.tie_weights()

    def tie_weights(self) -> None:
        """Share the embedding's weights [V, D] with ``lm_head`` if ``tie_embeddings`` is set."""
        if self.config.tie_embeddings:
            self.lm_head.weight = self.token_embedding.weight

    @fills_everything
    def init_weights(self, generator: torch.Generator | None = None) -> None:
        """Normal(0, 0.02), norms one; o_proj and down_proj divided by sqrt(2 * n_layers).

        The papers do not print their initialisation; this is GPT-2's.
        """
        residual_std = 0.02 / math.sqrt(2 * self.config.n_layers)
        for name, module in self.named_modules():
            if isinstance(module, RMSNorm | Swish):
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
        rotary = self.rotary.angles(default if positions is None else positions)  # 2 x [1 or B, T, E/2]
        x = dropout(self.token_embedding(tokens), self.embedding_dropout, self.training)  # [B, T, D]
        for i, block in enumerate(self.blocks):
            x = block(x, rotary, visibility, None if cache is None else cache.layer(i))
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


_LLAMA2 = LlamaConfig(max_seq_len=4096, norm_eps=1e-5)
_SMALL = LlamaConfig(max_seq_len=1024, norm_eps=1e-5, tie_embeddings=True)

PRESETS = {
    "llama-7b": LlamaConfig(),
    "llama-13b": LlamaConfig(dim=5120, n_layers=40, n_heads=40),
    "llama-33b": LlamaConfig(dim=6656, n_layers=60, n_heads=52),
    "llama-65b": LlamaConfig(dim=8192, n_layers=80, n_heads=64),
    "llama2-7b": _LLAMA2,
    "llama2-13b": replace(_LLAMA2, dim=5120, n_layers=40, n_heads=40),
    "llama2-70b": replace(_LLAMA2, dim=8192, n_layers=80, n_heads=64, n_kv_heads=8, hidden_dim=28672),
    # small sizes for a laptop: those of llama2.c's TinyStories models, and one of GPT-2's size
    "llama-15m": replace(_SMALL, dim=288, n_layers=6, n_heads=6, max_seq_len=256),
    "llama-42m": replace(_SMALL, dim=512, n_layers=8, n_heads=8, hidden_dim=1376),
    "llama-110m": replace(_SMALL, dim=768, n_layers=12, n_heads=12),
    "llama-125m": LlamaConfig(dim=768, n_layers=12, n_heads=12, n_kv_heads=4, norm_eps=1e-5),
}
