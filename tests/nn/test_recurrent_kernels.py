"""Whole sequences by our own kernel, against the steps as they are written."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tests.nn.test_recurrent import VARIANTS
from torch import Tensor, nn

from wordloom.nn import linear, recurrent_kernels
from wordloom.nn.recurrent import Recurrent

B, T, D, H = 5, 7, 11, 37  # H leaves a rest beside whole vectors


@pytest.fixture(autouse=True)
def programs() -> None:
    if not recurrent_kernels.programs.ready():
        pytest.skip("no programs on this machine")


def made(settings: dict[str, Any], hidden: int = H) -> Recurrent:
    layer = Recurrent(dim=D, hidden_dim=hidden, **settings)
    generator = torch.Generator().manual_seed(0)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, 0.0, 0.3, generator=generator)
    return layer


def given(layer: Recurrent, masks: str) -> tuple[Tensor, tuple[Tensor, ...], dict[str, Tensor | None]]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(B, T, D, generator=generator, requires_grad=True)
    state = tuple(torch.randn(B, n, generator=generator, requires_grad=True) for n in layer.state_dims)
    attend = torch.rand(B, T, generator=generator) < 0.7
    starts = torch.rand(B, T, generator=generator) < 0.2
    return x, state, {
        "attend": attend if "attend" in masks else None,
        "starts": starts if "starts" in masks else None,
    }  # fmt: skip


def gradients(found: Any, inputs: list[Tensor]) -> list[Tensor]:
    outputs, state = found
    weigh = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(2))
    total = (outputs.float() * weigh).sum() + sum(part.float().sin().sum() for part in state)
    return list(torch.autograd.grad(total, inputs, retain_graph=True))


@pytest.mark.parametrize("masks", ["", "attend", "starts", "attend and starts"])
@pytest.mark.parametrize("name", VARIANTS)
def test_it_is_the_steps_and_so_are_its_gradients(name: str, masks: str) -> None:
    layer = made(VARIANTS[name])
    x, state, where = given(layer, masks)
    inputs = [x, *state, *layer.parameters()]
    exact = layer(x, state, **where, exact=True)
    ours = layer._fused(x, state, layer.hidden_proj.weight, **where)
    for a, b in zip((exact[0], *exact[1]), (ours[0], *ours[1]), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-5)
    wanted = gradients(exact, inputs)
    for again in range(2):  # a graph that is kept gives the same gradients again
        for a, b in zip(wanted, gradients(ours, inputs), strict=True):
            torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5, msg=f"pass {again}")


@pytest.mark.parametrize("arithmetic", [True, False])
@pytest.mark.parametrize("name", VARIANTS)
def test_in_bfloat16_it_stays_near_float32(
    name: str, arithmetic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on a CPU without such arithmetic, where all of it is made in float32 and h is rounded."""
    monkeypatch.setattr(linear, "_has_kernel", lambda dtype: arithmetic)
    monkeypatch.setattr(recurrent_kernels, "SMALL_STEP", 0)
    layer = made(VARIANTS[name])
    if name == "rnn_relu":  # which would grow from step to step, its rounding errors too
        nn.init.normal_(layer.hidden_proj.weight, 0.0, 0.1, generator=torch.Generator().manual_seed(3))
    x, state, where = given(layer, "")
    inputs = [x, *state, *layer.parameters()]
    exact = layer(x, state, exact=True)
    with torch.autocast("cpu", torch.bfloat16):
        ours = layer._fused(x, state, layer.hidden_proj.weight, **where)
    assert ours[0].dtype == torch.bfloat16
    torch.testing.assert_close(ours[0].float(), exact[0], rtol=0, atol=0.03)
    if not arithmetic:
        torch.testing.assert_close(ours[0].float(), exact[0], rtol=2**-8, atol=1e-5)
    for a, b in zip(gradients(exact, inputs), gradients(ours, inputs), strict=True):
        assert b.dtype == a.dtype
        assert (a - b).norm() < 0.03 * a.norm()


@pytest.mark.parametrize("name", VARIANTS)
def test_small_steps_are_computed_in_float32(name: str) -> None:
    layer = made(VARIANTS[name])
    x, state, where = given(layer, "")
    exact = layer._fused(x, state, layer.hidden_proj.weight, **where)
    with torch.autocast("cpu", torch.bfloat16):
        ours = layer._fused(x, state, layer.hidden_proj.weight, **where)
    assert torch.equal(ours[0], exact[0].bfloat16())


@pytest.mark.threads2
@pytest.mark.parametrize("name", ["gru", "lstm, peephole", "rnn_tanh"])
def test_its_bits_are_the_same_again(name: str) -> None:
    layer = made(VARIANTS[name])
    x, state, where = given(layer, "")

    def run() -> list[Tensor]:
        found = layer._fused(x, state, layer.hidden_proj.weight, **where)
        return [found[0], *gradients(found, [x])]

    first = run()
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(first, run(), strict=True))


def test_which_kernel_runs() -> None:
    small, large = torch.randn(2, 3, D), torch.randn(20, 30, D)
    for settings, kernel in (
        ({"cell": "gru"}, "fused"),
        ({"cell": "gru_reset_after"}, "fused"),
        ({"cell": "rnn_tanh"}, "fused"),
        ({"cell": "lstm"}, "torch"),
        ({"cell": "lstm", "peephole": True}, "fused"),
        ({"cell": "lstm", "projection": 9}, "fused"),
    ):
        layer = made(settings)
        assert layer.kernel_for(large) == kernel
        assert layer.kernel_for(small) == layer.kernel != "fused"
        assert layer.kernel_for(large.double()) == layer.kernel
        assert layer.kernel_for(large, starts=True) == "fused"
        assert layer.kernel_for(small, starts=True) == "steps"
    wide = Recurrent(cell="lstm", dim=D, hidden_dim=400)
    with torch.autocast("cpu", torch.bfloat16):
        assert wide.kernel_for(large) == "fused"
        with torch.no_grad():
            assert wide.kernel_for(large) == "torch"
    assert wide.kernel_for(large) == "torch"


def test_an_lstm_whose_rows_begin_anew_takes_no_python_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = made({"cell": "lstm"}, hidden=600)
    with torch.no_grad():
        layer.hidden_proj.weight.mul_(0.1)  # else a sum of 600 would multiply what rounding left
    x = torch.randn(8, 9, D, generator=torch.Generator().manual_seed(1), requires_grad=True)
    starts = torch.rand(8, 9, generator=torch.Generator().manual_seed(2)) < 0.3
    exact = layer(x, starts=starts, exact=True)
    wanted = gradients(exact, [x, *layer.parameters()])
    monkeypatch.setattr(Recurrent, "_steps", None)
    found = layer(x, starts=starts)
    torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-5)
    for a, b in zip(wanted, gradients(found, [x, *layer.parameters()]), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["gru", "lstm, projection", "rnn_relu"])
def test_a_layer_takes_it_where_there_is_enough_to_do(name: str) -> None:
    layer = made(VARIANTS[name], hidden=600)
    with torch.no_grad():
        layer.hidden_proj.weight.mul_(0.1)  # else a sum of 600 would multiply what rounding left
    x = torch.randn(8, 9, D, generator=torch.Generator().manual_seed(1))
    assert layer.kernel_for(x) == "fused"
    torch.testing.assert_close(layer(x)[0], layer(x, exact=True)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {"cell": "lstm"},
        {"cell": "lstm", "projection": 64},
        {"cell": "lstm", "peephole": True},
        {"cell": "lstm_1997", "peephole": True, "projection": 9},
        {"cell": "gru"},
    ],
)
def test_every_kernel_continues_the_state_of_the_fused_one(settings: dict[str, Any]) -> None:
    """With weights in bfloat16, its c is float32 beside h in bfloat16."""
    torch.manual_seed(seed := random.randrange(2**32))
    hidden, rows = random.randrange(65, 200), random.randrange(1, 4)
    layer = made(settings, hidden).bfloat16()
    x = torch.randn(rows, 5 + recurrent_kernels.programs.MINIMUM_ELEMENTS // hidden, D).bfloat16()
    starts = torch.zeros(x.shape[:2], dtype=torch.bool)  # with starts, a plain LSTM takes the fused kernel
    with torch.no_grad():
        _, state = layer(x, starts=starts)
        assert state[-1].dtype == (torch.float32 if len(state) == 2 else torch.bfloat16)
        attend = torch.rand(rows, 3) < 0.6
        for given in ({}, {"exact": True}, {"attend": attend}, {"starts": ~attend}):
            outputs, after = layer(x[:, :3], state, **given)
            wide, wide_after = (
                made(settings, hidden)
                .bfloat16()
                .float()(x[:, :3].float(), tuple(part.float() for part in state), **given)
            )
            assert outputs.dtype == torch.bfloat16, (seed, given)
            found, wanted = (outputs, *after), (wide, *wide_after)
            for part, whole in zip(found, wanted, strict=True):
                assert (part.float() - whole).norm() < 0.03 * whole.norm() + 0.05, (seed, given)


def test_whole_sequences_take_the_fused_state_on_unchanged() -> None:
    layer = made({"cell": "lstm", "projection": 9}, hidden=600).bfloat16()
    x = torch.randn(2, 40, D, generator=torch.Generator().manual_seed(1)).bfloat16()
    state = tuple(torch.randn(2, n, generator=torch.Generator().manual_seed(2)) for n in layer.state_dims)
    state = (state[0].bfloat16(), state[1])
    assert layer.kernel_for(x) == "fused"
    with torch.no_grad():
        found = layer(x, state)
        assert torch.equal(found[1][1], layer._fused(x, state, layer.hidden_proj.weight)[1][1])
