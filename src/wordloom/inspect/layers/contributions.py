"""The parts of a logit: how much each head and feed-forward layer adds to it (Elhage et al. 2021).

A Transformer's last vector x_L is a sum: the embedding, and the output of every head, feed-forward layer and
bias.  A norm divides by a number that depends on the vector; with that number frozen, the norm is linear, and
so is the head.  The logit of a token is then the sum of one number for each part.  In a GPT, whose norms
stand between the layers, each part also passes the frozen norms that follow it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from wordloom.errors import GenerationError, NonFiniteError, WordloomError
from wordloom.inspect.figures import FONT, add_colour_bar, new_figure
from wordloom.inspect.layers.states import row_of
from wordloom.inspect.token_names import visible
from wordloom.inspect.view import Table, View
from wordloom.models.gpt import GPT
from wordloom.models.gpt2 import GPT2
from wordloom.models.llama import Llama
from wordloom.nn import LayerNorm, RMSNorm
from wordloom.nn.evaluating import evaluating, widened
from wordloom.nn.unmodified import modification

_TOLERANCE = 0.01  # of the sum of the parts, relative to the largest


class Part(NamedTuple):
    """A part of a logit; ``layer`` is None for the embedding, the last norm and the head."""

    name: str
    layer: int | None
    head: int | None
    value: float


@dataclass(frozen=True)
class Contributions(View):
    """The parts of the logit of ``target`` after the token at ``at``, or of its difference to ``against``.

    ``logit`` is what the model computes; the values of ``parts`` sum to it.
    """

    tokens: tuple[str, ...]
    at: int
    target: str
    against: str | None
    parts: tuple[Part, ...]
    logit: float

    @property
    def title(self) -> str:
        what = f"the logit of {visible(self.target)}"
        if self.against is not None:
            what = f"{what} above that of {visible(self.against)}"
        return f"Parts of {what} after {visible(self.tokens[self.at])}"

    def as_dict(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "at": self.at,
            "target": self.target,
            "against": self.against,
            "logit": self.logit,
            "parts": [part._asdict() for part in self.parts],
        }

    def tables(self) -> list[Table]:
        layers = range(self._layers)
        ends = [part for part in self.parts if part.layer is None]
        biases = any("bias" in part.name for part in self.parts if part.layer is not None)
        columns = ("from", "heads", "feed-forward", *(["biases"] if biases else []), "sum")
        empty = [""] * (len(columns) - 2)
        rows = [(part.name, *empty, f"{part.value:+.3f}") for part in ends if "embedding" in part.name]
        for layer in layers:
            own = [part for part in self.parts if part.layer == layer]
            heads = sum(part.value for part in own if part.head is not None)
            fed = sum(part.value for part in own if part.name == "feed-forward")
            whole = sum(part.value for part in own)
            values = [heads, fed, *([whole - heads - fed] if biases else []), whole]
            rows.append((f"layer {layer}", *(f"{value:+.3f}" for value in values)))
        rows += [(part.name, *empty, f"{part.value:+.3f}") for part in ends if "embedding" not in part.name]
        rows.append(("logit", *empty, f"{self.logit:+.3f}"))
        largest = sorted(self.parts, key=lambda part: -abs(part.value))[:12]
        return [
            Table(self.title, columns, rows),
            Table("The largest parts", ("part", "adds"), [(_full(p), f"{p.value:+.3f}") for p in largest]),
        ]

    @property
    def _layers(self) -> int:
        return 1 + max((part.layer for part in self.parts if part.layer is not None), default=-1)

    def words(self) -> Sequence[str]:
        return [self.title]

    def figure(self) -> Any:
        """Return a grid: layers up, the heads and the feed-forward layer across."""
        heads = 1 + max((part.head for part in self.parts if part.head is not None), default=-1)
        grid = np.full((self._layers, heads + 1), np.nan)
        for part in self.parts:
            if part.layer is not None and part.head is not None:
                grid[part.layer, part.head] = part.value
            elif part.layer is not None and part.name == "feed-forward":
                grid[part.layer, heads] = part.value
        figure = new_figure((2.2 + 0.55 * (heads + 1), 1.5 + 0.36 * len(grid)))
        panel = figure.subplots()
        most = np.nanmax(np.abs(grid)) or 1.0
        digits = 1 if most >= 1 else 2 if most >= 0.1 else 3
        image = panel.imshow(grid, origin="lower", cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto")
        for (layer, column), value in np.ndenumerate(grid):
            colour = "white" if abs(value) > 0.6 * most else "#1a1a1a"
            style = {"ha": "center", "va": "center", "color": colour, "fontsize": FONT - 2}
            panel.text(column, layer, f"{round(value, digits) + 0.0:+.{digits}f}", **style)
        panel.set_xticks(range(heads + 1), [*map(str, range(heads)), "feed-\nforward"], fontsize=FONT - 1)
        panel.set_yticks(
            range(len(grid)), [f"layer {layer}" for layer in range(len(grid))], fontsize=FONT - 1
        )
        rest = round(math.fsum(part.value for part in self.parts) - float(np.nansum(grid)), digits) + 0.0
        panel.set_xlabel(f"head (not shown: embeddings and biases add {rest:+.{digits}f})", fontsize=FONT)
        panel.tick_params(length=0)
        panel.set_title(self.title, fontsize=FONT, parse_math=False)
        add_colour_bar(panel, image, "adds to the logit", FONT - 1)
        return figure


def _full(part: Part) -> str:
    return part.name if part.layer is None else f"layer {part.layer}, {part.name}"


def contributions(
    model: Any,
    ids: Sequence[int],
    name: Callable[[int], str] = str,
    *,
    at: int | None = None,
    target: int | None = None,
    against: int | None = None,
) -> Contributions:
    """Return the parts of a logit of a causal ``model`` that reads ``ids``.

    Args:
        at: the position of the token after which the logit is computed; None: the last one.
        target: the token whose logit it is; None: the most probable one.
        against: subtract the logit of this token.
        name: returns the text of a token id.

    Raises:
        WordloomError: a family whose logits are no such sum, or a model whose layers were replaced or hooked
            so that they are none.
        NonFiniteError: logits that are not finite.
        GenerationError: no ids, more than max_seq_len, a position or token that does not exist, or a token
            that is compared with itself.
    """
    if not isinstance(model, GPT | GPT2 | Llama):
        raise WordloomError(
            "the view 'contributions' is defined for gpt, gpt2 and llama models, whose logits are sums over "
            f"their layers; this model is of type {type(model).__name__}"
        )
    if not all(hasattr(block.feed_forward, "down_proj") for block in model.blocks):
        raise WordloomError("the view 'contributions' needs the feed-forward layers as they were built")
    if next(model.parameters()).dtype in (torch.bfloat16, torch.float16):  # rounded parts would not sum
        model = copy.deepcopy(model).float()
    row = row_of(model, ids)
    at = _place("at", len(ids) - 1 if at is None else at, len(ids))
    with evaluating(model):
        seen, logits = _observed(model, row, at)
        if not logits.isfinite().all():
            raise NonFiniteError("the model gives logits that are not finite; its weights are damaged")
        target = int(logits.argmax()) if target is None else target
        goals = [_place("token", token, len(logits)) for token in (target, against) if token is not None]
        if against == target:
            raise GenerationError(
                f"the token {visible(name(target))} is compared with itself; name another one to compare with"
            )
        parts = _sum_of_parts(model, row[0, at], at, seen)
        values = _logits_of_parts(model, parts, goals)
    logit = logits[goals[0]] - (logits[goals[1]] if against is not None else 0.0)
    added = math.fsum(value for _, value in values)
    if abs(added - float(logit)) > _TOLERANCE * max(1.0, *(abs(value) for _, value in values)):
        raise WordloomError(
            f"the parts add up to {added:.4g} and the logit is {float(logit):.4g}: a layer of the model was "
            "replaced, or has a hook that changes it"
        )
    return Contributions(
        tokens=tuple(map(name, ids)),
        at=at,
        target=name(target),
        against=None if against is None else name(against),
        parts=tuple(Part(*where, value) for where, value in values),
        logit=float(logit),
    )


def _place(what: str, index: int, n: int) -> int:
    if not 0 <= index < n:
        raise GenerationError(f"{what} {index} does not exist; allowed: 0 to {n - 1}")
    return index


_Where = tuple[str, int | None, int | None]  # name, layer, head


class _Parts:
    """Vectors [D] in float64 that sum to the model's vector.

    They are on the model's device, or on the CPU for Apple GPUs, which have no float64.
    """

    def __init__(self) -> None:
        self.where: list[_Where] = []
        self.vectors: list[Tensor] = []

    def add(self, name: str, layer: int | None, head: int | None, vector: Tensor) -> None:
        self.where.append((name, layer, head))
        self.vectors.append(widened(vector))

    def pass_norm(self, norm: nn.Module, x: Tensor, name: str, layer: int | None) -> None:
        """Apply ``norm``, with the statistics of its input ``x`` [D], to each part; its bias is a new one."""
        scale, centres, bias = _frozen(norm, widened(x))
        self.vectors = [(v - v.mean() if centres else v) * scale for v in self.vectors]
        if bias is not None:
            self.add(f"{name} bias", layer, None, bias)


def _frozen(norm: nn.Module, x: Tensor) -> tuple[Tensor, bool, Tensor | None]:
    """Return the factor [D] of ``norm`` for the input ``x`` [D], whether it centres, and its bias [D]."""
    if reason := modification(norm, RMSNorm if isinstance(norm, RMSNorm) else LayerNorm):
        raise WordloomError(f"the view 'contributions' needs the norms as they were built: {reason}")
    if isinstance(norm, LayerNorm):
        scale = widened(norm.weight) / (x.var(unbiased=False) + norm.eps).sqrt()
        return scale, True, None if norm.bias is None else widened(norm.bias)
    assert isinstance(norm, RMSNorm)
    gain = 1.0 if norm.weight is None else widened(norm.weight) + norm.offset
    return gain / (x.square().mean() + norm.eps).sqrt() * torch.ones_like(x), False, None


def _observed(model: Any, row: Tensor, at: int) -> tuple[dict[nn.Module, Tensor], Tensor]:
    """Return what modules read (norms, o_proj) or return (feed-forward) at ``at``, and the logits [V]."""
    seen: dict[nn.Module, Tensor] = {}

    def reads(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        seen[module] = args[0][0, at]

    def returns(module: nn.Module, _: Any, output: Tensor) -> None:
        seen[module] = output[0, at]

    readers = [norm for block in model.blocks for norm in (block.attention_norm, block.ffn_norm)]
    readers += [block.attention.o_proj for block in model.blocks]
    readers += [model.final_norm] if hasattr(model, "final_norm") else []
    with ExitStack() as stack:
        for module in readers:
            stack.callback(module.register_forward_pre_hook(reads).remove)
        for block in model.blocks:
            stack.callback(block.feed_forward.register_forward_hook(returns).remove)
        logits = model.lm_head(model.hidden(row)[:, at])[0].float()  # [V]
    return seen, logits


def _sum_of_parts(model: Any, token: Tensor, at: int, seen: dict[nn.Module, Tensor]) -> _Parts:
    """Return the parts of the vector that ``lm_head`` reads."""
    parts = _Parts()
    position = torch.tensor([at], device=token.device)
    parts.add("token embedding", None, None, model.token_embedding(token))
    if isinstance(model, GPT):
        parts.add("position embedding", None, None, model.position_vectors(position)[0])
    elif isinstance(model, GPT2):
        parts.add("position embedding", None, None, model.position_embedding(position)[0])
    for layer, block in enumerate(model.blocks):
        _add_attention(parts, layer, block.attention, seen[block.attention.o_proj])
        if isinstance(model, GPT):  # post-norm
            parts.pass_norm(block.attention_norm, seen[block.attention_norm], "attention norm", layer)
        _add_feed_forward(parts, layer, block.feed_forward, seen[block.feed_forward])
        if isinstance(model, GPT):
            parts.pass_norm(block.ffn_norm, seen[block.ffn_norm], "feed-forward norm", layer)
    if not isinstance(model, GPT):
        parts.pass_norm(model.final_norm, seen[model.final_norm], "final norm", None)
    return parts


def _add_attention(parts: _Parts, layer: int, attention: Any, mixed: Tensor) -> None:
    """Add the output of each head, of which ``mixed`` [H * E] holds the weighted values, and the bias."""
    H = attention.n_heads
    own = torch.eye(H, device=mixed.device, dtype=mixed.dtype)[..., None]  # [H, H, 1]
    apart = (own * mixed.view(H, -1)).flatten(1)  # [H, H * E], each row with the values of one head
    outputs = attention.o_proj(torch.cat([apart, torch.zeros_like(mixed)[None]]))  # [H + 1, D]
    for head in range(H):
        parts.add(f"head {head}", layer, head, widened(outputs[head]) - widened(outputs[H]))
    if outputs[H].any():
        parts.add("attention bias", layer, None, outputs[H])


def _add_feed_forward(parts: _Parts, layer: int, feed_forward: Any, output: Tensor) -> None:
    down = feed_forward.down_proj
    bias = down(output.new_zeros(1, down.in_features))[0]  # [D]
    parts.add("feed-forward", layer, None, widened(output) - widened(bias))
    if bias.any():
        parts.add("feed-forward bias", layer, None, bias)


def _logits_of_parts(model: Any, parts: _Parts, goals: Sequence[int]) -> list[tuple[_Where, float]]:
    """Return what each part adds to the logit of the first goal, less that of the second."""
    head, some = model.lm_head, next(model.parameters())
    call = partial(_difference, goals=goals)
    vectors = [v.to(some.dtype).to(some.device) for v in parts.vectors]
    zero = torch.zeros_like(vectors[0])
    bias = call(head(zero[None]))[0]
    values = [float(call(head(v[None]))[0] - bias) for v in vectors]
    found = list(zip(parts.where, values, strict=True))
    return [*found, (("head bias", None, None), float(bias))] if bias else found


def _difference(logits: Tensor, goals: Sequence[int]) -> Tensor:
    """logits [N, V] -> [N]"""
    chosen = widened(logits[:, list(goals)])
    return chosen[:, 0] - (chosen[:, 1] if len(goals) == 2 else 0.0)
