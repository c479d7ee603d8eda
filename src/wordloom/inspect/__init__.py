"""Looking inside a model: where its parameters are, what a token costs, what its heads attend to, how far
back its losses reach, where its words lie, which word of a source each word of a translation came from.

Each name below is fetched when it is first used: drawing word vectors needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wordloom.lazy import fetching

_HOMES = {
    "Alignment": "alignment",
    "AttentionMap": "attention",
    "Component": "parameters",
    "GradientFlow": "gradients",
    "KvCache": "parameters",
    "ParameterTable": "parameters",
    "alignment_map": "alignment",
    "attention_map": "attention",
    "draw_axes": "vector_plots",
    "draw_gradients": "gradients",
    "draw_lengths": "lengths",
    "draw_map": "vector_plots",
    "gradient_flow": "gradients",
    "parameter_table": "parameters",
}

__all__ = [
    "Alignment",
    "AttentionMap",
    "Component",
    "GradientFlow",
    "KvCache",
    "ParameterTable",
    "alignment_map",
    "attention_map",
    "draw_axes",
    "draw_gradients",
    "draw_lengths",
    "draw_map",
    "gradient_flow",
    "parameter_table",
]

if TYPE_CHECKING:
    from wordloom.inspect.alignment import Alignment, alignment_map
    from wordloom.inspect.attention import AttentionMap, attention_map
    from wordloom.inspect.gradients import GradientFlow, draw_gradients, gradient_flow
    from wordloom.inspect.lengths import draw_lengths
    from wordloom.inspect.parameters import Component, KvCache, ParameterTable, parameter_table
    from wordloom.inspect.vector_plots import draw_axes, draw_map

__getattr__ = fetching(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
