"""Transformer: Attention Is All You Need (Vaswani et al. 2017, arXiv:1706.03762).

An encoder-decoder without recurrence: the encoder reads the source, and the decoder continues a prefix and
attends to the encoder's output.

    x = dropout(sqrt(dim) embedding(source) + positions)                                  sections 3.4, 3.5
    x = norm(x + dropout(attention(x)));  x = norm(x + dropout(feed_forward(x)))          n_layers times
    y = dropout(sqrt(dim) embedding(prefix) + positions)
    y = norm(y + dropout(causal_attention(y)))
    y = norm(y + dropout(attention(y, keys and values of x)))
    y = norm(y + dropout(feed_forward(y)))                                                n_layers times
    logits = lm_head(y)                                   tied to the embedding, one matrix for both sides

Departures from the paper, each a setting:

- ``norm_place="pre"``: x + dropout(layer(norm(x))), and a norm after the last block of each side.
- ``attention_bias``: the paper's equations have no bias in attention; most implementations have one.
- ``positions``, added to the embeddings unless stated otherwise:

    sinusoidal          the paper's table, sine and cosine alternating
    sinusoidal_halves   all sines, then all cosines, as in Marian and fairseq: permuted columns
    learned             a table for each side (the paper's table 3, row E)
    rotary              rotates queries and keys of self-attention (Su et al. 2021, see nn/positions.py)
    one_hot             x ⊕ p: the position's one-hot vector joined to an embedding of ``dim - max_seq_len``
                        components.  The first matrices of each block read it as a learned table:
                        W (x ⊕ p) = W_x x + W_p p
    none                no positions: the encoder does not see the order of tokens (permutation-equivariant)

The paper states neither norm_eps nor its initialisation: see ``init_weights``.

Parameters with 37,000 shared pieces: base 63,045,632 and big 214,171,648; with ``attention_bias`` 63,082,496
and 214,245,376.  The paper prints 65 M and 213 M.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wordloom.errors import ConfigError, did_you_mean
from wordloom.models.checks import check_settings, dropout_or, fills_everything, positions_within
from wordloom.nn import Attention, FeedForward, LayerNorm, Rotary, Swish, sinusoidal_positions
from wordloom.nn.attention import (
    AttentionKind,
    Visibility,
    patterns_of_layers,
    positions_and_visibility,
)
from wordloom.nn.cache import DecoderCache, LayerCache
from wordloom.nn.dropout import dropout
from wordloom.nn.head import Head
from wordloom.nn.memory import Memory

POSITIONS = ("sinusoidal", "sinusoidal_halves", "learned", "rotary", "one_hot", "none")


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Shapes and settings of a 2017 Transformer; the defaults are the paper's base model, without dropout."""

    vocab_size: int = 37000  # of the decoder
    source_vocab_size: int | None = None  # of the encoder; None: vocab_size
    max_seq_len: int = 1024  # of either side
    dim: int = 512
    n_layers: int = 6  # of the encoder
    n_decoder_layers: int | None = None  # None: n_layers
    n_heads: int = 8
    hidden_dim: int | None = None  # 4 * dim
    activation: str = "relu"
    attention: str = "full"  # self-attention of each layer: see wordloom.nn.attention.setting
    norm_place: str = "post"  # or "pre"
    norm_eps: float = 1e-5
    positions: str = "sinusoidal"  # see POSITIONS
    scale_embeddings: bool = True  # by sqrt(dim)
    share_embeddings: bool = True  # one matrix for source and prefix
    tie_embeddings: bool = True  # lm_head's matrix is the prefix's embedding
    attention_bias: bool = False
    output_bias: bool = False
    dropout: float = 0.0  # of each sub-layer's output; the paper trains base with 0.1 and big with 0.3
    embedding_dropout: float | None = None  # of the sum of embedding and position; None: dropout
    attention_dropout: float = 0.0  # of the attention weights; the paper has none
    activation_dropout: float = 0.0  # within feed_forward; the paper has none

    def __post_init__(self) -> None:
        check_settings(self)
        _ = self.patterns, self.decoder_patterns  # raises ConfigError for an unknown kind of attention
        for name, allowed in (("positions", POSITIONS), ("norm_place", ("post", "pre"))):
            value = getattr(self, name)
            if value not in allowed:
                raise ConfigError(f"unknown {name} {value!r}; {did_you_mean(value, allowed)}")
        if self.share_embeddings and self.source_vocab != self.vocab_size:
            sizes = f"{self.source_vocab:,} source tokens and {self.vocab_size:,}"
            raise ConfigError(f"share_embeddings needs one vocabulary, not {sizes}; set it to false")
        width = self.dim // self.n_heads if self.positions == "rotary" else self.dim
        if self.positions.startswith(("sinusoidal", "rotary")) and width % 2:
            raise ConfigError(f"{self.positions} positions need an even number of components, not {width}")
        if self.positions == "one_hot" and (self.dim <= self.max_seq_len or self.tie_embeddings):
            raise ConfigError(
                f"one_hot positions take {self.max_seq_len:,} (max_seq_len) of dim's {self.dim:,} components "
                "and the embedding takes the others; raise dim above max_seq_len and set tie_embeddings to "
                "false"
            )

    @property
    def source_vocab(self) -> int:
        """Size of the encoder's vocabulary: ``source_vocab_size``, or ``vocab_size``."""
        return self.source_vocab_size or self.vocab_size

    @property
    def decoder_layers(self) -> int:
        """Blocks of the decoder: ``n_decoder_layers``, or ``n_layers``."""
        return self.n_decoder_layers or self.n_layers

    @property
    def patterns(self) -> tuple[AttentionKind, ...]:
        """The pattern of self-attention in each layer of the encoder."""
        return patterns_of_layers(self.attention, self.n_layers, causal=False)

    @property
    def decoder_patterns(self) -> tuple[AttentionKind, ...]:
        """The pattern of self-attention in each layer of the decoder."""
        return patterns_of_layers(self.attention, self.decoder_layers, causal=True)

    @property
    def ffn_dim(self) -> int:
        """Hidden width of the feed-forward: ``hidden_dim``, or 4 * dim."""
        return self.hidden_dim or 4 * self.dim


class EncoderBlock(nn.Module):
    """Self-attention, then feed-forward; [B, S, D] -> [B, S, D]."""

    def __init__(self, config: TransformerConfig, pattern: AttentionKind) -> None:
        super().__init__()
        c = config
        self.dropout, self.pre_norm = c.dropout, c.norm_place == "pre"
        self.attention = _attention(c, pattern)
        self.attention_norm = LayerNorm(c.dim, eps=c.norm_eps)
        self.feed_forward = FeedForward(
            dim=c.dim, hidden_dim=c.ffn_dim, activation=c.activation, dropout=c.activation_dropout
        )
        self.ffn_norm = LayerNorm(c.dim, eps=c.norm_eps)

    def forward(self, x: Tensor, visibility: Visibility, rotary: tuple[Tensor, Tensor] | None) -> Tensor:
        """x [B, S, D], rotary 2 x [1 or B, S, E/2] -> [B, S, D]."""
        if self.pre_norm:
            x = x + self._dropped(
                self.attention(self.attention_norm(x), visibility=visibility, rotary=rotary)
            )
            return x + self._dropped(self.feed_forward(self.ffn_norm(x)))
        x = self.attention_norm(x + self._dropped(self.attention(x, visibility=visibility, rotary=rotary)))
        return self.ffn_norm(x + self._dropped(self.feed_forward(x)))

    def _dropped(self, x: Tensor) -> Tensor:
        return dropout(x, self.dropout, self.training)


class DecoderBlock(EncoderBlock):
    """Causal self-attention, attention to the source, feed-forward; [B, T, D] -> [B, T, D]."""

    def __init__(self, config: TransformerConfig, pattern: AttentionKind) -> None:
        super().__init__(config, pattern)
        self.cross_attention = _attention(config)
        self.cross_attention_norm = LayerNorm(config.dim, eps=config.norm_eps)

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        memory: Tensor,
        sources: Visibility,
        visibility: Visibility,
        rotary: tuple[Tensor, Tensor] | None,
        cache: LayerCache | None,
    ) -> Tensor:
        """x [B, T, D], memory [N, S, D] -> [B, T, D].

        B is a multiple of N: the beams of one source are neighbouring rows, and all read that source.
        """
        context: Tensor | tuple[Tensor, Tensor] = memory
        if cache is not None:
            if cache.source is None:
                cache.source = self.cross_attention.keys_values(memory)
            context = cache.source
        N = len(context[0]) if isinstance(context, tuple) else len(context)

        def attend_to_prefix(x: Tensor) -> Tensor:
            return self._dropped(self.attention(x, visibility=visibility, rotary=rotary, cache=cache))

        def attend_to_source(x: Tensor) -> Tensor:
            queries = x.reshape(N, len(x) // N * x.shape[1], x.shape[2])  # [N, B/N * T, D]
            y = self.cross_attention(queries, context=context, visibility=sources)  # [N, B/N * T, D]
            return self._dropped(y.view_as(x))  # [B, T, D]

        if self.pre_norm:
            x = x + attend_to_prefix(self.attention_norm(x))
            x = x + attend_to_source(self.cross_attention_norm(x))
            return x + self._dropped(self.feed_forward(self.ffn_norm(x)))
        x = self.attention_norm(x + attend_to_prefix(x))
        x = self.cross_attention_norm(x + attend_to_source(x))
        return self.ffn_norm(x + self._dropped(self.feed_forward(x)))


def _attention(config: TransformerConfig, pattern: AttentionKind | None = None) -> Attention:
    c = config
    return Attention(
        dim=c.dim, n_heads=c.n_heads, bias=c.attention_bias, dropout=c.attention_dropout, pattern=pattern
    )


class Transformer(nn.Module):
    """Sequence to sequence; see :class:`wordloom.models.SequenceToSequence` for the protocol."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = c = config
        self.embedding_dropout = dropout_or(c.embedding_dropout, c.dropout)
        width = c.dim - c.max_seq_len if c.positions == "one_hot" else c.dim
        self.rotary = Rotary(head_dim=c.dim // c.n_heads) if c.positions == "rotary" else None
        self.token_embedding = nn.Embedding(c.vocab_size, width)
        self.source_embedding = None if c.share_embeddings else nn.Embedding(c.source_vocab, width)
        if c.positions == "learned":
            self.source_position_embedding = nn.Embedding(c.max_seq_len, c.dim)
            self.position_embedding = nn.Embedding(c.max_seq_len, c.dim)
        self._sinusoidal: Tensor | None = None  # built at first use; no weight, never cast to bfloat16
        self.encoder_blocks = nn.ModuleList(EncoderBlock(c, pattern) for pattern in c.patterns)
        self.encoder_norm = LayerNorm(c.dim, eps=c.norm_eps) if c.norm_place == "pre" else None
        self.decoder_blocks = nn.ModuleList(DecoderBlock(c, pattern) for pattern in c.decoder_patterns)
        self.final_norm = LayerNorm(c.dim, eps=c.norm_eps) if c.norm_place == "pre" else None
        self.lm_head = Head(c.dim, c.vocab_size, bias=c.output_bias)
        self.tie_weights()

    @property
    def blocks(self) -> list[nn.Module]:
        """All blocks, those of the encoder first."""
        return [*self.encoder_blocks, *self.decoder_blocks]

    def tie_weights(self) -> None:
        """Share the embedding's weights [V, D] with ``lm_head`` if ``tie_embeddings`` is set."""
        if self.config.tie_embeddings:
            self.lm_head.weight = self.token_embedding.weight

    @fills_everything
    def init_weights(self, generator: torch.Generator | None = None) -> None:
        """Xavier uniform, biases zero, norms one; embeddings, positions and head Normal(0, 1 / sqrt(dim)).

        Most implementations use these choices.  Scaled by sqrt(dim), the embeddings start as large as
        the positions.
        """
        for name, module in self.named_modules():
            if isinstance(module, LayerNorm | Swish):
                module.reset_parameters()
            elif isinstance(module, nn.Embedding) or (name == "lm_head" and not self.config.tie_embeddings):
                std = self.config.dim**-0.5
                nn.init.normal_(module.weight, 0.0, std, generator=generator)
            elif isinstance(module, nn.Linear) and name != "lm_head":
                nn.init.xavier_uniform_(module.weight, generator=generator)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def encode(self, source: Tensor, *, attend: Tensor | None = None) -> Memory:
        """source [B, S], ``attend`` [B, S] True for real tokens -> the memory that the decoder reads."""
        positions, _ = positions_and_visibility(source, attend=attend)
        rotary = None if self.rotary is None else self.rotary.angles(positions)  # 2 x [1 or B, S, E/2]
        visibility = Visibility(real_keys=attend)
        x = self.embedded(source, positions, is_source=True)  # [B, S, D]
        for block in self.encoder_blocks:
            x = block(x, visibility, rotary)
        return Memory(x if self.encoder_norm is None else self.encoder_norm(x), attend)

    def hidden(self, prefix: Tensor, memory: Memory, *, cache: DecoderCache | None = None) -> Tensor:
        """prefix [B, T] -> [B, T, D], the vectors that ``lm_head`` reads.

        ``memory`` holds one source for each row, or for each group of neighbouring rows.  A ``cache`` keeps
        the source's keys and values from the first tokens on, and ``cache.select`` moves them with the rows.
        """
        attend = memory.attend
        if cache is not None and cache.n_sources:  # it has the padding of the sources that it keeps
            attend = cache.source_attend
        elif cache is not None:
            cache.source_attend = attend
        positions, visibility = positions_and_visibility(prefix, cache=cache)
        sources = Visibility(real_keys=attend)
        rotary = None if self.rotary is None else self.rotary.angles(positions)  # 2 x [1, T, E/2]
        x = self.embedded(prefix, positions, is_source=False)  # [B, T, D]
        for i, block in enumerate(self.decoder_blocks):
            layer = None if cache is None else cache.layer(i)
            x = block(x, memory.values, sources, visibility, rotary, layer)
        if cache is not None:
            cache.advance(prefix)
        return x if self.final_norm is None else self.final_norm(x)

    def embedded(self, tokens: Tensor, positions: Tensor, *, is_source: bool) -> Tensor:
        """tokens [B, T], positions [1 or B, T] -> [B, T, D], with dropout in training."""
        c = self.config
        embedding = self.source_embedding if is_source else None
        x = (self.token_embedding if embedding is None else embedding)(tokens)  # [B, T, D]
        if c.scale_embeddings:
            x = x * math.sqrt(c.dim)
        if c.positions not in ("rotary", "none"):
            positions = positions_within(positions, c.max_seq_len)
        if c.positions == "one_hot":
            p = F.one_hot(positions, c.max_seq_len).to(x.dtype)  # [1 or B, T, max_seq_len]
            x = torch.cat([x, p.expand(len(x), -1, -1)], dim=-1)  # [B, T, D - max_seq_len] -> [B, T, D]
        elif c.positions == "learned":
            x = x + (self.source_position_embedding if is_source else self.position_embedding)(positions)
        elif c.positions.startswith("sinusoidal"):
            x = x + self._sinusoids(positions).to(x.dtype)
        return dropout(x, self.embedding_dropout, self.training)

    def _sinusoids(self, positions: Tensor) -> Tensor:
        """positions [1 or B, T] -> [1 or B, T, D] float32."""
        if self._sinusoidal is None or self._sinusoidal.device != positions.device:
            c = self.config
            layout = "halves" if c.positions == "sinusoidal_halves" else "interleaved"
            self._sinusoidal = sinusoidal_positions(c.max_seq_len, c.dim, layout=layout).to(positions.device)
        return self._sinusoidal[positions]

    def forward(self, source: Tensor, prefix: Tensor, *, attend: Tensor | None = None) -> Tensor:
        """source [B, S], prefix [B, T] -> logits [B, T, V]; keywords as in :meth:`encode`."""
        return self.lm_head(self.hidden(prefix, self.encode(source, attend=attend)))

    def new_cache(self, batch: int, length: int) -> DecoderCache:
        """Return an empty cache for ``batch`` rows of up to ``length`` tokens."""
        patterns = self.config.decoder_patterns
        return DecoderCache(n_layers=len(patterns), batch=batch, length=length, patterns=patterns)


PRESETS = {
    "transformer-base": TransformerConfig(dropout=0.1),
    "transformer-big": TransformerConfig(dim=1024, n_heads=16, dropout=0.3),
}
