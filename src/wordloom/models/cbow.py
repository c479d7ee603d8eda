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
        before = _tokens_before(tokens, positions, documents, attend, cache)  # [B, T]
        order = None
        if attend is not None:  # padding goes behind the tokens
            order = attend.logical_not().long().argsort(dim=1, stable=True)  # [B, T]
            x, before = _at(x, order), before.gather(1, order)
        if cache is None:
            x = window_means(x, before, self.config.window)  # [B, T, D]
        else:
            x, before = self._behind_cached(x, before, cache)  # [B, window - 1 + T, D], [B, window - 1 + T]
            cache.layer(0).state = _last(x, before, self.config.window - 1, attend)
            cache.advance(tokens, attend)
            x = window_means(x, before, self.config.window)[:, self.config.window - 1 :]  # [B, T, D]
        if order is not None:
            x = _at(x, order.argsort(dim=1))
        x = dropout(x, self.config.dropout, self.training)
        for block in self.blocks:
            x = block(x)
        return self.final_norm(x)

    def _behind_cached(self, x: Tensor, before: Tensor, cache: RecurrentCache) -> tuple[Tensor, Tensor]:
        """Put the last ``window`` - 1 tokens of each row in front of ``x`` [B, T, D] and ``before`` [B, T].

        There are zeros where a row has fewer tokens.
        """
        B, _, D = x.shape
        state = cache.layer(0).state
        if state is None:
            state = x.new_zeros(B, self.config.window - 1, D), before.new_zeros(B, self.config.window - 1)
        return torch.cat([state[0].to(x), x], dim=1), torch.cat([state[1], before], dim=1)

    def forward(self, tokens: Tensor, **where: Tensor | RecurrentCache | None) -> Tensor:
        """tokens [B, T] -> logits [B, T, V]; keywords as in :meth:`hidden`."""
        return self.lm_head(self.hidden(tokens, **where))  # type: ignore[arg-type]

    def new_cache(self, batch: int, length: int) -> RecurrentCache:
        """Return an empty cache for ``batch`` rows; its size does not depend on their ``length``."""
        return RecurrentCache(n_layers=1, batch=batch)


def window_means(x: Tensor, before: Tensor, window: int) -> Tensor:
    """x [B, T, D] -> [B, T, D], means of the last ``window`` vectors up to each place.

    ``before`` [B, T] is how many vectors of its text stand before a place; a mean holds none of other texts.
    Sums over 1, 2, 4, ... vectors make those over any number, so the cost grows with the logarithm of
    ``window``.
    """
    sums, size = x, 1  # of the last ``size`` vectors
    total, taken = torch.zeros_like(x), 0
    while size <= window:
        if window & size:
            total = total + _shifted(sums, before, taken)
            taken += size
        if 2 * size <= window:
            sums = sums + _shifted(sums, before, size)
        size *= 2
    return total / (before + 1).clamp(max=window)[..., None].to(x.dtype)


def _shifted(x: Tensor, before: Tensor, by: int) -> Tensor:
    """x [B, T, D] moved ``by`` places to later ones; zero where that place is in another text."""
    if by == 0:
        return x
    moved = torch.cat([torch.zeros_like(x[:, :by]), x[:, :-by]], dim=1)[:, : x.shape[1]]
    return moved * (before >= by)[..., None].to(x.dtype)


def _last(x: Tensor, before: Tensor, count: int, attend: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the last ``count`` tokens of each row, [B, count, D] and [B, count], without padding behind."""
    if attend is None:
        return x[:, x.shape[1] - count :], before[:, before.shape[1] - count :]
    places = attend.sum(1, keepdim=True) + torch.arange(count, device=x.device)  # [B, count]
    return _at(x, places), before.gather(1, places)


def _at(x: Tensor, places: Tensor) -> Tensor:
    """x [B, T, D] -> [B, n, D], the vectors at ``places`` [B, n]."""
    return x.gather(1, places[..., None].expand(*places.shape, x.shape[2]))


def _tokens_before(
    tokens: Tensor,
    positions: Tensor | None,
    documents: Tensor | None,
    attend: Tensor | None,
    cache: RecurrentCache | None,
) -> Tensor:
    """[B, T], the number of tokens of the same text before each token."""
    B, T = tokens.shape
    if documents is not None and positions is not None:
        return positions.expand(B, T)
    index = torch.arange(T, device=tokens.device).expand(B, T)
    if documents is not None:
        changes = torch.ones_like(tokens, dtype=torch.bool)
        changes[:, 1:] = documents[:, 1:] != documents[:, :-1]
        return index - torch.where(changes, index, 0).cummax(dim=1).values
    if attend is not None:
        index = attend.long().cumsum(1) - attend.long()
    return index if cache is None else index + cache.lengths.to(tokens.device)[:, None]
