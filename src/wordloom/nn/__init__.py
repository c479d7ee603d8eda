"""The layers that all models share: attention, feed-forward, norms, positions, cache.

A leaf takes keyword scalars and returns tensors; it knows no config, no model name and no file.

Shapes use one alphabet, here and in every model::

    B batch        T time (queries)      S source time (keys)     V vocabulary
    D model dim    F hidden dim          H query heads            K key/value heads    E head dim

Every boolean mask is True where a position takes part (the polarity of
``torch.nn.functional.scaled_dot_product_attention``).

Each name below is imported when it is first used.  Code that needs only the compiled kernels then runs
without importing PyTorch, which often takes longer than the work itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wordloom.lazy import fetching

if TYPE_CHECKING:
    from wordloom.nn.attention import ATTENTION_BACKENDS, Attention, set_attention_backend
    from wordloom.nn.cache import KeyValueCache
    from wordloom.nn.feed_forward import ACTIVATIONS, FeedForward, GatedFeedForward, Swish
    from wordloom.nn.linear import Linear
    from wordloom.nn.norms import LayerNorm, RMSNorm
    from wordloom.nn.positions import (
        Rotary,
        apply_rotary,
        halves_to_pairs,
        pairs_to_halves,
        sinusoidal_positions,
    )
    from wordloom.nn.visibility import EVERYTHING, Visibility, causal_mask

_HOMES = {
    "ACTIVATIONS": "feed_forward",
    "ATTENTION_BACKENDS": "attention",
    "Attention": "attention",
    "EVERYTHING": "visibility",
    "FeedForward": "feed_forward",
    "GatedFeedForward": "feed_forward",
    "KeyValueCache": "cache",
    "LayerNorm": "norms",
    "Linear": "linear",
    "RMSNorm": "norms",
    "Rotary": "positions",
    "Swish": "feed_forward",
    "Visibility": "visibility",
    "apply_rotary": "positions",
    "causal_mask": "visibility",
    "halves_to_pairs": "positions",
    "pairs_to_halves": "positions",
    "set_attention_backend": "attention",
    "sinusoidal_positions": "positions",
}

__all__ = [
    "ACTIVATIONS", "ATTENTION_BACKENDS", "EVERYTHING", "Attention", "FeedForward", "GatedFeedForward",
    "KeyValueCache", "LayerNorm", "Linear", "RMSNorm", "Rotary", "Swish", "Visibility", "apply_rotary",
    "causal_mask", "halves_to_pairs", "pairs_to_halves", "set_attention_backend", "sinusoidal_positions",
]  # fmt: skip

__getattr__ = fetching(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
