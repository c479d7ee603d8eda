"""Inspect models: parameters, cost, attention, alignment, gradients, word maps and other plots.

Each name below is imported when it is first used, because plots of word vectors need no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wordloom.lazy import lazy_names

__all__ = [
    "Alignment", "AttentionMap", "Attribution", "Component", "Contributions", "Directions", "Geometry",
    "GradientFlow", "HeadHistory", "HeadScores", "KvCache", "Lens", "LensSummary", "ParameterTable",
    "Patching", "Probe", "Table", "View", "WordInTexts", "alignment_map", "attention_map", "attribution",
    "contributions", "draw_axes", "draw_gradients", "draw_lengths", "draw_map", "gate_values", "geometry",
    "gradient_flow", "head_history", "head_scores", "last_attention", "lens", "lens_summary",
    "parameter_table", "patching", "probe", "word_in_texts",
]  # fmt: skip

if TYPE_CHECKING:
    from wordloom.inspect.attention import (
        Alignment,
        AttentionMap,
        alignment_map,
        attention_map,
        last_attention,
    )
    from wordloom.inspect.causes.attribution import Attribution, attribution
    from wordloom.inspect.causes.patching import Patching, patching
    from wordloom.inspect.directions import Directions, Geometry, geometry
    from wordloom.inspect.gates import gate_values
    from wordloom.inspect.gradients import GradientFlow, draw_gradients, gradient_flow
    from wordloom.inspect.heads import HeadScores, head_scores
    from wordloom.inspect.history import HeadHistory, head_history
    from wordloom.inspect.layers.contributions import Contributions, contributions
    from wordloom.inspect.layers.lens import Lens, LensSummary, lens, lens_summary
    from wordloom.inspect.layers.probe import Probe, probe
    from wordloom.inspect.layers.words import WordInTexts, word_in_texts
    from wordloom.inspect.parameters import Component, KvCache, ParameterTable, parameter_table
    from wordloom.inspect.score_plots import draw_lengths
    from wordloom.inspect.vector_plots import draw_axes, draw_map
    from wordloom.inspect.view import Table, View

__getattr__, __dir__ = lazy_names(__name__, __file__)
