"""Which part of its source a model looks at for each token that it writes (Bahdanau, Cho & Bengio 2015)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wordloom.errors import ConfigError, GenerationError
from wordloom.inspect.attention import recording
from wordloom.inspect.figures import save_figure
from wordloom.models import context_limit
from wordloom.nn import Attention
from wordloom.nn.evaluating import evaluating

__all__ = ["Alignment", "alignment_map"]

_SHADES = " ░▒▓█"
_CELL = 0.3  # inches
_FONT = 8.5  # points


@dataclass(frozen=True)
class Alignment:
    """``weights`` [layers, H, T, S], float32 on the CPU: row t is what token t of ``target`` was written
    from, a distribution over ``source``.  A recurrent model has one layer of one head."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    weights: Tensor

    def matrix(self, layer: int | None = None, head: int | None = None) -> Tensor:
        """[T, S] weights of one head of a layer, their mean over its heads, or over all layers and heads.

        Raises ConfigError for a layer or head that does not exist, and for a head of no layer.
        """
        layers, heads = self.weights.shape[:2]
        if head is not None and layer is None:
            raise ConfigError(f"head {head} is of a layer: name that too, 0 to {layers - 1}")
        for what, given, n in (("layer", layer, layers), ("head", head, heads)):
            if given is not None and not 0 <= given < n:
                raise ConfigError(f"{what} {given} does not exist; allowed: 0 to {n - 1}")
        chosen = self.weights if layer is None else self.weights[layer, None]
        return (chosen if head is None else chosen[:, head, None]).mean(dim=(0, 1))

    def title(self, layer: int | None = None, head: int | None = None) -> str:
        """What :meth:`matrix` is of, in words."""
        layers, heads = self.weights.shape[:2]
        if layers * heads == 1:
            return "attention"
        if layer is None:
            return f"mean of {heads} heads in {layers} layers"
        return f"layer {layer}, mean of {heads} heads" if head is None else f"layer {layer}, head {head}"

    def shaded(self, layer: int | None = None, head: int | None = None) -> list[str]:
        """The matrix as text: a line per target token, two characters per source token, darker for more; the
        darkest is the largest weight of all."""
        steps, grid = len(_SHADES), self.matrix(layer, head)
        shades = (grid / grid.max() * steps).long().clamp(max=steps - 1)
        return ["".join(_SHADES[step] * 2 for step in row) for row in shades.tolist()]

    def save(
        self, path: str | os.PathLike[str], *, layer: int | None = None, head: int | None = None
    ) -> None:
        """Draw the matrix into a .png, .svg or .pdf file; raises as :func:`wordloom.inspect.draw_map`."""
        self.matrix(layer, head)  # a mistake before any work
        save_figure(lambda: self.figure(layer, head), [*self.source, *self.target], path)

    def figure(self, layer: int | None = None, head: int | None = None) -> Any:
        """The figure that :meth:`save` saves."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        T, S = len(self.target), len(self.source)
        figure = Figure(
            figsize=(max(3.0, S * _CELL) + 2.0, max(1.5, T * _CELL) + 1.6),
            facecolor="white",
            layout="constrained",
        )
        FigureCanvasAgg(figure)
        panel = figure.subplots()
        image = panel.imshow(
            self.matrix(layer, head).numpy(),
            cmap="Blues",
            vmin=0.0,
            vmax=1.0,
            interpolation="nearest",
            aspect="equal",
        )
        panel.xaxis.tick_top()
        panel.set_xticks(
            range(S), [text.strip() for text in self.source], rotation=60, ha="left", rotation_mode="anchor"
        )
        panel.set_yticks(range(T), [text.strip() for text in self.target])
        panel.tick_params(labelsize=_FONT, length=0, pad=3)
        panel.set_xlabel(self.title(layer, head), fontsize=_FONT)
        for spine in panel.spines.values():
            spine.set_color("#8c8c8c")
        bar = figure.colorbar(image, ax=panel, shrink=0.6, pad=0.02)
        bar.set_label("attention weight", fontsize=_FONT)
        bar.ax.tick_params(labelsize=_FONT - 1)
        bar.outline.set_visible(False)
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
    """What ``model``, a SequenceToSequence, attends to as it writes ``target_ids`` after ``start_id``.

    ``source`` and ``target`` name the ids (default: their numbers).  Weights are the softmax over the source
    in float32, before dropout.  The model is left as it was.

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
    read = torch.tensor([list(source_ids)], device=device)  # [1, S]
    prefix = torch.tensor([[start_id, *target_ids[:-1]]], device=device)  # [1, T]
    crosses = [getattr(block, "cross_attention", None) for block in model.decoder_blocks]
    layers = [layer for layer in crosses if isinstance(layer, Attention)]
    with evaluating(model), recording(layers) as recorded:
        if layers:
            model.hidden(prefix, model.encode(read))
            weights = torch.cat(recorded)  # each [1, H, T, S] -> [layers, H, T, S]
        else:
            weights = model.alignment(read, prefix)[None]  # [1, 1, T, S]
    names = [
        tuple(given) if given is not None else tuple(map(str, ids))
        for given, ids in ((source, source_ids), (target, target_ids))
    ]
    return Alignment(names[0], names[1], weights.float().cpu())
