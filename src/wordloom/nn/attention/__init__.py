"""Attention: the layer, the keys that a query sees, and the sparse patterns of Lin et al. 2021."""

from wordloom.nn.attention.layer import (
    ATTENTION_BACKENDS,
    Attention,
    exact_attention,
    running_kernel,
    set_attention_backend,
)
from wordloom.nn.attention.longformer import LongformerAttention
from wordloom.nn.attention.pattern import Pattern, patterns_of_layers
from wordloom.nn.attention.visibility import EVERYTHING, Visibility, causal_mask

__all__ = [
    "ATTENTION_BACKENDS", "EVERYTHING", "Attention", "LongformerAttention", "Pattern", "Visibility",
    "causal_mask", "exact_attention", "patterns_of_layers", "running_kernel", "set_attention_backend",
]  # fmt: skip
