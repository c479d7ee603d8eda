"""The layers that all models share: attention, feed-forward, norms, positions, cache.

A leaf takes keyword scalars and returns tensors; it knows no config, no model name and no file.

Shapes use one alphabet, here and in every model::

    B batch        T time (queries)      S source time (keys)     V vocabulary
    D model dim    F hidden dim          H query heads            K key/value heads    E head dim

Every boolean mask is True where a position takes part (the polarity of
``torch.nn.functional.scaled_dot_product_attention``).
"""

from wordloom.nn.attention import ATTENTION_BACKENDS, Attention, set_attention_backend
from wordloom.nn.attention.visibility import EVERYTHING, Visibility, causal_mask
from wordloom.nn.cache import KeyValueCache
from wordloom.nn.feed_forward import ACTIVATIONS, FeedForward, GatedFeedForward, Swish
from wordloom.nn.linear import Linear
from wordloom.nn.norms import LayerNorm, RMSNorm
from wordloom.nn.positions import Rotary, apply_rotary, halves_to_pairs, pairs_to_halves, sinusoidal_positions

__all__ = [
    "ACTIVATIONS", "ATTENTION_BACKENDS", "EVERYTHING", "Attention", "FeedForward", "GatedFeedForward",
    "KeyValueCache", "LayerNorm", "Linear", "RMSNorm", "Rotary", "Swish", "Visibility", "apply_rotary",
    "causal_mask", "halves_to_pairs", "pairs_to_halves", "set_attention_backend", "sinusoidal_positions",
]  # fmt: skip
