"""The gates of recurrent models at one token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from wordloom.errors import GenerationError
from wordloom.nn.evaluating import evaluating
from wordloom.nn.recurrent import Recurrent, State


def gate_values(model: Any, ids: Sequence[int]) -> list[dict[str, Tensor]]:
    """Return the gates of every recurrent layer at the last of ``ids``, and the state after it.

    The keys of a layer are the gates of its cell, then "c" for an LSTM, then "h"; see
    :mod:`wordloom.nn.recurrent`.  The values are float32 on the CPU.

    Raises GenerationError for no ids, and for a model without recurrent layers.
    """
    if not ids:
        raise GenerationError("gates need at least one token; give a prompt that is not empty")
    layers = [module for module in model.modules() if isinstance(module, Recurrent)]
    if not layers:
        raise GenerationError("this model has no recurrent layers; give a checkpoint of an rnn model")
    tokens = torch.tensor([list(ids)], device=next(model.parameters()).device)  # [1, T]
    inputs: list[Tensor] = []
    hooks = [layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0])) for layer in layers]
    try:
        with evaluating(model):
            cache = model.new_cache(1, len(ids))
            if len(ids) > 1:
                model.hidden(tokens[:, :-1], cache=cache)
            states = [cache.layer(index).state for index in range(len(layers))]
            inputs.clear()
            model.hidden(tokens[:, -1:], cache=cache)
            found = [
                _step(layer, x[:, -1], layer.new_state(1, x) if state is None else state)
                for layer, x, state in zip(layers, inputs, states, strict=True)
            ]
    finally:
        for hook in hooks:
            hook.remove()
    return [{name: value[0].float().cpu() for name, value in layer.items()} for layer in found]


def _step(layer: Recurrent, x: Tensor, state: State) -> dict[str, Tensor]:
    """Compute one step of a layer from x [1, D], and return its gates and its next state."""
    if layer.cell.startswith("lstm"):
        return _lstm(layer, x, state)
    if layer.cell.startswith("gru"):
        return _gru(layer, x, state[0])
    activation = torch.relu if layer.cell == "rnn_relu" else torch.tanh
    return {"h": activation(layer.input_proj(x) + layer.hidden_proj(state[0]))}


def _lstm(layer: Recurrent, x: Tensor, state: State) -> dict[str, Tensor]:
    h, c = state
    gates = layer.gates
    sums = dict(zip(gates, (layer.input_proj(x) + layer.hidden_proj(h)).chunk(len(gates), -1), strict=True))
    if layer.peephole is not None:
        readers = [gate for gate in gates if gate not in ("g", "o")]
        sums |= {gate: sums[gate] + layer.peephole[at] * c for at, gate in enumerate(readers)}
    found = {gate: torch.sigmoid(sums[gate]) for gate in gates if gate not in ("g", "o")}
    g = torch.tanh(sums["g"])
    c = found.get("f", 1.0) * c + found["i"] * g
    o = torch.sigmoid(sums["o"] if layer.peephole is None else sums["o"] + layer.peephole[-1] * c)
    h = o * torch.tanh(c)
    return {**found, "g": g, "o": o, "c": c, "h": h if layer.state_proj is None else layer.state_proj(h)}


def _gru(layer: Recurrent, x: Tensor, h: Tensor) -> dict[str, Tensor]:
    wx = dict(zip("rzn", layer.input_proj(x).chunk(3, -1), strict=True))
    uh = dict(zip("rzn", layer.hidden_proj(h).chunk(3, -1), strict=True))
    r, z = torch.sigmoid(wx["r"] + uh["r"]), torch.sigmoid(wx["z"] + uh["z"])
    if layer.cell == "gru":
        n = torch.tanh(wx["n"] + layer.hidden_proj(r * h).chunk(3, -1)[2])
        return {"r": r, "z": z, "n": n, "h": (1 - z) * h + z * n}
    candidate = uh["n"] if layer.candidate_bias is None else uh["n"] + layer.candidate_bias
    n = torch.tanh(wx["n"] + r * candidate)
    return {"r": r, "z": z, "n": n, "h": z * h + (1 - z) * n}
