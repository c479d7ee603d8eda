"""Recurrent layers against torch.nn and against their equations, written out a number at a time."""

from __future__ import annotations

import math
import warnings
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor, nn

from wordloom.errors import ConfigError
from wordloom.nn import linear
from wordloom.nn.recurrent import CELLS, Recurrent, State

Row: TypeAlias = list[float]
B, T, D, H = 3, 7, 5, 4
VARIANTS: dict[str, dict[str, Any]] = {
    **{cell: {"cell": cell} for cell in CELLS},
    "lstm, peephole": {"cell": "lstm", "peephole": True},
    "lstm_1997, peephole": {"cell": "lstm_1997", "peephole": True},
    "lstm, projection": {"cell": "lstm", "projection": 3},
    "lstm, peephole, projection": {"cell": "lstm", "peephole": True, "projection": 3},
    "lstm, no bias": {"cell": "lstm", "bias": False},
    "lstm_1997, no bias": {"cell": "lstm_1997", "bias": False},
    "gru, no bias": {"cell": "gru", "bias": False},
    "gru_reset_after, no bias": {"cell": "gru_reset_after", "bias": False},
}


def made(**settings: Any) -> Recurrent:
    layer = Recurrent(dim=D, hidden_dim=H, **settings)
    generator = torch.Generator().manual_seed(0)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, 0.0, 0.7, generator=generator)
    return layer


def inputs(layer: Recurrent) -> tuple[Tensor, State]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(B, T, D, generator=generator, requires_grad=True)
    state = tuple(torch.randn(B, size, generator=generator, requires_grad=True) for size in layer.state_dims)
    return x, state


def gradients(
    layer: Recurrent, found: tuple[Tensor, tuple[Tensor, ...]], given: list[Tensor]
) -> list[Tensor]:
    outputs, state = found
    weigh = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(2))
    total = (outputs * weigh).sum() + sum(part.sin().sum() for part in state)
    return list(torch.autograd.grad(total, [*given, *layer.parameters()]))


def s(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def by_hand(
    layer: Recurrent, x: list[float], h: list[float], c: list[float]
) -> tuple[list[float], list[float]]:
    """One step of one row in Python's numbers: (the next h, the next c)."""
    W, U = layer.input_proj.weight.tolist(), layer.hidden_proj.weight.tolist()
    b = [0.0] * len(W) if layer.input_proj.bias is None else layer.input_proj.bias.tolist()
    inner = [0.0] * H if layer.candidate_bias is None else layer.candidate_bias.tolist()
    eyes = None if layer.peephole is None else layer.peephole.tolist()

    def wx(gate: str, j: int) -> float:
        row = layer.rows(gate).start + j
        return sum(w * value for w, value in zip(W[row], x, strict=True)) + b[row]

    def uh(gate: str, j: int, h: list[float]) -> float:
        return sum(u * value for u, value in zip(U[layer.rows(gate).start + j], h, strict=True))

    def seen(place: int, j: int, cell: list[float]) -> float:
        return 0.0 if eyes is None else eyes[place][j] * cell[j]

    each = range(H)
    match layer.cell:
        case "rnn_tanh":
            return [math.tanh(wx("h", j) + uh("h", j, h)) for j in each], []
        case "rnn_relu":
            return [max(0.0, wx("h", j) + uh("h", j, h)) for j in each], []
        case "gru":
            r, z = ([s(wx(gate, j) + uh(gate, j, h)) for j in each] for gate in "rz")
            reset = [r[j] * h[j] for j in each]
            n = [math.tanh(wx("n", j) + uh("n", j, reset)) for j in each]
            return [(1 - z[j]) * h[j] + z[j] * n[j] for j in each], []
        case "gru_reset_after":
            r, z = ([s(wx(gate, j) + uh(gate, j, h)) for j in each] for gate in "rz")
            n = [math.tanh(wx("n", j) + r[j] * (uh("n", j, h) + inner[j])) for j in each]
            return [z[j] * h[j] + (1 - z[j]) * n[j] for j in each], []
    last = 1 if layer.cell == "lstm_1997" else 2
    forget = [1.0 if last == 1 else s(wx("f", j) + uh("f", j, h) + seen(1, j, c)) for j in each]
    i = [s(wx("i", j) + uh("i", j, h) + seen(0, j, c)) for j in each]
    g = [math.tanh(wx("g", j) + uh("g", j, h)) for j in each]
    new = [forget[j] * c[j] + i[j] * g[j] for j in each]
    out = [s(wx("o", j) + uh("o", j, h) + seen(last, j, new)) * math.tanh(new[j]) for j in each]
    if layer.state_proj is not None:
        out = [
            sum(p * value for p, value in zip(row, out, strict=True))
            for row in layer.state_proj.weight.tolist()
        ]
    return out, new


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS.keys())
def test_a_step_is_the_equations(settings: dict[str, Any]) -> None:
    layer = made(**settings)
    x, state = inputs(layer)
    outputs, after = layer(x, state, exact=True)
    for row in range(B):
        h = state[0][row].tolist()
        c = state[1][row].tolist() if len(state) > 1 else []
        for t in range(T):
            h, c = by_hand(layer, x[row, t].tolist(), h, c)
            assert outputs[row, t].tolist() == pytest.approx(h, rel=1e-5, abs=1e-5)
        assert [part[row].tolist() for part in after] == [
            pytest.approx(part, rel=1e-5, abs=1e-5) for part in ((h, c) if c else (h,))
        ]


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS.keys())
def test_the_kernel_computes_what_the_steps_do_and_its_gradients(settings: dict[str, Any]) -> None:
    layer = made(**settings)
    assert (layer.kernel == "steps") == (settings["cell"] == "gru" or "peephole" in settings)
    x, state = inputs(layer)
    fast, exact = layer(x, state), layer(x, state, exact=True)
    torch.testing.assert_close(fast, exact, rtol=1e-5, atol=1e-5)
    found, expected = (gradients(layer, result, [x, *state]) for result in (fast, exact))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("cell", "theirs"),
    [
        ("rnn_tanh", nn.RNN(D, H, batch_first=True)),
        ("rnn_relu", nn.RNN(D, H, batch_first=True, nonlinearity="relu")),
        ("lstm", nn.LSTM(D, H, batch_first=True)),
        ("lstm", nn.LSTM(D, H, batch_first=True, proj_size=3)),
        ("gru_reset_after", nn.GRU(D, H, batch_first=True)),
    ],
    ids=["rnn_tanh", "rnn_relu", "lstm", "lstm, projection", "gru_reset_after"],
)
def test_the_steps_are_torchs_layers(cell: str, theirs: Any) -> None:
    layer = made(cell=cell, projection=theirs.proj_size or None)
    ours = dict(layer.named_parameters())
    with torch.no_grad():
        ours["input_proj.weight"].copy_(theirs.weight_ih_l0)
        ours["hidden_proj.weight"].copy_(theirs.weight_hh_l0)
        ours["input_proj.bias"].copy_(theirs.bias_ih_l0 + theirs.bias_hh_l0)
        if layer.candidate_bias is not None:  # under the reset gate, so not to be added up
            ours["input_proj.bias"][-H:] = theirs.bias_ih_l0[-H:]
            layer.candidate_bias.copy_(theirs.bias_hh_l0[-H:])
        if layer.state_proj is not None:
            layer.state_proj.weight.copy_(theirs.weight_hr_l0)
    x, state = inputs(layer)
    given = tuple(part[None] for part in state)
    expected, after = theirs(x, given if len(given) > 1 else given[0])
    found, last = layer(x, state, exact=True)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(last[0], (after[0] if len(given) > 1 else after)[0], rtol=1e-5, atol=1e-6)


def test_the_two_grus_are_different_functions() -> None:
    before, after = made(cell="gru", bias=False), made(cell="gru_reset_after", bias=False)
    x, state = inputs(before)
    with torch.no_grad():  # z and 1 - z: the update gates are each other's rest
        after.input_proj.weight[after.rows("z")] *= -1
        after.hidden_proj.weight[after.rows("z")] *= -1
        assert (before(x, state)[0] - after(x, state)[0]).abs().max() > 0.05
        for layer in (before, after):  # where nothing is reset they are one
            layer.input_proj.weight[layer.rows("r")] = 0
            layer.hidden_proj.weight[layer.rows("r")] = 0
        torch.testing.assert_close(before(x, state)[0], after(x, state)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS.keys())
@torch.no_grad()
def test_a_sequence_in_pieces_is_the_sequence_and_resting_rows_stand_still(settings: dict[str, Any]) -> None:
    layer = made(**settings)
    x, state = inputs(layer)
    whole, after = layer(x, state)
    first, between = layer(x[:, :3], state)
    second, end = layer(x[:, 3:], between)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(end, after, rtol=1e-5, atol=1e-6)
    attend = torch.ones(B, T + 2, dtype=torch.bool)
    attend[0, :2] = attend[1, T:] = attend[2, 3:5] = False
    padded = torch.full((B, T + 2, D), 9.0)
    padded[attend] = x.reshape(-1, D)
    rested, last = layer(padded, state, attend=attend)
    torch.testing.assert_close(rested[attend].view_as(whole), whole, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(last, after, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS.keys())
@pytest.mark.parametrize("resting", ["behind", "in front", "between", "a whole row", "nowhere"])
def test_the_kernel_passes_over_resting_rows_as_the_steps_do(settings: dict[str, Any], resting: str) -> None:
    layer = made(**settings).double()  # the gradients of some cells grow from step to step
    x, *state = (part.detach().double().requires_grad_() for part in (inputs(layer)[0], *inputs(layer)[1]))
    attend = torch.ones(B, T, dtype=torch.bool)
    match resting:
        case "behind":
            attend[0, 2:] = attend[2, 6:] = False
        case "in front":
            attend[1, :5] = attend[2, :1] = False
        case "between":
            attend[0, 1:3] = attend[1, :2] = attend[1, 6:] = attend[2, 4] = False
        case "a whole row":
            attend[1] = attend[2, 3:] = False
    fast, exact = layer(x, state, attend=attend), layer(x, state, attend=attend, exact=True)
    torch.testing.assert_close(fast, exact, rtol=1e-8, atol=1e-8)
    found, expected = (gradients(layer, result, [x, *state]) for result in (fast, exact))
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("cell", ["lstm", "lstm_1997"])
@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("packed", [False, True])
def test_in_bfloat16_on_a_cpu_without_it(
    cell: str, autocast: bool, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There PyTorch's LSTM raises under autocast: ours is the one in float32, rounded."""
    monkeypatch.setattr(linear, "_has_kernel", lambda dtype: False)
    layer = made(cell=cell) if autocast else made(cell=cell).bfloat16()
    wide = made(cell=cell)
    wide.load_state_dict(layer.state_dict())
    assert layer.kernel_for(inputs(layer)[0]) == "torch"
    attend = torch.arange(T) < torch.tensor([[T], [2], [4]]) if packed else None
    x, *state = (
        part.detach().to(layer.input_proj.weight.dtype) for part in (inputs(layer)[0], *inputs(layer)[1])
    )
    given = [part.clone().requires_grad_() for part in (x, *state)]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = layer(given[0], tuple(given[1:]), attend=attend)
    given_wide = [part.float().requires_grad_() for part in (x, *state)]
    expected = wide(given_wide[0], tuple(given_wide[1:]), attend=attend)
    for part, whole in zip((found[0], *found[1]), (expected[0], *expected[1]), strict=True):
        assert torch.equal(part, whole.bfloat16())
    for slope, whole in zip(
        gradients(layer, found, given), gradients(wide, expected, given_wide), strict=True
    ):
        assert (slope - whole).norm() < 0.01 * whole.norm()


def test_dropped_weights_are_dropped_for_a_whole_pass_and_in_training_only() -> None:
    layer = made(cell="lstm", weight_drop=0.5)
    x = inputs(layer)[0]
    torch.manual_seed(3)
    once, again = layer(x)[0], layer(x)[0]
    assert not torch.equal(once, again)
    torch.manual_seed(3)
    torch.testing.assert_close(layer(x, exact=True)[0], once, rtol=1e-5, atol=1e-5)  # one draw for all steps
    layer.eval()
    assert torch.equal(layer(x)[0], layer(x)[0])


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"cell": "lstmm"}, "did you mean 'lstm'"),
        ({"cell": "gru", "peephole": True}, "peephole belongs to an LSTM"),
        ({"cell": "rnn_tanh", "projection": 3}, "projection belongs to an LSTM"),
        ({"cell": "lstm", "projection": 4}, "projection 4 is not allowed; give 1 to below hidden_dim 4"),
    ],
)
def test_what_no_cell_has_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Recurrent(dim=D, hidden_dim=H, **settings)


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS.keys())
@pytest.mark.parametrize("exact", [False, True])
def test_a_state_of_other_sizes_is_refused(settings: dict[str, Any], exact: bool) -> None:
    layer = made(**settings)
    x, state = inputs(layer)
    fewer, narrow = tuple(part[:2] for part in state), (state[0][:, :2], *state[1:])
    for wrong in (fewer, narrow, state[:-1]):
        with pytest.raises(ConfigError, match=rf"a state of shapes \[.*\] does not fit {B} rows, which need"):
            layer(x, wrong, exact=exact)


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS.keys())
def test_a_sequence_without_a_step_leaves_the_state(settings: dict[str, Any]) -> None:
    layer = made(**settings)
    x, state = inputs(layer)
    for masks in ({}, {"attend": torch.ones(B, 0, dtype=torch.bool)}):
        outputs, after = layer(x[:, :0], state, **masks)
        assert outputs.shape == (B, 0, layer.state_dims[0])
        assert all(torch.equal(part, before) for part, before in zip(after, state, strict=True))


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS.keys())
def test_shapes_are_found_on_the_meta_device(settings: dict[str, Any]) -> None:
    layer = made(**settings).to("meta")
    outputs, state = layer(torch.empty(B, T, D, device="meta"))
    assert outputs.shape == (B, T, layer.state_dims[0])
    assert [part.shape for part in state] == [(B, size) for size in layer.state_dims]


def test_a_projection_brings_no_warning_of_pytorchs() -> None:
    layer = made(cell="lstm", projection=3)
    x, state = inputs(layer)
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # PyTorch gives each warning once a process otherwise
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("error")
            layer(x, state)
    finally:
        torch.set_warn_always(before)
