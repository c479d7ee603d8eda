"""Attention: the layer, the keys that a query sees, and the sparse and low-rank kinds of Lin et al. 2021."""

from wordloom.nn.attention.approximation import Approximation
from wordloom.nn.attention.layer import (
    ATTENTION_BACKENDS,
    Attention,
    exact_attention,
    running_kernel,
    set_attention_backend,
)
from wordloom.nn.attention.longformer import LongformerAttention
from wordloom.nn.attention.low_rank import Linformer, Nystrom, Projection
from wordloom.nn.attention.pattern import Pattern
from wordloom.nn.attention.performer import Performer
from wordloom.nn.attention.setting import AttentionKind, patterns_of_layers
from wordloom.nn.attention.visibility import (
    EVERYTHING,
    Visibility,
    causal_mask,
    positions_and_visibility,
)

__all__ = [
    "ATTENTION_BACKENDS", "EVERYTHING", "Approximation", "Attention", "AttentionKind", "Linformer",
    "LongformerAttention", "Nystrom", "Pattern", "Performer", "Projection", "Visibility", "causal_mask",
    "exact_attention", "patterns_of_layers", "positions_and_visibility", "running_kernel",
    "set_attention_backend",
]  # fmt: skip
