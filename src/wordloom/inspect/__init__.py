"""Inspect models: parameters, cost, attention, alignment, gradients, word maps and other plots.

Each name below is imported when it is first used, because plots of word vectors need no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wordloom.lazy import lazy_names

__all__ = [
    "Alignment", "AttentionMap", "Component", "GradientFlow", "KvCache", "ParameterTable", "alignment_map",
    "attention_map", "draw_axes", "draw_gradients", "draw_lengths", "draw_map", "gate_values",
    "gradient_flow", "last_attention", "parameter_table",
]  # fmt: skip

if TYPE_CHECKING:
    from wordloom.inspect.attention import (
        Alignment,
        AttentionMap,
        alignment_map,
        attention_map,
        last_attention,
    )
    from wordloom.inspect.gates import gate_values
    from wordloom.inspect.gradients import GradientFlow, draw_gradients, gradient_flow
    from wordloom.inspect.parameters import Component, KvCache, ParameterTable, parameter_table
    from wordloom.inspect.score_plots import draw_lengths
    from wordloom.inspect.vector_plots import draw_axes, draw_map

__getattr__, __dir__ = lazy_names(__name__, __file__)
