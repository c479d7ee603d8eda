"""Attention weights of every head, recorded from the exact twin of the attention kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wordloom.errors import ConfigError, GenerationError
from wordloom.inspect.figures import SHADES, new_figure, save_figure
from wordloom.nn import Attention
from wordloom.nn.evaluating import evaluating

__all__ = ["AttentionMap", "attention_map"]

_READABLE = 24  # the most tokens whose names fit beside a panel


@dataclass(frozen=True)
class AttentionMap:
    """Attention weights of a causal model.

    ``weights`` [layers, H, T, T] are float32 on the CPU; each row is a distribution over keys.
    """

    tokens: tuple[str, ...]
    weights: Tensor

    def head(self, layer: int, head: int | None = None) -> Tensor:
        """Return weights [T, T] of one head, or their mean over the layer's heads.

        Raises ConfigError for a layer or head that does not exist.
        """
        layers, heads = self.weights.shape[:2]
        if not 0 <= layer < layers:
            raise ConfigError(f"layer {layer} does not exist; allowed: 0 to {layers - 1}")
        if head is None:
            return self.weights[layer].mean(dim=0)
        if not 0 <= head < heads:
            raise ConfigError(f"head {head} does not exist; allowed: 0 to {heads - 1}")
        return self.weights[layer, head]

    def shaded(self, layer: int, head: int | None = None) -> list[str]:
        """Return the head as text: a line per query, two characters per key, darker for a larger weight."""
        steps = len(SHADES)
        grid = (self.head(layer, head) * steps).long().clamp(max=steps - 1)
        return ["".join(SHADES[step] * 2 for step in row[: t + 1]) for t, row in enumerate(grid.tolist())]

    def save(self, path: str | Path, *, layer: int | None = None) -> None:
        """Draw all heads, or those of ``layer``, into a .png, .svg or .pdf file, with a row for each layer.

        Raises as :func:`wordloom.inspect.draw_map`.
        """
        save_figure(lambda: self.figure(layer), self.tokens, path)

    def figure(self, layer: int | None = None) -> Any:
        """Return the figure that :meth:`save` saves."""
        layers = range(len(self.weights)) if layer is None else [layer]
        heads, T = self.weights.shape[1], len(self.tokens)
        figure = new_figure((2.2 * heads, 2.4 * len(layers)))
        panels = figure.subplots(len(layers), heads, squeeze=False)
        ticks = {"ticks": range(T), "labels": self.tokens} if T <= _READABLE else {"ticks": []}
        for row, at in zip(panels, layers, strict=True):
            for head, panel in enumerate(row):
                weights = self.head(at, head).numpy()
                panel.imshow(weights, vmin=0.0, vmax=1.0, cmap="Blues", interpolation="nearest")
                panel.set_title(f"layer {at}, head {head}", fontsize=7)
                panel.set_xticks(**ticks, rotation=90)
                panel.set_yticks(**ticks)
                panel.tick_params(labelsize=5, length=0)
        figure.supxlabel("token attended to", fontsize=7)
        figure.supylabel("token that attends", fontsize=7)
        return figure


@contextmanager
def recording(layers: Sequence[Attention]) -> Iterator[list[Tensor]]:
    """Run ``layers`` by the exact twin of their kernels, and record the weights [B, H, T, S] of each."""
    before = [layer.backend for layer in layers]
    recorded: list[Tensor] = []
    try:
        for layer in layers:
            layer.backend, layer.recorded = "exact", recorded
        yield recorded
    finally:
        for layer, backend in zip(layers, before, strict=True):
            layer.backend, layer.recorded = backend, None


def attention_map(model: Any, ids: Sequence[int], tokens: Sequence[str] | None = None) -> AttentionMap:
    """Return the attention weights of every layer and head of a causal ``model`` that reads ``ids``.

    ``tokens`` names the ids (default: their numbers).  The weights are the softmax over keys in float32,
    before dropout.  The model is not changed.

    Raises GenerationError for no ids, for more than max_seq_len ids, and for a model without attention.
    """
    if not ids:
        raise GenerationError("attention needs at least one token; give a prompt that is not empty")
    layers = [module for module in model.modules() if isinstance(module, Attention)]
    if not layers:
        raise GenerationError(
            "this model has no attention to show; give a checkpoint of a gpt, gpt2 or llama model"
        )
    if len(ids) > model.config.max_seq_len:
        raise GenerationError(
            f"the prompt has {len(ids)} tokens and the model takes {model.config.max_seq_len}; shorten it"
        )
    with evaluating(model), recording(layers) as recorded:
        model.hidden(torch.tensor([list(ids)], device=next(model.parameters()).device))
    names = tuple(tokens) if tokens is not None else tuple(str(i) for i in ids)
    return AttentionMap(names, torch.cat(recorded).cpu())  # each [1, H, T, T] -> [layers, H, T, T]
