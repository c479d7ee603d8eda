"""Alignment of source and target tokens by attention weights (Bahdanau, Cho & Bengio 2015)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wordloom.errors import ConfigError, GenerationError
from wordloom.inspect.attention import recording
from wordloom.inspect.figures import SHADES, add_colour_bar, new_figure, save_figure
from wordloom.models import context_limit
from wordloom.nn import Attention
from wordloom.nn.evaluating import evaluating

__all__ = ["Alignment", "alignment_map"]

_CELL = 0.3  # inches
_FONT = 8.5  # points


@dataclass(frozen=True)
class Alignment:
    """Attention weights of a decoder over its source.

    ``weights`` [layers, H, T, S] are float32 on the CPU.  Row t is a distribution over ``source`` for token t
    of ``target``.  A recurrent model has one layer with one head.
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    weights: Tensor

    def matrix(self, layer: int | None = None, head: int | None = None) -> Tensor:
        """Return weights [T, S]: of one head, their mean over a layer's heads, or over all layers and heads.

        Raises ConfigError for a layer or head that does not exist, and for a head without a layer.
        """
        layers, heads = self.weights.shape[:2]
        if head is not None and layer is None:
            raise ConfigError(f"head {head} belongs to a layer: name the layer too, 0 to {layers - 1}")
        for name, index, n in (("layer", layer, layers), ("head", head, heads)):
            if index is not None and not 0 <= index < n:
                raise ConfigError(f"{name} {index} does not exist; allowed: 0 to {n - 1}")
        selected = self.weights if layer is None else self.weights[layer, None]  # [1 or layers, H, T, S]
        selected = selected if head is None else selected[:, head, None]  # [.., 1 or H, T, S]
        return selected.mean(dim=(0, 1))  # [T, S]

    def title(self, layer: int | None = None, head: int | None = None) -> str:
        """Describe in words what :meth:`matrix` shows."""
        layers, heads = self.weights.shape[:2]
        if layers * heads == 1:
            return "attention"
        if layer is None:
            return f"mean of {heads} heads in {layers} layers"
        return f"layer {layer}, mean of {heads} heads" if head is None else f"layer {layer}, head {head}"

    def shaded(self, layer: int | None = None, head: int | None = None) -> list[str]:
        """Return the matrix as text: a line per target token and two characters per source token.

        A darker character is a larger weight; the darkest is the largest weight of the matrix.
        """
        steps, grid = len(SHADES), self.matrix(layer, head)
        shades = (grid / grid.max() * steps).long().clamp(max=steps - 1)
        return ["".join(SHADES[step] * 2 for step in row) for row in shades.tolist()]

    def save(
        self, path: str | os.PathLike[str], *, layer: int | None = None, head: int | None = None
    ) -> None:
        """Draw the matrix into a .png, .svg or .pdf file; raises as :func:`wordloom.inspect.draw_map`."""
        self.matrix(layer, head)  # report a wrong layer or head before any work
        save_figure(lambda: self.figure(layer, head), [*self.source, *self.target], path)

    def figure(self, layer: int | None = None, head: int | None = None) -> Any:
        """Return the figure that :meth:`save` saves."""
        T, S = len(self.target), len(self.source)
        figure = new_figure((max(3.0, S * _CELL) + 2.0, max(1.5, T * _CELL) + 1.6))
        panel = figure.subplots()
        weights = self.matrix(layer, head).numpy()
        image = panel.imshow(weights, cmap="Blues", vmin=0.0, vmax=1.0, interpolation="nearest")
        panel.xaxis.tick_top()
        source, target = ([text.strip() for text in side] for side in (self.source, self.target))
        panel.set_xticks(range(S), source, rotation=60, ha="left", rotation_mode="anchor")
        panel.set_yticks(range(T), target)
        panel.tick_params(labelsize=_FONT, length=0, pad=3)
        panel.set_xlabel(f"source token ({self.title(layer, head)})", fontsize=_FONT)
        panel.set_ylabel("target token", fontsize=_FONT)
        add_colour_bar(panel, image, "attention weight", _FONT)
        return figure


def alignment_map(
    model: Any,
    source_ids: Sequence[int],
    target_ids: Sequence[int],
    *,
    start_id: int,
    source: Sequence[str] | None = None,
    target: Sequence[str] | None = None,
) -> Alignment:
    """Return the attention weights of ``model``, a SequenceToSequence, for a given translation.

    The decoder reads ``start_id`` and ``target_ids``.  ``source`` and ``target`` name the ids (default: their
    numbers).  The weights are the softmax over the source in float32, before dropout.  The model is not
    changed.

    Raises GenerationError for a side that is empty or longer than max_seq_len, ConfigError for a model
    without attention.
    """
    limit = context_limit(model.config)
    for name, ids in (("source", source_ids), ("target", target_ids)):
        if not ids:
            raise GenerationError(f"the {name} has no token to align; give a text that is not empty")
        if limit is not None and len(ids) > limit:
            raise GenerationError(f"the {name} has {len(ids)} tokens and the model takes {limit}; shorten it")
    device = next(model.parameters()).device
    source_row = torch.tensor([list(source_ids)], device=device)  # [1, S]
    prefix = torch.tensor([[start_id, *target_ids[:-1]]], device=device)  # [1, T]
    crosses = [getattr(block, "cross_attention", None) for block in model.decoder_blocks]
    layers = [layer for layer in crosses if isinstance(layer, Attention)]
    with evaluating(model), recording(layers) as recorded:
        if layers:
            model.hidden(prefix, model.encode(source_row))
            weights = torch.cat(recorded)  # each [1, H, T, S] -> [layers, H, T, S]
        else:
            weights = model.alignment(source_row, prefix)[None]  # [1, 1, T, S]
    names = [
        tuple(map(str, ids)) if texts is None else tuple(texts)
        for texts, ids in ((source, source_ids), (target, target_ids))
    ]
    return Alignment(names[0], names[1], weights.float().cpu())
