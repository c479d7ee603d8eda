"""Gradient norms by distance: how strongly a loss depends on the hidden states of earlier tokens.

Sources: Bengio, Simard & Frasconi 1994; Pascanu, Mikolov & Bengio 2013, arXiv:1211.5063.

In Elman's network, the gradient passes through T - t steps from the loss at T back to token t.  Each step
multiplies it by diag(f') U.  Let gamma be the bound of |f'| (1 for tanh and ReLU, 1/4 for a sigmoid), and
sigma the largest singular value of U.  The product of all steps is at most (sigma gamma)^(T - t).  The
gradient must vanish if sigma is below 1 / gamma, and it can explode only if sigma is above (Pascanu et al.,
section 2).

The spectral radius of U describes the linear model, in which f' is gamma everywhere: the gradient explodes
above 1 / gamma and not otherwise.  It bounds no product in which f' varies: U = [[1.5, -1.5], [1.5, -1.5]]
has radius 0, but a ReLU layer whose second unit is off multiplies by 1.5 in each step.

In a Transformer, every token is one step of attention away in every layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from wordloom.errors import ConfigError, GenerationError, NonFiniteError
from wordloom.inspect.figures import COLOURS, hide_frame, new_figure, plain, save_figure
from wordloom.models import context_limit
from wordloom.nn.evaluating import evaluating
from wordloom.nn.linear import Linear
from wordloom.nn.recurrent import Recurrent
from wordloom.nn.unmodified import modification

_GAMMA = {"rnn_tanh": 1.0, "rnn_relu": 1.0}  # the cells that the theory covers
_DRAWN = 1e-12  # relative to distance 0; smaller norms are below the figure
_FAR = 0.01  # relative to distance 0; a model learns little from distances below it


@dataclass(frozen=True, kw_only=True)
class Recurrence:
    """The bounds that U sets on the gradient through one layer, whatever the text."""

    layer: int
    largest_singular_value: float  # of U
    spectral_radius: float  # the largest absolute eigenvalue of U
    gamma: float  # the bound of the activation's derivative

    def __str__(self) -> str:
        limit = 1 / self.gamma
        sigma, radius = (  # a value that float32 cannot distinguish from the limit is the limit
            limit if math.isclose(value, limit, rel_tol=1e-6) else value
            for value in (self.largest_singular_value, self.spectral_radius)
        )
        if sigma < limit:
            outcome = "it must vanish"
        else:
            outcome = "it may vanish or explode" if sigma > limit else "it cannot explode"
        linear = "explodes" if radius > limit else "does not explode"
        return (
            f"the gradient through layer {self.layer}, where 1/gamma is {limit:g}:\n"
            f"  largest singular value of U {sigma:.3f}: {outcome}\n"
            f"  spectral radius of U {radius:.3f}: in the layer's linear range it {linear}"
        )

    def bound(self, distance: int) -> float:
        """Return the largest possible gradient norm relative to distance 0, for the last layer."""
        step = torch.tensor(self.largest_singular_value * self.gamma, dtype=torch.float64)
        return float(step**distance)  # inf where Python's ** raises OverflowError


@dataclass(frozen=True, kw_only=True)
class GradientFlow:
    """Mean gradient norms over some windows of text.

    ``norms[name][d]`` is the norm for the state d tokens before the loss.  Names are ``layer 0 h`` for a
    recurrent layer, also ``layer 0 c`` for an LSTM, and ``layer 0 input`` for other blocks.
    """

    norms: Mapping[str, tuple[float, ...]]
    windows: int
    recurrences: tuple[Recurrence, ...]  # of the Elman layers
    steps: int  # of time and layers, on the longest path from the first token to the loss

    def reach(self, name: str) -> int | None:
        """Return the distance from which on the norm stays below 1/100 of distance 0, or None."""
        norms = self.norms[name]
        below = [value < _FAR * norms[0] for value in norms]
        if not below[-1]:
            return None
        return max((d + 1 for d, small in enumerate(below) if not small), default=0)

    def factor(self, name: str) -> float:
        """Return the mean factor (geometric) of the norm per token of distance, as far as it is not 0."""
        norms = self.norms[name]
        furthest = max((d for d, value in enumerate(norms) if value), default=0)
        if not furthest or norms[0] == 0:
            return 1.0
        return float((norms[furthest] / norms[0]) ** (1 / furthest))


def gradient_flow(model: Any, ids: Sequence[int], *, distance: int = 64, windows: int = 32) -> GradientFlow:
    """Measure the gradients of ``model`` on up to ``windows`` windows of ``distance`` + 2 tokens of ``ids``.

    The loss of a window is that of its last token, in float32 and without dropout.  A recurrent model takes
    its exact steps.  The model is not changed.

    Raises:
        ConfigError: ``distance`` or ``windows`` is below 1.
        GenerationError: ``ids`` has fewer than ``distance`` + 2 tokens, or a window exceeds ``max_seq_len``.
        NonFiniteError: the loss or a gradient is infinite or NaN.
    """
    if distance < 1 or windows < 1:
        raise ConfigError(f"distance and windows must be 1 or more, not {distance} and {windows}")
    limit = context_limit(model.config)
    if limit is not None and distance + 1 > limit:
        raise GenerationError(
            f"a distance of {distance} reads {distance + 1} tokens and the model takes {limit}"
        )
    if len(ids) < distance + 2:
        raise GenerationError(
            f"the text has {len(ids)} tokens, and a distance of {distance} needs {distance + 2}; give a "
            "longer text, or a smaller distance"
        )
    last = len(ids) - (distance + 2)
    starts = sorted({round(i * last / max(1, windows - 1)) for i in range(windows)})
    device = next(model.parameters()).device
    rows = torch.tensor([list(ids[at : at + distance + 2]) for at in starts], device=device)
    with evaluating(model):
        states, loss = _states(model, rows)
        gradients = iter(torch.autograd.grad(loss, [tensor for steps in states.values() for tensor in steps]))
    norms = {}
    for name, steps in states.items():
        parts = [next(gradients) for _ in steps]
        gradient = parts[0] if len(parts) == 1 else torch.stack(parts, dim=1)  # [B, T, D]
        norms[name] = tuple(reversed(gradient.float().norm(dim=-1).mean(dim=0).tolist()))
    _check_finite(float(loss.detach()), norms)
    layers = [block for block in model.blocks if isinstance(block, Recurrent)]
    return GradientFlow(
        norms=norms,
        windows=len(starts),
        recurrences=tuple(r for i, layer in enumerate(layers) if (r := _recurrence(i, layer)) is not None),
        steps=(distance if layers else 0) + len(model.blocks),
    )


def _check_finite(loss: float, norms: Mapping[str, Sequence[float]]) -> None:
    if not math.isfinite(loss):
        raise NonFiniteError(f"the model's loss on this text is {loss:g}; are its weights damaged?")
    for name, values in norms.items():
        for distance, value in enumerate(values):
            if not math.isfinite(value):
                raise NonFiniteError(
                    f"the gradient of {name} is {value:g} at distance {distance}, beyond float32; "
                    "give a smaller distance"
                )


def _states(model: Any, rows: Tensor) -> tuple[dict[str, list[Tensor]], Tensor]:
    """Return the states of every layer as tensors of the loss's graph, and the summed loss.

    A recurrent layer has a state [B, D] for every step, another block one input [B, T, D].
    """
    tokens, target = rows[:, :-1], rows[:, -1]  # [B, T], [B]
    states: dict[str, list[Tensor]] = {}
    with ExitStack() as stack, torch.enable_grad():
        for i, block in enumerate(model.blocks):
            if isinstance(block, Recurrent):
                block.recorded = []
                stack.callback(setattr, block, "recorded", None)
            else:
                inputs = states[f"layer {i} input"] = []
                record = partial(lambda inputs, block, args: inputs.append(args[0]), inputs)
                stack.callback(block.register_forward_pre_hook(record).remove)
        logits = model.lm_head(model.hidden(tokens)[:, -1])  # [B, V]
        loss = F.cross_entropy(logits.float(), target, reduction="sum")
        for i, block in enumerate(model.blocks):
            if isinstance(block, Recurrent):
                assert block.recorded is not None
                for part, name in enumerate(("h", "c")[: len(block.state_dims)]):
                    states[f"layer {i} {name}"] = [state[part] for state in block.recorded]
    return states, loss


@torch.no_grad()
def _recurrence(layer: int, block: Recurrent) -> Recurrence | None:
    if block.cell not in _GAMMA or modification(block.hidden_proj, Linear):
        return None  # the theory does not cover other cells and modified layers
    u = block.hidden_proj.weight.float().cpu()
    return Recurrence(
        layer=layer,
        largest_singular_value=float(torch.linalg.matrix_norm(u, 2)),
        spectral_radius=float(torch.linalg.eigvals(u).abs().max()),
        gamma=_GAMMA[block.cell],
    )


def draw_gradients(path: str | Path, flows: Mapping[str, GradientFlow]) -> None:
    """Plot the gradient norm of the last layer of each model by distance, relative to the norm at distance 0.

    An LSTM's cell state is dashed.  A dotted line is the bound of :class:`Recurrence`, if the model has one.

    Raises as :func:`wordloom.inspect.draw_map`.
    """
    save_figure(lambda: gradients_figure(flows), list(flows), path)


def gradients_figure(flows: Mapping[str, GradientFlow]) -> Any:
    """Return the figure that :func:`draw_gradients` saves."""
    figure = new_figure((7.2, 4.6))
    axes = figure.subplots()
    axes.set_yscale("log")
    colours = {model: COLOURS[i % len(COLOURS)] for i, model in enumerate(flows)}
    for model, flow in flows.items():
        last = max(int(name.split()[1]) for name in flow.norms)
        for name, norms in flow.norms.items():
            if name.startswith(f"layer {last} ") and norms[0]:
                shares = [value / norms[0] for value in norms]
                style = "--" if name.endswith(" c") else "-"
                axes.plot(
                    range(len(norms)), shares, style, color=colours[model], label=f"{plain(model)}, {name}"
                )
    low, high = axes.get_ylim()  # set before the bounds are drawn, which may be very large
    axes.set_ylim(max(low, _DRAWN), high)
    for model, flow in flows.items():
        distances = range(len(next(iter(flow.norms.values()))))
        for recurrence in flow.recurrences[-1:]:
            bounds = [recurrence.bound(distance) for distance in distances]
            label = rf"{plain(model)}, at most $(\sigma\gamma)^d$, $\sigma\gamma$ = {recurrence.bound(1):.3g}"
            axes.plot(
                distances, bounds, ":", color=colours[model], linewidth=3, alpha=0.5, label=label, zorder=1
            )
    axes.axhline(_FAR, color="0.7", linewidth=0.8, zorder=0)
    axes.set_title("Gradient of the loss with respect to earlier hidden states, last layer", fontsize=10)
    axes.set_xlabel("distance d in tokens")
    axes.set_ylabel("relative gradient norm")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8)
    hide_frame(axes)
    return figure
