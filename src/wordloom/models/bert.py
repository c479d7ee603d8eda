"""BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding (Devlin et al. 2018,
arXiv:1810.04805).

An encoder, trained to predict masked tokens and whether one text follows another.

    x = embedding_norm(token_embedding(tokens) + position_embedding(positions) + segment_embedding(segments))
    x = attention_norm(x + attention(x));  x = ffn_norm(x + feed_forward(x))      n_layers times (post-norm)
    pooled = tanh(pooler(x[:, 0]))                                                of the first token, [CLS]
    masked-LM logits = lm_head(mlm_norm(gelu(mlm_transform(x))))                  tied to token_embedding
    next-sentence logits = next_sentence(pooled)                                  0: follows, 1: does not

Changes from the 2017 Transformer: the encoder alone; learned positions; segments; a norm after the
embeddings; exact GELU; biases everywhere; norm_eps 1e-12.

Departures from the paper: the pooler and the two pre-training heads are optional.  A segment may number any
part of a text (``type_vocab_size``): sentence A and B, question and passage, turns of a conversation.

Parameters without heads: base 109,482,240, large 335,141,888; the paper prints 110 M and 340 M.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from wordloom.errors import ConfigError
from wordloom.models.checks import (
    check_settings,
    dropout_or,
    fills_everything,
    positions_within,
    segments_within,
)
from wordloom.nn import Attention, FeedForward, LayerNorm, Linear, Swish
from wordloom.nn.attention import (
    AttentionKind,
    LongformerAttention,
    Projection,
    Visibility,
    patterns_of_layers,
)
from wordloom.nn.attention.longformer import check_global_tokens
from wordloom.nn.dropout import dropout
from wordloom.nn.feed_forward import activation
from wordloom.nn.head import Head


@dataclass(frozen=True, kw_only=True)
class BertConfig:
    """Shapes and settings of a BERT; the defaults are the paper's base model, without heads."""

    vocab_size: int = 30522
    max_seq_len: int = 512
    type_vocab_size: int = 2  # number of segments
    dim: int = 768
    n_layers: int = 12
    n_heads: int = 12
    hidden_dim: int | None = None  # 4 * dim
    activation: str = "gelu"  # of feed_forward
    attention: str = "full"  # of each layer: see wordloom.nn.attention.setting
    global_projections: bool = False  # Longformer's q, k and v of the tokens of global:G
    mlm_activation: str | None = None  # of mlm_transform; None: activation
    norm_eps: float = 1e-12
    pooler: bool = True
    masked_lm_head: bool = False
    next_sentence_head: bool = False
    tie_embeddings: bool = True  # lm_head's matrix is the embedding
    empty_id: int | None = None  # a token whose embedding stays zero, to stand for a masked one
    dropout: float = 0.1  # of the embeddings, after attention's o_proj and after feed_forward
    attention_dropout: float | None = None  # of the attention weights; None: dropout

    position_offset: ClassVar[int] = 0  # row of the first position in position_embedding

    def __post_init__(self) -> None:
        check_settings(self)
        if self.next_sentence_head and not self.pooler:
            raise ConfigError("next_sentence_head reads the pooler's vector; set pooler to true")
        for pattern in self.patterns:  # raises ConfigError for an unknown kind of attention
            if self.global_projections:
                check_global_tokens(pattern)

    @property
    def patterns(self) -> tuple[AttentionKind, ...]:
        """The kind of attention of each layer."""
        return patterns_of_layers(self.attention, self.n_layers, causal=False, longest=self.max_seq_len)

    @property
    def ffn_dim(self) -> int:
        """Hidden width of the feed-forward: ``hidden_dim``, or 4 * dim."""
        return self.hidden_dim or 4 * self.dim

    @property
    def mlm_head_activation(self) -> str:
        """The activation of mlm_transform: ``mlm_activation``, or the family's default."""
        return self.mlm_activation or self.activation


class Encoded(NamedTuple):
    """The output of an encoder for B texts of T tokens.

    Attributes:
        last_hidden_state: ``[B, T, D]``, a vector for each token.
        pooler_output: ``[B, D]``, the pooled vector of each text's first token; None without a pooler.
    """

    last_hidden_state: Tensor
    pooler_output: Tensor | None


class Block(nn.Module):
    """Post-norm: norm(x + attention(x)), then norm(x + feed_forward(x)); [B, T, D] -> [B, T, D]."""

    def __init__(self, config: BertConfig, pattern: AttentionKind | None = None) -> None:
        super().__init__()
        c = config
        self.dropout = c.dropout
        attention_dropout = dropout_or(c.attention_dropout, c.dropout)
        self.attention: Attention
        if c.global_projections and pattern is not None:
            self.attention = LongformerAttention(
                dim=c.dim, n_heads=c.n_heads, dropout=attention_dropout, pattern=pattern
            )
        else:
            self.attention = Attention(
                dim=c.dim, n_heads=c.n_heads, bias=True, dropout=attention_dropout, pattern=pattern
            )
        self.attention_norm = LayerNorm(c.dim, eps=c.norm_eps)
        self.feed_forward = FeedForward(dim=c.dim, hidden_dim=c.ffn_dim, activation=c.activation)
        self.ffn_norm = LayerNorm(c.dim, eps=c.norm_eps)

    def forward(self, x: Tensor, visibility: Visibility) -> Tensor:
        """x [B, T, D] -> [B, T, D]."""
        attended = self.attention(x, visibility=visibility)
        x = self.attention_norm(x + dropout(attended, self.dropout, self.training))
        return self.ffn_norm(x + dropout(self.feed_forward(x), self.dropout, self.training))


class Bert(nn.Module):
    """An encoder; see :class:`wordloom.models.Encoder` for the protocol."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = c = config
        self.token_embedding = nn.Embedding(c.vocab_size, c.dim, padding_idx=c.empty_id)  # has no gradient
        self.position_embedding = nn.Embedding(c.position_offset + c.max_seq_len, c.dim)
        self.segment_embedding = nn.Embedding(c.type_vocab_size, c.dim)
        self.embedding_norm = LayerNorm(c.dim, eps=c.norm_eps)
        self.blocks = nn.ModuleList(Block(c, pattern) for pattern in c.patterns)
        self.pooler = Linear(c.dim, c.dim) if c.pooler else None
        if c.masked_lm_head:
            self.mlm_transform = Linear(c.dim, c.dim)
            self.mlm_activation = activation(c.mlm_head_activation)
            self.mlm_norm = LayerNorm(c.dim, eps=c.norm_eps)
            self.lm_head = Head(c.dim, c.vocab_size)
            self.lm_head.untrained_row = c.empty_id if c.tie_embeddings else None
        self.next_sentence = Linear(c.dim, 2) if c.next_sentence_head else None
        self.tie_weights()

    def tie_weights(self) -> None:
        """Share the embedding's weights [V, D] with ``lm_head`` if ``tie_embeddings`` is set.

        The row of ``empty_id`` is set to zero.  Neither the embedding nor a tied head has a gradient for it.
        """
        if self.config.masked_lm_head and self.config.tie_embeddings:
            self.lm_head.weight = self.token_embedding.weight
        if self.config.empty_id is not None:
            with torch.no_grad():
                self.token_embedding.weight[self.config.empty_id] = 0.0

    @fills_everything
    def init_weights(self, generator: torch.Generator | None = None) -> None:
        """Normal(0, 0.02) truncated at two deviations as in the authors' code; biases zero, norms one."""
        for name, module in self.named_modules():
            if isinstance(module, LayerNorm | Swish):
                module.reset_parameters()
            elif isinstance(module, Projection):
                module.reset_parameters(generator)
            elif isinstance(module, nn.Embedding | nn.Linear):
                if not (name == "lm_head" and self.config.tie_embeddings):
                    nn.init.trunc_normal_(module.weight, 0.0, 0.02, -0.04, 0.04, generator=generator)
                if isinstance(module, nn.Linear) and module.bias is not None:
                    nn.init.zeros_(module.bias)
        if self.config.empty_id is not None:
            self.token_embedding.weight[self.config.empty_id] = 0.0

    def forward(
        self,
        tokens: Tensor,
        *,
        segments: Tensor | None = None,
        attend: Tensor | None = None,
        documents: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Encoded:
        """tokens [B, T] -> vectors of the tokens and of the texts.

        ``segments`` [B, T] numbers the parts of a text; None: all 0.  ``attend`` [B, T] is True for tokens,
        which precede all padding.  ``documents`` [B, T] numbers texts that share a row without seeing one
        another; ``positions`` [B, T] then restart at 0 in each.
        """
        return self.pooled(self.hidden(tokens, segments, attend, documents, positions))

    def hidden(
        self,
        tokens: Tensor,
        segments: Tensor | None = None,
        attend: Tensor | None = None,
        documents: Tensor | None = None,
        positions: Tensor | None = None,
        *,
        n_layers: int | None = None,
    ) -> Tensor:
        """tokens [B, T] -> [B, T, D], after the first ``n_layers`` blocks; None: after all."""
        visibility = Visibility(real_keys=attend, documents=documents)
        x = self.embedded(tokens, segments, positions)
        for block in self.blocks[:n_layers]:
            x = block(x, visibility)
        return x

    def embedded(
        self, tokens: Tensor, segments: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """tokens [B, T] -> [B, T, D], the input of the first block."""
        c = self.config
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)[None]  # [1, T]
        x = self.token_embedding(tokens)  # [B, T, D]
        x = x + self.position_embedding(positions_within(positions, c.max_seq_len) + c.position_offset)
        segments = torch.zeros_like(tokens[:1]) if segments is None else segments
        x = x + self.segment_embedding(segments_within(segments, c.type_vocab_size))
        return dropout(self.embedding_norm(x), c.dropout, self.training)

    def pooled(self, x: Tensor) -> Encoded:
        """x [B, T, D] -> x and the pooled vectors [B, D] of its first tokens."""
        return Encoded(x, None if self.pooler is None else torch.tanh(self.pooler(x[:, 0])))  # [B, D]

    def mlm_hidden(self, x: Tensor) -> Tensor:
        """x [.., D] -> [.., D], the vectors that ``lm_head`` reads."""
        return self.mlm_norm(self.mlm_activation(self.mlm_transform(x)))


PRESETS = {
    "bert-base": BertConfig(),
    "bert-large": BertConfig(dim=1024, n_layers=24, n_heads=16),
    # Turc et al. 2019, arXiv:1908.08962
    "bert-medium": BertConfig(dim=512, n_layers=8, n_heads=8),
    "bert-small": BertConfig(dim=512, n_layers=4, n_heads=8),
    "bert-mini": BertConfig(dim=256, n_layers=4, n_heads=4),
    "bert-tiny": BertConfig(dim=128, n_layers=2, n_heads=2),
}
