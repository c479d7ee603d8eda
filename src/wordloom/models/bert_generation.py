"""BertGeneration: Leveraging Pre-trained Checkpoints for Sequence Generation Tasks (Rothe, Narayan & Severyn
2020, arXiv:1907.12461).

An encoder-decoder whose two sides can start from a BERT (:func:`wordloom.weights.start_from_bert`).

    x = embedding_norm(source_embedding(source) + source_position_embedding(positions))
    x = attention_norm(x + attention(x));  x = ffn_norm(x + feed_forward(x))              n_layers times
    y = embedding_norm(token_embedding(prefix) + position_embedding(positions))
    y = attention_norm(y + causal_attention(y));  y = cross_attention_norm(y + attention(y, x))
    y = ffn_norm(y + feed_forward(y))                                                     n_layers times
    logits = lm_head(y)                                  tied to token_embedding, with a bias of its own

Changes from BERT: no segments, no pooler, no pre-training heads but the output bias; in the decoder, causal
attention, and attention to the source in every block.

Changes from the 2017 Transformer: learned positions; a norm after the embeddings; exact GELU; biases
everywhere; norm_eps 1e-12; separate embeddings for each side.

Parameters of a base model with BERT's 30,522 pieces: 246,177,594.  The encoder has 108,890,112: BERT's
109,482,240 without segments (1,536) and pooler (590,592).  The decoder has 137,287,482: the encoder's number,
attention to the source with its norm in 12 blocks (28,366,848 = 12 x 4 (768^2 + 768) + 12 x 2 x 768) and the
output bias (30,522).  The output matrix is the embedding, counted once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from wordloom.errors import ConfigError
from wordloom.models.bert import BertConfig, Block
from wordloom.models.checks import check_settings, dropout_or, fills_everything, positions_within
from wordloom.nn import Attention, LayerNorm, Swish
from wordloom.nn.attention import positions_and_visibility
from wordloom.nn.attention.visibility import Visibility
from wordloom.nn.cache import DecoderCache, LayerCache
from wordloom.nn.dropout import dropout
from wordloom.nn.head import Head
from wordloom.nn.memory import Memory


@dataclass(frozen=True, kw_only=True)
class BertGenerationConfig:
    """Shapes and settings of both sides; the defaults are the released models', of BERT's large size."""

    vocab_size: int = 50358  # of the decoder
    source_vocab_size: int | None = None  # of the encoder; None: vocab_size
    max_seq_len: int = 512  # of either side
    dim: int = 1024
    n_layers: int = 24  # of the encoder
    n_decoder_layers: int | None = None  # None: n_layers
    n_heads: int = 16
    hidden_dim: int | None = None  # 4 * dim
    activation: str = "gelu"
    norm_eps: float = 1e-12
    padding_idx: int | None = 0  # a token whose embedding starts at zero and is not trained as an input
    dropout: float = 0.1  # of the embeddings, after attention's o_proj and after feed_forward
    attention_dropout: float | None = None  # of the attention weights; None: dropout

    tie_embeddings: ClassVar[bool] = True  # lm_head's matrix is token_embedding
    norm_place: ClassVar[str] = "post"  # the Transformer's setting of that name

    def __post_init__(self) -> None:
        check_settings(self)
        smaller = min(self.vocab_size, self.source_vocab)
        if self.padding_idx is not None and not 0 <= self.padding_idx < smaller:
            raise ConfigError(
                f"padding_idx is a token of both sides, 0 to {smaller - 1}, not {self.padding_idx}"
            )

    @property
    def as_bert(self) -> BertConfig:
        """The BERT config whose blocks both sides use."""
        shared = {name: value for name, value in vars(self).items() if name in vars(BertConfig())}
        return BertConfig(**shared, type_vocab_size=1, pooler=False)

    @property
    def source_vocab(self) -> int:
        """Size of the encoder's vocabulary: ``source_vocab_size``, or ``vocab_size``."""
        return self.source_vocab_size or self.vocab_size

    @property
    def decoder_layers(self) -> int:
        """Blocks of the decoder: ``n_decoder_layers``, or ``n_layers``."""
        return self.n_decoder_layers or self.n_layers

    @property
    def ffn_dim(self) -> int:
        """Hidden width of the feed-forward: ``hidden_dim``, or 4 * dim."""
        return self.hidden_dim or 4 * self.dim


class DecoderBlock(Block):
    """BERT's block with attention to the source before its feed-forward; [B, T, D] -> [B, T, D]."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        c = config
        self.cross_attention = Attention(
            dim=c.dim, n_heads=c.n_heads, bias=True, dropout=dropout_or(c.attention_dropout, c.dropout)
        )
        self.cross_attention_norm = LayerNorm(c.dim, eps=c.norm_eps)

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        memory: Tensor,
        sources: Visibility,
        visibility: Visibility,
        cache: LayerCache | None,
    ) -> Tensor:
        """x [B, T, D], memory [N, S, D] -> [B, T, D].

        B is a multiple of N: neighbouring rows that share a source are queries of that source.
        """
        context: Tensor | tuple[Tensor, Tensor] = memory
        if cache is not None:
            if cache.source is None:
                cache.source = self.cross_attention.keys_values(memory)
            context = cache.source
        N = len(context[0]) if isinstance(context, tuple) else len(context)
        y = self.attention(x, visibility=visibility, cache=cache)
        x = self.attention_norm(x + dropout(y, self.dropout, self.training))
        queries = x.reshape(N, len(x) // N * x.shape[1], x.shape[2])  # [N, B/N * T, D]
        y = self.cross_attention(queries, context=context, visibility=sources).view_as(x)  # [B, T, D]
        x = self.cross_attention_norm(x + dropout(y, self.dropout, self.training))
        return self.ffn_norm(x + dropout(self.feed_forward(x), self.dropout, self.training))


class BertGeneration(nn.Module):
    """Sequence to sequence; see :class:`wordloom.models.SequenceToSequence` for the protocol."""

    rotary = final_norm = None  # a Transformer's decoder may have them

    def __init__(self, config: BertGenerationConfig) -> None:
        super().__init__()
        self.config = c = config
        bert = c.as_bert
        self.source_embedding = nn.Embedding(c.source_vocab, c.dim, padding_idx=c.padding_idx)
        self.source_position_embedding = nn.Embedding(c.max_seq_len, c.dim)
        self.source_embedding_norm = LayerNorm(c.dim, eps=c.norm_eps)
        self.encoder_blocks = nn.ModuleList(Block(bert) for _ in range(c.n_layers))
        self.token_embedding = nn.Embedding(c.vocab_size, c.dim, padding_idx=c.padding_idx)
        self.position_embedding = nn.Embedding(c.max_seq_len, c.dim)
        self.embedding_norm = LayerNorm(c.dim, eps=c.norm_eps)
        self.decoder_blocks = nn.ModuleList(DecoderBlock(bert) for _ in range(c.decoder_layers))
        self.lm_head = Head(c.dim, c.vocab_size)
        self.tie_weights()

    @property
    def blocks(self) -> list[nn.Module]:
        """All blocks, those of the encoder first."""
        return [*self.encoder_blocks, *self.decoder_blocks]

    def tie_weights(self) -> None:
        """Share the embedding's weights [V, D] with ``lm_head``."""
        self.lm_head.weight = self.token_embedding.weight

    @fills_everything
    def init_weights(self, generator: torch.Generator | None = None) -> None:
        """Normal(0, 0.02) truncated at two deviations, as in BERT; biases and padding zero, norms one."""
        for name, module in self.named_modules():
            if isinstance(module, LayerNorm | Swish):
                module.reset_parameters()
            elif isinstance(module, nn.Embedding | nn.Linear):
                if name != "lm_head":
                    nn.init.trunc_normal_(module.weight, 0.0, 0.02, -0.04, 0.04, generator=generator)
                if isinstance(module, nn.Linear) and module.bias is not None:
                    nn.init.zeros_(module.bias)
                if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                    nn.init.zeros_(module.weight[module.padding_idx])

    def encode(self, source: Tensor, *, attend: Tensor | None = None) -> Memory:
        """source [B, S], ``attend`` [B, S] True for real tokens -> the memory that the decoder reads."""
        positions, _ = positions_and_visibility(source, attend=attend)
        visibility = Visibility(real_keys=attend)
        x = self.embedded(source, positions, is_source=True)  # [B, S, D]
        for block in self.encoder_blocks:
            x = block(x, visibility)
        return Memory(x, attend)

    def hidden(self, prefix: Tensor, memory: Memory, *, cache: DecoderCache | None = None) -> Tensor:
        """prefix [B, T] -> [B, T, D], the vectors that ``lm_head`` reads.

        ``memory`` holds one source for each row, or for each group of neighbouring rows.  A ``cache`` keeps
        the source's keys and values from the first tokens on, and ``cache.select`` moves them with the rows.
        """
        attend = memory.attend
        if cache is not None:
            attend = cache.source_attend = cache.source_attend if cache.n_sources else attend
        positions, visibility = positions_and_visibility(prefix, cache=cache)
        sources = Visibility(real_keys=attend)
        x = self.embedded(prefix, positions, is_source=False)  # [B, T, D]
        for i, block in enumerate(self.decoder_blocks):
            kept = None if cache is None else cache.layer(i)
            x = block(x, memory.values, sources, visibility, kept)
        if cache is not None:
            cache.advance(prefix)
        return x

    def embedded(self, tokens: Tensor, positions: Tensor, *, is_source: bool) -> Tensor:
        """tokens [B, T], positions [1 or B, T] -> [B, T, D], with dropout in training."""
        positions = positions_within(positions, self.config.max_seq_len)
        if is_source:
            x = self.source_embedding(tokens) + self.source_position_embedding(positions)
            x = self.source_embedding_norm(x)
        else:
            x = self.embedding_norm(self.token_embedding(tokens) + self.position_embedding(positions))
        return dropout(x, self.config.dropout, self.training)

    def forward(self, source: Tensor, prefix: Tensor, *, attend: Tensor | None = None) -> Tensor:
        """source [B, S], prefix [B, T] -> logits [B, T, V]; keywords as in :meth:`encode`."""
        return self.lm_head(self.hidden(prefix, self.encode(source, attend=attend)))

    def new_cache(self, batch: int, length: int) -> DecoderCache:
        """Return an empty cache for ``batch`` rows of up to ``length`` tokens."""
        return DecoderCache(n_layers=self.config.decoder_layers, batch=batch, length=length)


PRESETS = {
    "bert2bert-base": BertGenerationConfig(vocab_size=30522, dim=768, n_layers=12, n_heads=12),
    "bert2bert-large": BertGenerationConfig(),
}
