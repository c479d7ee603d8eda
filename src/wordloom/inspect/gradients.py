"""How far back a loss reaches: the gradient of the loss at one token with respect to what a model held of
the tokens before it (Bengio, Simard & Frasconi 1994; Pascanu, Mikolov & Bengio 2013, arXiv:1211.5063).

In a recurrent model the way from token t to the loss at T leads through T - t steps, each of which multiplies
by diag(f') U: where U's largest singular value is below 1 / gamma, gamma being the bound of |f'|, the
gradient must vanish, and to explode it needs a spectral radius above 1 / gamma (their section 2; gamma is 1
for tanh and ReLU, 1/4 for a sigmoid).  In a Transformer every token is one step of attention away, in every
layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from wordloom.errors import ConfigError, GenerationError, WordloomError
from wordloom.models import context_limit
from wordloom.nn.recurrent import Recurrent

__all__ = ["GradientFlow", "Recurrence", "draw_gradients", "gradient_flow"]

_GAMMA = {"rnn_tanh": 1.0, "rnn_relu": 1.0}  # the cells that the theory speaks of
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
        sigma, radius, bound = self.largest_singular_value, self.spectral_radius, 1 / self.gamma
        if sigma < bound:
            says = "it must vanish"
        elif radius > bound:
            says = "it may explode, and need not"
        else:
            says = "it cannot explode, and need not vanish"
        return (
            f"layer {self.layer}: largest singular value of U {sigma:.3f}, spectral radius {radius:.3f}, "
            f"1/gamma {bound:g}: {says}"
        )


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
        """By what the norm is multiplied with every token further back, on the geometric mean."""
        norms = self.norms[name]
        if len(norms) < 2 or norms[0] == 0:
            return 1.0
        return float((norms[-1] / norms[0]) ** (1 / (len(norms) - 1)))


def gradient_flow(model: Any, ids: Sequence[int], *, distance: int = 64, windows: int = 32) -> GradientFlow:
    """Measure ``model`` on up to ``windows`` stretches of ``distance`` + 2 tokens spread over ``ids``.

    The loss is that of the last token of each stretch alone, given the others, in float32 and without
    dropout; a recurrent model takes its exact steps.  The model is left as it was.

    Raises:
        ConfigError: ``distance`` or ``windows`` below 1.
        GenerationError: fewer than ``distance`` + 2 tokens, or more than ``max_seq_len`` to read.
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
    device = model.lm_head.weight.device
    rows = torch.tensor([list(ids[at : at + distance + 2]) for at in starts], device=device)
    was_training = model.training
    model.eval()
    try:
        held, loss = _held(model, rows)
        gradients = torch.autograd.grad(loss, [tensor for steps in held.values() for tensor in steps])
    finally:
        model.train(was_training)
    found = iter(gradients)
    norms = {}
    for name, steps in held.items():
        parts = [next(found) for _ in steps]
        each = parts[0] if len(parts) == 1 else torch.stack(parts, dim=1)  # [B, T, D]
        norms[name] = tuple(reversed(each.float().norm(dim=-1).mean(dim=0).tolist()))
    layers = [block for block in model.blocks if isinstance(block, Recurrent)]
    return GradientFlow(
        norms=norms,
        windows=len(starts),
        recurrences=tuple(r for i, layer in enumerate(layers) if (r := _recurrence(i, layer)) is not None),
        steps=(distance if layers else 0) + len(model.blocks),
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
    if block.cell not in _GAMMA:
        return None
    u = block.hidden_proj.weight.float().cpu()
    return Recurrence(
        layer=layer,
        largest_singular_value=float(torch.linalg.matrix_norm(u, 2)),
        spectral_radius=float(torch.linalg.eigvals(u).abs().max()),
        gamma=_GAMMA[block.cell],
    )


def draw_gradients(path: str | Path, flows: Mapping[str, GradientFlow]) -> None:
    """Draw the norms of every model in ``flows`` over distance, in parts of the norm at distance 0.

    Raises WordloomError without matplotlib, or where the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise WordloomError("drawing needs matplotlib: pip install 'wordloom[plots]'") from None
    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    axes = figure.subplots()
    colours = [f"C{i}" for i in range(10)]
    for (model, flow), colour in zip(flows.items(), colours * len(flows), strict=False):
        # the layer next to the loss stands for the model; its cell is dashed
        top = max(int(name.split()[1]) for name in flow.norms)
        for name, norms in flow.norms.items():
            if int(name.split()[1]) != top:
                continue
            shares = [max(value / norms[0], 1e-12) if norms[0] else 1e-12 for value in norms]
            what = name.removeprefix(f"layer {top} ")
            label = f"{model}, {what}" if what == "c" else model
            axes.plot(range(len(norms)), shares, "--" if what == "c" else "-", color=colour, label=label)
    axes.axhline(_FAR, color="0.7", linewidth=0.8, zorder=0)
    axes.set_yscale("log")
    axes.set_xlabel("tokens between what is held and the loss")
    axes.set_ylabel("norm of the gradient, distance 0 = 1")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise WordloomError(f"cannot draw into '{path}': {error}") from None
