"""Attention weights of causal models, and alignments of source and target (Bahdanau, Cho & Bengio 2015).

The weights are recorded from the exact twin of the attention kernel: the softmax over the keys in float32,
before dropout.  For an approximation of it, they are the matrix whose product with the values is the output.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wordloom.errors import ConfigError, GenerationError
from wordloom.inspect.figures import SHADES, add_colour_bar, check_size, new_figure, save_figure
from wordloom.inspect.token_names import visible
from wordloom.inspect.view import View
from wordloom.inspect.view.pages import data_as_html, resource
from wordloom.models import context_limit
from wordloom.nn import Attention
from wordloom.nn.evaluating import evaluating

_READABLE = 64  # the most tokens whose names are written beside a panel
_ROW = 0.075  # inches of a name
_CELL = 0.3  # inches of an alignment
_FONT = 8.5  # points
_ROUNDING = 1e-4  # by which a weight may exceed 1


def _check_index(name: str, index: int | None, n: int) -> None:
    if index is not None and not 0 <= index < n:
        raise ConfigError(f"{name} {index} does not exist; allowed: 0 to {n - 1}")


def _shaded(shares: Tensor) -> list[str]:
    """Return shares as text, drawn from 0 to 1: a line for each row, two characters for each share."""
    steps = len(SHADES)
    grid = (shares * steps).long().clamp(0, steps - 1)
    return ["".join(SHADES[step] * 2 for step in row) for row in grid.tolist()]


@dataclass(frozen=True)
class AttentionMap(View):
    """Attention weights of a causal model or an encoder.

    ``weights`` [layers, H, T, T] are float32 on the CPU; each row is a distribution over keys.  Linformer and
    Nyström attention only approximate distributions: their weights can be negative or above 1, and need not
    sum to 1.  ``shown`` is the layer and head that the page opens with; a head of None is the mean of the
    layer's heads.
    """

    tokens: tuple[str, ...]
    weights: Tensor
    shown: tuple[int, int | None] = (-1, None)
    title: str = "Attention"

    def as_dict(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "weights": self.weights.tolist()}

    def head(self, layer: int, head: int | None = None) -> Tensor:
        """Return weights [T, T] of one head, or their mean over the layer's heads.

        Raises ConfigError for a layer or head that does not exist.
        """
        layers, heads = self.weights.shape[:2]
        _check_index("layer", layer, layers)
        _check_index("head", head, heads)
        return self.weights[layer].mean(dim=0) if head is None else self.weights[layer, head]

    def notes(self) -> Sequence[str]:
        if not ((self.weights < 0) | (self.weights > 1 + _ROUNDING)).any():
            return ()
        return (
            "this attention is an approximation, and some weights are negative or above 1; they are drawn as "
            "0 and 1",
        )

    def shaded(self, layer: int, head: int | None = None) -> list[str]:
        """Return the head as text: a line per query, two characters per key, darker for a larger weight."""
        weights = self.head(layer, head)
        looks_ahead = bool(weights.triu(1).any())  # an encoder's queries do
        return [line if looks_ahead else line[: 2 * t + 2] for t, line in enumerate(_shaded(weights))]

    def save(self, path: str | Path, *, layer: int | None = None) -> None:
        """Draw all heads, or those of ``layer``, into a .png, .svg or .pdf file, with a row for each layer.

        Raises as :func:`wordloom.inspect.draw_map`.
        """
        save_figure(lambda: self.figure(layer), self.tokens, path)

    def figure(self, layer: int | None = None) -> Any:
        """Return the figure that :meth:`save` saves.

        Raises WordloomError for a model with too many layers and heads for one picture.
        """
        layers = range(len(self.weights)) if layer is None else [layer]
        heads, T = self.weights.shape[1], len(self.tokens)
        side = max(2.2, _ROW * T if T <= _READABLE else 0.0)
        size = (side * heads, (side + 0.2) * len(layers))
        one_layer = "name a --layer, or " if len(layers) > 1 else ""
        check_size(size, f"{one_layer}use --html, which has all layers and heads")
        figure = new_figure(size)
        panels = figure.subplots(len(layers), heads, squeeze=False)
        ticks = (
            {"ticks": range(T), "labels": list(map(visible, self.tokens)), "parse_math": False}
            if T <= _READABLE
            else {"ticks": []}
        )
        upright = {"rotation": 90} if T <= _READABLE else {}  # without labels there is nothing to turn
        for row, at in zip(panels, layers, strict=True):
            for head, panel in enumerate(row):
                weights = self.head(at, head).numpy()
                panel.imshow(weights, vmin=0.0, vmax=1.0, cmap="Blues", interpolation="nearest")
                panel.set_title(f"layer {at}, head {head}", fontsize=7)
                panel.set_xticks(**ticks, **upright)
                panel.set_yticks(**ticks)
                panel.tick_params(labelsize=5, length=0)
        unnamed = "" if T <= _READABLE else f" ({T} tokens are too many to name; --html names them)"
        figure.supxlabel("\n".join([f"token attended to{unnamed}", *self.notes()]), fontsize=7)
        figure.supylabel("token that attends", fontsize=7)
        return figure

    def body(self) -> str:
        layers, heads = self.weights.shape[:2]
        shares = self.weights.clamp(0, 1)
        roots = (255 * shares.sqrt()).round().to(torch.uint8)  # small weights keep two digits
        packed = gzip.compress(roots.numpy().tobytes(), mtime=0)
        data = {
            "tokens": self.tokens,
            "layers": layers,
            "heads": heads,
            "layer": range(layers)[self.shown[0]],
            "head": -1 if self.shown[1] is None else self.shown[1],
            "weights": base64.b64encode(packed).decode(),
        }
        return data_as_html("attention", data) + '<div id="view"></div>'

    def script(self) -> str:
        return resource("tokens.js") + resource("attention.js")


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
        _check_index("layer", layer, layers)
        _check_index("head", head, heads)
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
        """Return the matrix as text: a line for each target token, darkest at the largest weight."""
        weights = self.matrix(layer, head)
        return _shaded(weights / weights.max())

    def save(self, path: str | Path, *, layer: int | None = None, head: int | None = None) -> None:
        """Draw the matrix into a .png, .svg or .pdf file; raises as :func:`wordloom.inspect.draw_map`."""
        self.matrix(layer, head)  # report a wrong layer or head before any work
        save_figure(lambda: self.figure(layer, head), [*self.source, *self.target], path)

    def figure(self, layer: int | None = None, head: int | None = None) -> Any:
        """Return the figure that :meth:`save` saves; raises WordloomError for a text that is too long."""
        T, S = len(self.target), len(self.source)
        size = (max(3.0, S * _CELL) + 2.0, max(1.5, T * _CELL) + 1.6)
        check_size(size, "it has a cell for each pair of tokens: draw a shorter text")
        figure = new_figure(size)
        panel = figure.subplots()
        weights = self.matrix(layer, head).numpy()
        image = panel.imshow(weights, cmap="Blues", vmin=0.0, vmax=1.0, interpolation="nearest")
        panel.xaxis.tick_top()
        source, target = ([text.strip() for text in side] for side in (self.source, self.target))
        panel.set_xticks(range(S), source, rotation=60, ha="left", rotation_mode="anchor", parse_math=False)
        panel.set_yticks(range(T), target, parse_math=False)
        panel.tick_params(labelsize=_FONT, length=0, pad=3)
        panel.set_xlabel(f"source token ({self.title(layer, head)})", fontsize=_FONT)
        panel.set_ylabel("target token", fontsize=_FONT)
        add_colour_bar(panel, image, "attention weight", _FONT)
        return figure


class _LastRows(list[Tensor]):
    """Records the weights of the last query alone: [B, H, S] of each layer."""

    def append(self, weights: Tensor) -> None:
        super().append(weights[:, :, -1].clone())


@contextmanager
def recording(layers: Sequence[Attention], *, last: bool = False) -> Iterator[list[Tensor]]:
    """Run ``layers`` by the exact twin of their kernels, and record the weights [B, H, T, S] of each.

    With ``last``, only the weights [B, H, S] of the last query are recorded.
    """
    before = [layer.backend for layer in layers]
    recorded: list[Tensor] = _LastRows() if last else []
    try:
        for layer in layers:
            layer.backend, layer.recorded = "exact", recorded
        yield recorded
    finally:
        for layer, backend in zip(layers, before, strict=True):
            layer.backend, layer.recorded = backend, None


def attention_map(model: Any, ids: Sequence[int], tokens: Sequence[str] | None = None) -> AttentionMap:
    """Return the attention weights of each layer and head of ``model`` (causal or encoder) for ``ids``.

    ``tokens`` names the ids (default: their numbers).

    Raises GenerationError for no ids, for more than max_seq_len ids, and for a model without attention.
    """
    weights = _recorded(model, ids, last=False)  # [layers, H, T, T]
    names = tuple(tokens) if tokens is not None else tuple(str(i) for i in ids)
    return AttentionMap(names, weights)


def last_attention(model: Any, ids: Sequence[int]) -> Tensor:
    """Return the attention weights [layers, H, T] of the last of ``ids``; raises as :func:`attention_map`.

    The memory grows with the weights of one layer, not of all layers.
    """
    return _recorded(model, ids, last=True)


def _recorded(model: Any, ids: Sequence[int], *, last: bool) -> Tensor:
    if not ids:
        raise GenerationError("attention needs at least one token; give a prompt that is not empty")
    layers = [module for module in model.modules() if isinstance(module, Attention)]
    if not layers:
        raise GenerationError(
            "this model has no attention to show; give a checkpoint of a gpt, gpt2, llama or bert model"
        )
    if len(ids) > model.config.max_seq_len:
        raise GenerationError(
            f"the prompt has {len(ids)} tokens and the model takes {model.config.max_seq_len}; shorten it"
        )
    with evaluating(model), recording(layers, last=last) as recorded:
        model.hidden(torch.tensor([list(ids)], device=next(model.parameters()).device))
    return torch.cat(recorded).cpu()  # each [1, H, T, T] -> [layers, H, T, T]; with last [layers, H, T]


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
    numbers).

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
