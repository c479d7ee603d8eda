"""Activation patching: which state of which token carries the difference between two texts.

Two texts of equal length differ in some tokens.  The model reads the second one, with the vector of one
token after one layer replaced by the vector that the first text has there.  With LD the logit of a target
token less that of a foil, after the last token:

    effect = (LD_patched - LD_corrupt) / (LD_clean - LD_corrupt)

(Meng et al. 2022, arXiv:2202.05262; Wang et al. 2022, arXiv:2211.00593).

An effect of 1 means that this one vector restores the answer, and 0 that it changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wordloom.errors import GenerationError, WordloomError
from wordloom.inspect.figures import FONT, add_colour_bar, check_tokens, new_figure
from wordloom.inspect.layers.states import input_name, layer_name, layer_states, row_of
from wordloom.inspect.token_names import visible
from wordloom.inspect.view import Table, View
from wordloom.models.bert import Bert
from wordloom.nn.evaluating import evaluating, widened

_ROWS = 32  # patched at once
_LEAST = 1e-6  # difference of logits that can be divided by


@dataclass(frozen=True)
class Patching(View):
    """The effect [L + 1, T] of the vector of each token after each layer."""

    clean: tuple[str, ...]
    corrupt: tuple[str, ...]
    target: str
    foil: str
    clean_difference: float  # of the logits of target and foil
    corrupt_difference: float
    effects: Tensor
    first: str = "embedding"  # the name of the vectors before the first layer
    title: str = "Effect of restoring one vector"

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "effects": self.effects.tolist()}

    def tables(self) -> list[Table]:
        layers = range(len(self.effects))
        rows = [
            (self._name(t), *(f"{self.effects[layer, t]:+.2f}" for layer in layers))
            for t in range(len(self.clean))
        ]
        return [Table(self.title, ("token", *(layer_name(layer, self.first) for layer in layers)), rows)]

    def _name(self, t: int) -> str:
        clean, corrupt = visible(self.clean[t]), visible(self.corrupt[t])
        return clean if clean == corrupt else f"{clean} / {corrupt}"

    def notes(self) -> list[str]:
        return [
            f"the logit of {visible(self.target)} less that of {visible(self.foil)}: "
            f"{self.clean_difference:+.3f} in the first text, {self.corrupt_difference:+.3f} in the second; "
            "1 restores the first, 0 changes nothing"
        ]

    def words(self) -> Sequence[str]:
        return [visible(token) for token in (*self.clean, *self.corrupt, self.target, self.foil)]

    def figure(self) -> Any:
        """Return a grid: layers up, tokens across."""
        layers, T = self.effects.shape
        check_tokens(T)
        figure = new_figure((2.0 + 0.5 * T, 1.7 + 0.3 * layers))
        panel = figure.subplots()
        effects = self.effects.numpy()
        most = max(1.0, float(np.abs(effects).max()))
        image = panel.imshow(effects, origin="lower", cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto")
        names = {"fontsize": FONT - 1, "parse_math": False}
        panel.set_yticks(range(layers), [layer_name(layer, self.first) for layer in range(layers)], **names)
        tokens = [self._name(t) for t in range(T)]
        panel.set_xticks(range(T), tokens, rotation=45, ha="right", rotation_mode="anchor", **names)
        panel.tick_params(length=0)
        title = f"restores {visible(self.target)} over {visible(self.foil)}"
        panel.set_title(title, fontsize=FONT, parse_math=False)
        add_colour_bar(panel, image, "effect", FONT - 1)
        return figure


def patching(
    model: Any,
    clean: Sequence[int],
    corrupt: Sequence[int],
    name: Callable[[int], str] = str,
    *,
    target: int | None = None,
    foil: int | None = None,
) -> Patching:
    """Return the effect of each vector of ``clean`` on a causal ``model`` that reads ``corrupt``.

    ``target`` and ``foil`` are the tokens whose logits are compared; None: the most probable ones after
    ``clean`` and after ``corrupt``.  ``name`` returns the text of a token id.

    Raises GenerationError for texts of different lengths, too long or empty, for equal tokens, and for texts
    that do not differ in the logits; WordloomError for an encoder.
    """
    if len(clean) != len(corrupt):
        first, second = (" ".join(visible(name(i)) for i in ids) for ids in (clean, corrupt))
        raise GenerationError(
            f"the texts have {len(clean)} and {len(corrupt)} tokens ({first} | {second}); vectors can be "
            "exchanged between texts of equal length only"
        )
    if isinstance(model, Bert):
        raise WordloomError("the view 'patch' is defined for causal models, not for type Bert")
    rows = torch.cat([row_of(model, ids) for ids in (clean, corrupt)])  # [2, T]
    with evaluating(model):
        states = layer_states(model, rows)  # L + 1 of [2, T, D]
        logits = model.lm_head(model.hidden(rows)[:, -1]).float()  # [2, V]
        goals = _goals(logits, target, foil)
        before = _differences(logits, goals)
        if list(clean) == list(corrupt) or abs(before[0] - before[1]) < _LEAST:
            raise GenerationError("the two texts give equal logits; give texts with different answers")
        effects = [
            (_patched(model, rows[1], layer, x[0], goals) - before[1]) / (before[0] - before[1])
            for layer, x in enumerate(states)
        ]
    return Patching(
        clean=tuple(map(name, clean)),
        corrupt=tuple(map(name, corrupt)),
        target=name(goals[0]),
        foil=name(goals[1]),
        clean_difference=float(before[0]),
        corrupt_difference=float(before[1]),
        effects=torch.stack(effects).float().cpu(),
        first=input_name(model),
    )


def _goals(logits: Tensor, target: int | None, foil: int | None) -> tuple[int, int]:
    best = logits.argmax(1).tolist()
    goals = (best[0] if target is None else target, best[1] if foil is None else foil)
    for goal in goals:
        if not 0 <= goal < logits.shape[1]:
            raise GenerationError(f"token {goal} does not exist; allowed: 0 to {logits.shape[1] - 1}")
    if goals[0] == goals[1]:
        raise GenerationError(
            "the target and the foil are the same token; name two tokens, whose logits the texts decide"
        )
    return goals


def _differences(logits: Tensor, goals: tuple[int, int]) -> Tensor:
    """logits [N, V] -> [N] float64"""
    return widened(logits[:, goals[0]]) - widened(logits[:, goals[1]])


def _patched(model: Any, corrupt: Tensor, layer: int, clean: Tensor, goals: tuple[int, int]) -> Tensor:
    """Return the difference [T] with x_layer of each token replaced by that of ``clean`` [T, D] in turn."""
    T, found = len(corrupt), []
    for start in range(0, T, _ROWS):
        some = torch.arange(start, min(start + _ROWS, T), device=corrupt.device)
        rows = torch.arange(len(some), device=corrupt.device)

        def replaced(x: Tensor, rows: Tensor = rows, some: Tensor = some) -> Tensor:
            x = x.clone()
            x[rows, some] = clean[some]
            return x

        with replaced_state(model, layer, replaced):
            logits = model.lm_head(model.hidden(corrupt.expand(len(some), T))[:, -1]).float()
        found.append(_differences(logits, goals))
    return torch.cat(found)


@contextmanager
def replaced_state(model: Any, layer: int, replace: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Replace x_layer [B, T, D] of each forward pass inside the block by what ``replace`` returns for it."""

    def before(_: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (replace(args[0]), *args[1:])

    def after(_: Any, args: Any, output: Any) -> Any:
        if isinstance(output, tuple):  # a recurrent block returns its state too
            return (replace(output[0]), *output[1:])
        return replace(output)

    if layer == 0:
        hook = model.blocks[0].register_forward_pre_hook(before)
    else:
        hook = model.blocks[layer - 1].register_forward_hook(after)
    try:
        yield
    finally:
        hook.remove()
