"""How far back a loss reaches: the gradient of the loss at one token with respect to what a model held of
the tokens before it (Bengio, Simard & Frasconi 1994; Pascanu, Mikolov & Bengio 2013, arXiv:1211.5063).

In Elman's network the way from token t to the loss at T leads through T - t steps, each of which multiplies
by diag(f') U.  With gamma the bound of |f'| (1 for tanh and ReLU, 1/4 for a sigmoid) and sigma U's largest
singular value, all of them make (sigma gamma)^(T - t) at most: with sigma below 1 / gamma the gradient must
vanish, and to explode it needs one above (Pascanu et al., section 2).  The spectral radius of U speaks of the
linear model alone, f' being gamma everywhere: above 1 / gamma the gradient explodes, at or below it does not.
It bounds no product in which f' changes the matrix: U = [[1.5, -1.5], [1.5, -1.5]] has radius 0, and a layer
of ReLUs whose second unit is off multiplies by 1.5 a step.  In a Transformer every token is one step of
attention away, in every layer.
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
from wordloom.inspect.figures import save_figure
from wordloom.models import context_limit
from wordloom.nn.evaluating import evaluating
from wordloom.nn.linear import Linear
from wordloom.nn.recurrent import Recurrent
from wordloom.nn.unmodified import modification

__all__ = ["GradientFlow", "Recurrence", "draw_gradients", "gradient_flow"]

_GAMMA = {"rnn_tanh": 1.0, "rnn_relu": 1.0}  # the cells that the theory speaks of
_DRAWN = 1e-12  # of the gradient at distance 0: what is smaller lies below the picture
_FAR = 0.01  # of the gradient at distance 0: beyond where it falls below, little is learnt


@dataclass(frozen=True, kw_only=True)
class Recurrence:
    """What U says of the gradient's way back through one layer, before any text is read.

    Attributes:
        largest_singular_value: of U.
        spectral_radius: the largest absolute value of U's eigenvalues.
        gamma: the bound of the activation's derivative.
    """

    layer: int
    largest_singular_value: float
    spectral_radius: float
    gamma: float

    def __str__(self) -> str:
        limit = 1 / self.gamma
        sigma, radius = (  # of what float32 cannot tell from the limit, the limit
            limit if math.isclose(found, limit, rel_tol=1e-6) else found
            for found in (self.largest_singular_value, self.spectral_radius)
        )
        if sigma < limit:
            says = "it must vanish"
        else:
            says = "it may vanish or explode" if sigma > limit else "it cannot explode"
        linear = "explodes" if radius > limit else "does not explode"
        return (
            f"the gradient on its way through layer {self.layer}, where 1/gamma is {limit:g}:\n"
            f"  largest singular value of U {sigma:.3f}: {says}\n"
            f"  spectral radius of U {radius:.3f}: in the layer's linear range it {linear}"
        )

    def bound(self, distance: int) -> float:
        """What the gradient can be at most, in parts of that at distance 0, where no layer stands above."""
        step = torch.tensor(self.largest_singular_value * self.gamma, dtype=torch.float64)
        return float(step**distance)  # infinite where a float of Python's would be an error


@dataclass(frozen=True, kw_only=True)
class GradientFlow:
    """Mean norms over the windows read; ``norms[name][d]`` is of what was held d tokens before the loss.

    Attributes:
        norms: by what it is the gradient of: ``layer 0 h`` and, in an LSTM, ``layer 0 c`` of a recurrent
            model, ``layer 0 input`` of another.
        windows: how many losses it is the mean of.
        recurrences: of Elman's cells, layer by layer.
        steps: the longest way from the first token to the loss: steps in time, or of attention.
    """

    norms: Mapping[str, tuple[float, ...]]
    windows: int
    recurrences: tuple[Recurrence, ...]
    steps: int

    def reach(self, name: str) -> int | None:
        """From which distance on the norm stays below a hundredth of that at distance 0; None: nowhere."""
        norms = self.norms[name]
        below = [value < _FAR * norms[0] for value in norms]
        if not below[-1]:
            return None
        return max((d + 1 for d, small in enumerate(below) if not small), default=0)

    def factor(self, name: str) -> float:
        """By what the norm is multiplied with every token further back, on the geometric mean: as far back as
        float32 tells it from 0."""
        norms = self.norms[name]
        furthest = max((d for d, value in enumerate(norms) if value), default=0)
        if not furthest or norms[0] == 0:
            return 1.0
        return float((norms[furthest] / norms[0]) ** (1 / furthest))


def gradient_flow(model: Any, ids: Sequence[int], *, distance: int = 64, windows: int = 32) -> GradientFlow:
    """Measure ``model`` on up to ``windows`` stretches of ``distance`` + 2 tokens spread over ``ids``.

    The loss is that of the last token of each stretch alone, given the others, in float32 and without
    dropout; a recurrent model takes its exact steps.  The model is left as it was.

    Raises:
        ConfigError: ``distance`` or ``windows`` below 1.
        GenerationError: fewer than ``distance`` + 2 tokens, or more than ``max_seq_len`` to read.
        NonFiniteError: the loss or a gradient is infinite or no number.
    """
    if distance < 1 or windows < 1:
        raise ConfigError(f"distance and windows are 1 or more, not {distance} and {windows}")
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
        held, loss = _held(model, rows)
        gradients = torch.autograd.grad(loss, [tensor for steps in held.values() for tensor in steps])
    found = iter(gradients)
    norms = {}
    for name, steps in held.items():
        parts = [next(found) for _ in steps]
        each = parts[0] if len(parts) == 1 else torch.stack(parts, dim=1)  # [B, T, D]
        norms[name] = tuple(reversed(each.float().norm(dim=-1).mean(dim=0).tolist()))
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
                    f"the gradient of {name} is {value:g} at distance {distance}: more than float32 holds; "
                    "give a smaller distance"
                )


def _held(model: Any, rows: Tensor) -> tuple[dict[str, list[Tensor]], Tensor]:
    """What the model held at each token, as tensors of the loss's graph, and the summed loss.

    Of a recurrent layer a [B, D] for every step, else one [B, T, D].
    """
    tokens, target = rows[:, :-1], rows[:, -1]
    held: dict[str, list[Tensor]] = {}
    with ExitStack() as stack, torch.enable_grad():
        for i, block in enumerate(model.blocks):
            if isinstance(block, Recurrent):
                block.recorded = []
                stack.callback(setattr, block, "recorded", None)
            else:
                inputs = held[f"layer {i} input"] = []
                stack.callback(block.register_forward_pre_hook(partial(_keep, inputs)).remove)
        logits = model.lm_head(model.hidden(tokens)[:, -1])  # [B, V]
        loss = F.cross_entropy(logits.float(), target, reduction="sum")
        for i, block in enumerate(model.blocks):
            if isinstance(block, Recurrent):
                assert block.recorded is not None
                for part, name in enumerate(("h", "c")[: len(block.state_dims)]):
                    held[f"layer {i} {name}"] = [state[part] for state in block.recorded]
    return held, loss


def _keep(inputs: list[Tensor], block: Any, args: tuple[Any, ...]) -> None:
    """A hook: what ``block`` is given goes to ``inputs``."""
    inputs.append(args[0])


@torch.no_grad()
def _recurrence(layer: int, block: Recurrent) -> Recurrence | None:
    if block.cell not in _GAMMA or modification(block.hidden_proj, Linear):
        return None  # nothing is promised of a layer that computes with more than its matrix
    u = block.hidden_proj.weight.float().cpu()
    return Recurrence(
        layer=layer,
        largest_singular_value=float(torch.linalg.matrix_norm(u, 2)),
        spectral_radius=float(torch.linalg.eigvals(u).abs().max()),
        gamma=_GAMMA[block.cell],
    )


def draw_gradients(path: str | Path, flows: Mapping[str, GradientFlow]) -> None:
    """Plot the gradient norm of the last layer of each model by distance, relative to the norm at distance 0.

    An LSTM's cell is dashed.  A dotted line is the bound of :class:`Recurrence`, for models that have one.

    Raises as :func:`wordloom.inspect.draw_map`.
    """
    save_figure(lambda: gradients_figure(flows), list(flows), path)


def gradients_figure(flows: Mapping[str, GradientFlow]) -> Any:
    """The figure that :func:`draw_gradients` saves."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    axes = figure.subplots()
    axes.set_yscale("log")
    colours = {model: f"C{i % 10}" for i, model in enumerate(flows)}
    for model, flow in flows.items():
        last = max(int(name.split()[1]) for name in flow.norms)
        for name, norms in flow.norms.items():
            if name.startswith(f"layer {last} ") and norms[0]:
                shares = [value / norms[0] for value in norms]
                style = "--" if name.endswith(" c") else "-"
                axes.plot(range(len(norms)), shares, style, color=colours[model], label=f"{model}, {name}")
    low, high = axes.get_ylim()  # the bounds do not decide what is seen
    axes.set_ylim(max(low, _DRAWN), high)
    for model, flow in flows.items():
        distances = range(len(next(iter(flow.norms.values()))))
        for recurrence in flow.recurrences[-1:]:
            bounds = [recurrence.bound(distance) for distance in distances]
            label = rf"{model}, at most $(\sigma\gamma)^d$, $\sigma\gamma$ = {recurrence.bound(1):.3g}"
            axes.plot(
                distances, bounds, ":", color=colours[model], linewidth=3, alpha=0.5, label=label, zorder=1
            )
    axes.axhline(_FAR, color="0.7", linewidth=0.8, zorder=0)
    axes.set_title("Gradient of the loss with respect to earlier hidden states, last layer", fontsize=10)
    axes.set_xlabel("distance d in tokens")
    axes.set_ylabel("relative gradient norm")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure
