"""The cost of one token: floating-point operations and bytes of key/value cache.

Both are counted from the modules of the model, built on the meta device, so a family needs no formula of its
own.  A multiply and an add count as two operations, as in the papers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn

from wordloom.errors import ConfigError
from wordloom.models.building.build import skeleton
from wordloom.nn import Attention
from wordloom.nn.attention import Approximation
from wordloom.nn.scorers import AdditiveScorer, DotScorer

Layer = TypeVar("Layer", bound=nn.Module)


@dataclass(frozen=True, kw_only=True)
class Flops:
    """Operations for one token, by kind; the three add up to :attr:`forward`."""

    layers: int  # 2 per weight of the blocks' matrices
    attention: int  # 4 per query element and key: q k^T, then weights times v; recurrent: score, then mean
    head: int  # 2 per weight of lm_head, classifier, pooler and next_sentence

    @property
    def forward(self) -> int:
        """All operations of a forward pass, per token."""
        return self.layers + self.attention + self.head

    @property
    def training(self) -> int:
        """Forward and backward: the backward pass makes two matrix products of each one (3 x forward)."""
        return 3 * self.forward


def flops_per_token(model: Any, *, context: int) -> Flops:
    """Return the operations for one token of ``model`` (or of its config) with ``context`` keys per query.

    forward = 2 x matrix weights + sum over layers of 4 x n_heads x head_dim x keys.  Full attention has
    ``context`` keys, and a pattern as many as the mean query of a text of ``context`` tokens sees.  An
    approximation has as many as full attention with the same number of operations.  Embedding
    look-ups, biases, norms and softmax are not counted.  Heads count for every token, also those that read
    one token of a text.  ``context`` equal to the sequence length is the convention of model FLOP utilisation
    (Chowdhery et al. 2022, arXiv:2204.02311, appendix B).  The mean over a causal sequence is about half of
    that, since query t has t + 1 keys.

    For an encoder-decoder the result covers a source token and a target token, with both texts ``context``
    long.

    Raises ConfigError for a context below 1.
    """
    if context < 1:
        raise ConfigError(f"context is a number of keys above 0, not {context}")
    module, layers, head = _module(model), 0, 0
    for name, linear in _layers(module, nn.Linear):
        if name.rpartition(".")[2] in ("lm_head", "classifier", "pooler", "next_sentence"):
            head += 2 * linear.weight.numel()
        else:
            layers += 2 * linear.weight.numel()
    attention = sum(
        round(4 * a.n_heads * a.head_dim * keys_per_query(a, context)) for _, a in _layers(module, Attention)
    )
    for scorer in module.modules():
        if isinstance(scorer, DotScorer | AdditiveScorer):  # score and mean
            attention += 2 * (scorer.score_dim + scorer.memory_dim) * context
    return Flops(layers=layers, attention=attention, head=head)


def keys_per_query(attention: Attention, context: int) -> float:
    """Return the mean number of keys of a query in a text of ``context`` tokens; full attention has all.

    For an approximation, it is the number with which full attention needs as many operations.
    """
    return context if attention.pattern is None else attention.pattern.n_pairs(context) / context


def kv_cache_bytes(model: Any, *, context: int, element_bytes: int, n_kv_heads: int | None = None) -> int:
    """Return the bytes of the cache of a text of ``context`` tokens.

    A layer whose pattern sees only the first and the last tokens keeps no more of them, and a Performer has a
    float32 state of fixed size.  The other arguments are those of :func:`kv_cache_bytes_per_token`.
    """
    total = 0
    for name, attention in _layers(_module(model), Attention):
        K, pattern = n_kv_heads or attention.n_kv_heads, attention.pattern
        if name.startswith("encoder_"):
            continue
        if isinstance(pattern, Approximation):
            total += 4 * pattern.state_elements(K, attention.head_dim)
        else:
            remembered = None if pattern is None else pattern.remembered
            kept = context if remembered is None else min(context, sum(remembered))
            total += 2 * K * attention.head_dim * element_bytes * kept
    return total


def attention_activation_bytes(model: Any, *, context: int, element_bytes: int) -> int:
    """Return the bytes that the attentions of a text of ``context`` tokens keep for the backward pass.

    These are queries, keys, values, results and a float32 sum for each query and head, or what an
    approximation computes from them.  No kernel keeps the scores, so the memory is linear in the context.
    """
    total = 0
    for _, a in _layers(_module(model), Attention):
        further = a.n_heads
        if isinstance(a.pattern, Approximation):
            further = a.pattern.activation_elements(a.n_heads, a.n_kv_heads)
        total += context * ((2 * a.n_heads + 2 * a.n_kv_heads) * a.head_dim * element_bytes + 4 * further)
    return total


def kv_cache_bytes_per_token(model: Any, *, element_bytes: int, n_kv_heads: int | None = None) -> int:
    """Return the cache bytes per token: a key and a value of head_dim elements per kv head and layer.

    For an encoder-decoder the result covers a source token and a target token; its encoder keeps none.  Nor
    does a Performer, whose state has a fixed size.
    ``n_kv_heads`` asks for another number of kv heads: n_heads is multi-head, 1 is multi-query.
    """
    return sum(
        2 * (n_kv_heads or attention.n_kv_heads) * attention.head_dim * element_bytes
        for name, attention in _layers(_module(model), Attention)
        if not name.startswith("encoder_") and not isinstance(attention.pattern, Approximation)
    )


def _module(model: Any) -> nn.Module:
    return model if isinstance(model, nn.Module) else skeleton(model)


def _layers(model: nn.Module, kind: type[Layer]) -> Iterator[tuple[str, Layer]]:
    return ((name, module) for name, module in model.named_modules() if isinstance(module, kind))
