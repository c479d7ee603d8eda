"""Continuous bag of words as a language model: a predictor that does not see the order of its context.

- Mikolov, Chen, Corrado & Dean 2013, "Efficient Estimation of Word Representations in Vector Space"
  (arXiv:1301.3781), section 3.1: the mean of the embeddings around a place predicts the word there.
- Iyyer, Manjunatha, Boyd-Graber & Daumé 2015, "Deep Unordered Composition Rivals Syntactic Methods for Text
  Classification": feed-forward layers above the mean.

    x = mean of token_embedding(tokens) over the last ``window`` tokens
    x = x + feed_forward(ffn_norm(x))                     n_layers times
    logits = lm_head(final_norm(x))                       tied to token_embedding

It is a GPT-2 whose context is a bag, without attention, recurrence and positions.  Reordering the last
``window`` tokens changes nothing, and the tokens before them are not seen.

Departures from the papers: the context lies before the predicted token only, so that the model can write; the
layers are those of a pre-norm Transformer (Iyyer et al. stack plain ones).

Parameters, with F the hidden_dim: V D + n_layers (2 D F + D) + D; V D more if not tied.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from wordloom.models.checks import check_settings, fills_everything
from wordloom.nn import FeedForward, LayerNorm, Swish
from wordloom.nn.cache import RecurrentCache
from wordloom.nn.context_means import context_means
from wordloom.nn.dropout import dropout
from wordloom.nn.head import Head


@dataclass(frozen=True, kw_only=True)
class CBOWConfig:
    """Shapes and settings of an order-free predictor."""

    vocab_size: int = 10000
    dim: int = 256
    n_layers: int = 2
    hidden_dim: int | None = None  # 4 * dim
    window: int = 8  # tokens in a bag
    activation: str = "gelu_tanh"
    norm_eps: float = 1e-5
    tie_embeddings: bool = True
    dropout: float = 0.0  # of the mean, and after feed_forward

    def __post_init__(self) -> None:
        check_settings(self)


class Block(nn.Module):
    """Pre-norm: x + feed_forward(norm(x)); [B, T, D] -> [B, T, D]."""

    def __init__(self, config: CBOWConfig) -> None:
        super().__init__()
        c = config
        self.dropout = c.dropout
        self.ffn_norm = LayerNorm(c.dim, eps=c.norm_eps, bias=False)
        self.feed_forward = FeedForward(
            dim=c.dim, hidden_dim=c.hidden_dim or 4 * c.dim, activation=c.activation, bias=False
        )

    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, D] -> [B, T, D]."""
        return x + dropout(self.feed_forward(self.ffn_norm(x)), self.dropout, self.training)


class CBOW(nn.Module):
    """A causal language model; see :class:`wordloom.models.CausalLM` for the protocol."""

    def __init__(self, config: CBOWConfig) -> None:
        super().__init__()
        self.config = c = config
        self.token_embedding = nn.Embedding(c.vocab_size, c.dim)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.n_layers))
        self.final_norm = LayerNorm(c.dim, eps=c.norm_eps, bias=False)
        self.lm_head = Head(c.dim, c.vocab_size, bias=False)
        self.tie_weights()

    def tie_weights(self) -> None:
        """Share the embedding's weights [V, D] with ``lm_head`` if ``tie_embeddings`` is set."""
        if self.config.tie_embeddings:
            self.lm_head.weight = self.token_embedding.weight

    @fills_everything
    def init_weights(self, generator: torch.Generator | None = None) -> None:
        """Normal(0, 0.02), norms one; down_proj divided by sqrt(n_layers), as in a GPT-2 of as many sums."""
        for name, module in self.named_modules():
            if isinstance(module, LayerNorm | Swish):
                module.reset_parameters()
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, 0.0, 0.02, generator=generator)
            elif isinstance(module, nn.Linear) and not (name == "lm_head" and self.config.tie_embeddings):
                std = 0.02 / math.sqrt(self.config.n_layers) if name.endswith("down_proj") else 0.02
                nn.init.normal_(module.weight, 0.0, std, generator=generator)

    def hidden(
        self,
        tokens: Tensor,
        *,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
        attend: Tensor | None = None,
        cache: RecurrentCache | None = None,
    ) -> Tensor:
        """tokens [B, T] -> [B, T, D], the vectors that ``lm_head`` reads.

        ``attend`` [B, T] is False for padding, which enters no bag.  With ``documents``, a bag holds tokens
        of one document, which begins where ``positions`` is 0; without positions, where the number changes.
        """
        x = self.token_embedding(tokens)  # [B, T, D]
        x = context_means(
            x, self.config.window, positions=positions, documents=documents, attend=attend, cache=cache
        )
        if cache is not None:
            cache.advance(tokens, attend)
        x = dropout(x, self.config.dropout, self.training)
        for block in self.blocks:
            x = block(x)
        return self.final_norm(x)

    def forward(self, tokens: Tensor, **keywords: Tensor | RecurrentCache | None) -> Tensor:
        """tokens [B, T] -> logits [B, T, V]; keywords as in :meth:`hidden`."""
        return self.lm_head(self.hidden(tokens, **keywords))  # type: ignore[arg-type]

    def new_cache(self, batch: int, length: int) -> RecurrentCache:
        """Return an empty cache for ``batch`` rows; its size does not depend on their ``length``."""
        return RecurrentCache(n_layers=1, batch=batch)
