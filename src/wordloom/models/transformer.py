"""Attention Is All You Need (Vaswani et al. 2017, arXiv:1706.03762): the Transformer, which translates.

Sequence to sequence without recurrence: what a recurrent network carries from step to step, attention looks
up.  The encoder reads the source, the decoder writes on from a prefix and looks at what the encoder made.

    x = dropout(sqrt(dim) embedding(source) + positions)                                  sections 3.4, 3.5
    x = norm(x + dropout(attention(x)));  x = norm(x + dropout(feed_forward(x)))          n_layers times
    y = dropout(sqrt(dim) embedding(prefix) + positions)
    y = norm(y + dropout(causal_attention(y)));  y = norm(y + dropout(attention(y, x)))
    y = norm(y + dropout(feed_forward(y)))                                                n_layers times
    logits = lm_head(y)                                   tied to the embedding, one matrix for both sides

``norm_place="pre"`` is x + dropout(layer(norm(x))) and a norm after the last block of each side.
``positions``, added once to the embeddings but for rotary ones, which turn the queries and keys of attention
within a side:

    sinusoidal          the paper's table, sine and cosine alternating
    sinusoidal_halves   all sines, then all cosines, as Marian and fairseq have it: permuted columns
    learned             a table for each side (the paper's table 3, row E)
    rotary              Su et al. 2021, see nn/positions.py
    one_hot             x ⊕ p: the embedding, of ``dim - max_seq_len`` components, with the position's one-hot
                        vector behind it, and no map between: the blocks' first matrices read the position as
                        they read the word, W (x ⊕ p) = W_x x + W_p p, a learned table in every one of them
    none                the encoder cannot tell orders apart: it is permutation-equivariant

Parameters with 37,000 shared pieces: base 63,045,632 and big 214,171,648, with ``attention_bias`` 63,082,496
and 214,245,376; the paper prints 65 M and 213 M.  Its equations have no bias in attention.  It does not say
its norm_eps, nor how it was initialised: see ``init_weights``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wordloom.errors import ConfigError, did_you_mean
from wordloom.models.checks.initialisation import fills_everything
from wordloom.models.checks.inputs import positions_within
from wordloom.models.checks.settings import check_dropout, check_eps, check_heads, check_positive, dropout_or
from wordloom.nn import Attention, FeedForward, LayerNorm, Rotary, Swish, sinusoidal_positions
from wordloom.nn.attention import attention_mask
from wordloom.nn.cache import Cache, DecoderCache, LayerKeyValues, token_positions
from wordloom.nn.fused import dropout
from wordloom.nn.head import Head
from wordloom.nn.memory import Memory

__all__ = ["PRESETS", "Transformer", "TransformerConfig"]

POSITIONS = ("sinusoidal", "sinusoidal_halves", "learned", "rotary", "one_hot", "none")


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Shapes and settings of a 2017 Transformer; the defaults are the paper's base model, without dropout."""

    vocab_size: int = 37000  # of what is written
    source_vocab_size: int | None = None  # of what is read; None: the same
    max_seq_len: int = 1024  # of either side
    dim: int = 512
    n_layers: int = 6  # of the encoder
    n_decoder_layers: int | None = None  # None: as many
    n_heads: int = 8
    hidden_dim: int | None = None  # 4 * dim
    activation: str = "relu"
    norm_place: str = "post"  # or "pre"
    norm_eps: float = 1e-5
    positions: str = "sinusoidal"  # see POSITIONS
    scale_embeddings: bool = True  # by sqrt(dim)
    share_embeddings: bool = True  # one matrix for source and prefix
    tie_embeddings: bool = True  # lm_head's matrix is the prefix's embedding
    attention_bias: bool = False
    output_bias: bool = False
    dropout: float = 0.0  # after each layer, before it is added; the paper trains with 0.1, big with 0.3
    embedding_dropout: float | None = None  # of the sum of embedding and position; None: as dropout
    attention_dropout: float = 0.0  # of the attention weights; the paper has none
    activation_dropout: float = 0.0  # within feed_forward; the paper has none

    def __post_init__(self) -> None:
        check_positive(self, "vocab_size", "source_vocab_size", "max_seq_len", "dim", "n_layers")
        check_positive(self, "n_decoder_layers", "n_heads", "hidden_dim")
        check_dropout(self)
        check_eps(self)
        check_heads(self)
        for name, allowed in (("positions", POSITIONS), ("norm_place", ("post", "pre"))):
            value = getattr(self, name)
            if value not in allowed:
                raise ConfigError(f"unknown {name} {value!r}; {did_you_mean(value, allowed)}")
        if self.share_embeddings and self.source_vocab != self.vocab_size:
            sizes = f"{self.source_vocab:,} source tokens and {self.vocab_size:,}"
            raise ConfigError(f"share_embeddings needs one vocabulary, not {sizes}; set it to false")
        halved = self.dim // self.n_heads if self.positions == "rotary" else self.dim
        if self.positions.startswith(("sinusoidal", "rotary")) and halved % 2:
            raise ConfigError(f"{self.positions} positions need an even number of components, not {halved}")
        if self.positions == "one_hot" and (self.dim <= self.max_seq_len or self.tie_embeddings):
            raise ConfigError(
                f"one_hot positions are {self.max_seq_len:,} (max_seq_len) of the {self.dim:,} components in "
                "dim; the embedding has the others, so raise dim above it and set tie_embeddings to false"
            )

    @property
    def source_vocab(self) -> int:
        """Tokens that are read: ``source_vocab_size``, or as many as are written."""
        return self.source_vocab_size or self.vocab_size

    @property
    def decoder_layers(self) -> int:
        """Blocks of the decoder: ``n_decoder_layers``, or as many as the encoder has."""
        return self.n_decoder_layers or self.n_layers

    @property
    def ffn_dim(self) -> int:
        """Hidden width of the feed-forward: ``hidden_dim``, or 4 * dim."""
        return self.hidden_dim or 4 * self.dim


class EncoderBlock(nn.Module):
    """Attention within the source, then feed-forward; [B, S, D] -> [B, S, D]."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        c = config
        self.dropout, self.pre_norm = c.dropout, c.norm_place == "pre"
        self.attention = _attention(c)
        self.attention_norm = LayerNorm(c.dim, eps=c.norm_eps)
        self.feed_forward = FeedForward(
            dim=c.dim, hidden_dim=c.ffn_dim, activation=c.activation, dropout=c.activation_dropout
        )
        self.ffn_norm = LayerNorm(c.dim, eps=c.norm_eps)

    def add(self, x: Tensor, norm: nn.Module, layer: Callable[[Tensor], Tensor]) -> Tensor:
        """norm(x + layer(x)), the paper's, or x + layer(norm(x))."""
        made = dropout(layer(norm(x) if self.pre_norm else x), self.dropout, self.training)
        return x + made if self.pre_norm else norm(x + made)

    def forward(self, x: Tensor, mask: Tensor | None, rotary: tuple[Tensor, Tensor] | None) -> Tensor:
        """x [B, S, D], mask [B, 1, 1, S] or None, rotary 2 x [1 or B, S, E/2] -> [B, S, D]."""
        x = self.add(x, self.attention_norm, lambda x: self.attention(x, mask=mask, rotary=rotary))
        return self.add(x, self.ffn_norm, self.feed_forward)


class DecoderBlock(EncoderBlock):
    """Causal attention within the prefix, attention to the source, feed-forward; [B, T, D] -> [B, T, D]."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.cross_attention = _attention(config)
        self.cross_attention_norm = LayerNorm(config.dim, eps=config.norm_eps)

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        memory: Tensor,
        source_mask: Tensor | None,
        mask: Tensor | None,
        is_causal: bool,
        rotary: tuple[Tensor, Tensor] | None,
        cache: LayerKeyValues | None,
    ) -> Tensor:
        """x [B, T, D], memory [N, S, D], source_mask [N, 1, 1, S] or None -> [B, T, D].

        B is a multiple of N: rows that read one source stand together and are so many more queries of it.
        """
        context: Tensor | tuple[Tensor, Tensor] = memory
        if cache is not None:
            if cache.source is None:
                cache.source = self.cross_attention.keys_values(memory)
            context = cache.source
        N = len(context[0]) if isinstance(context, tuple) else len(context)

        def attend(x: Tensor) -> Tensor:
            return self.attention(x, mask=mask, is_causal=is_causal, rotary=rotary, cache=cache)

        def read(x: Tensor) -> Tensor:
            queries = x.reshape(N, len(x) // N * x.shape[1], x.shape[2])  # [N, B/N * T, D]
            return self.cross_attention(queries, context=context, mask=source_mask).view_as(x)

        x = self.add(x, self.attention_norm, attend)
        x = self.add(x, self.cross_attention_norm, read)
        return self.add(x, self.ffn_norm, self.feed_forward)


def _attention(config: TransformerConfig) -> Attention:
    c = config
    return Attention(dim=c.dim, n_heads=c.n_heads, bias=c.attention_bias, dropout=c.attention_dropout)


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
        self._sinusoidal: Tensor | None = None  # made at first use; no weight, and never cast to bfloat16
        self.encoder_blocks = nn.ModuleList(EncoderBlock(c) for _ in range(c.n_layers))
        self.encoder_norm = LayerNorm(c.dim, eps=c.norm_eps) if c.norm_place == "pre" else None
        self.decoder_blocks = nn.ModuleList(DecoderBlock(c) for _ in range(c.decoder_layers))
        self.final_norm = LayerNorm(c.dim, eps=c.norm_eps) if c.norm_place == "pre" else None
        self.lm_head = Head(c.dim, c.vocab_size, bias=c.output_bias)
        self.tie_weights()

    @property
    def blocks(self) -> list[nn.Module]:
        """All blocks, the encoder's first."""
        return [*self.encoder_blocks, *self.decoder_blocks]

    def tie_weights(self) -> None:
        """Let ``lm_head`` use the embedding's weights [V, D], where the config says so."""
        if self.config.tie_embeddings:
            self.lm_head.weight = self.token_embedding.weight

    @fills_everything
    def init_weights(self, generator: torch.Generator | None = None) -> None:
        """Xavier uniform, biases zero, norms one; embeddings, positions and head Normal(0, 1 / sqrt(dim)).

        As the common implementations have it: scaled by sqrt(dim), embeddings begin as large as positions.
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
        """source [B, S], ``attend`` [B, S] True for real tokens -> what the decoder reads, [B, S, D]."""
        positions, _ = token_positions(source, attend=attend, cache=None)
        rotary = None if self.rotary is None else self.rotary.angles(positions)  # 2 x [1 or B, S, E/2]
        mask = None if attend is None else attend[:, None, None]  # [B, 1, 1, S]
        x = self.embedded(source, positions, is_source=True)  # [B, S, D]
        for block in self.encoder_blocks:
            x = block(x, mask, rotary)
        return Memory(x if self.encoder_norm is None else self.encoder_norm(x), attend)

    def hidden(self, prefix: Tensor, memory: Memory, *, cache: Cache | None = None) -> Tensor:
        """prefix [B, T] -> [B, T, D], the vectors ``lm_head`` turns into logits.

        ``memory`` holds a source for each row, or for as many neighbouring rows each.  A ``cache`` keeps what
        is needed of it from the first tokens on, and ``cache.select`` moves that with the rows.
        """
        T, attend = prefix.shape[1], memory.attend
        if cache is not None:
            assert isinstance(cache, DecoderCache)
            attend = cache.source_attend = cache.source_attend if cache.length else attend
        positions, _ = token_positions(prefix, attend=None, cache=cache)
        rotary = None if self.rotary is None else self.rotary.angles(positions)  # 2 x [1, T, E/2]
        S = T if cache is None else cache.length + T
        mask, is_causal = attention_mask(T, S, attend=None, documents=None, device=prefix.device)
        source_mask = None if attend is None else attend[:, None, None]  # [N, 1, 1, S]
        x = self.embedded(prefix, positions, is_source=False)  # [B, T, D]
        for i, block in enumerate(self.decoder_blocks):
            kept = None if cache is None else cache.layer(i)
            x = block(x, memory.values, source_mask, mask, is_causal, rotary, kept)
        if cache is not None:
            cache.advance(T)
        return x if self.final_norm is None else self.final_norm(x)

    def embedded(self, tokens: Tensor, positions: Tensor, *, is_source: bool) -> Tensor:
        """tokens [B, T], positions [1 or B, T] -> [B, T, D], dropped in training."""
        c = self.config
        embedding = self.source_embedding if is_source else None
        x = (self.token_embedding if embedding is None else embedding)(tokens)
        if c.scale_embeddings:
            x = x * math.sqrt(c.dim)
        if c.positions not in ("rotary", "none"):
            positions = positions_within(positions, c.max_seq_len)
        if c.positions == "one_hot":
            p = F.one_hot(positions, c.max_seq_len).to(x.dtype)  # [1 or B, T, max_seq_len]
            x = torch.cat([x, p.expand(len(x), -1, -1)], dim=-1)
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
        """An empty cache for ``batch`` rows of up to ``length`` tokens."""
        return DecoderCache(n_layers=self.config.decoder_layers, length=length)


PRESETS = {
    "transformer-base": TransformerConfig(dropout=0.1),
    "transformer-big": TransformerConfig(dim=1024, n_heads=16, dropout=0.3),
}
