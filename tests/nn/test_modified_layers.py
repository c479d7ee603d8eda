"""Fast paths call the layers that were modified or replaced, and say so in one debug line."""

from __future__ import annotations

import logging

import pytest
import torch
from tests.nn.adapters import WAYS, Doubled, matrix
from tests.nn.test_recurrent import VARIANTS
from torch import nn
from torch.nn.modules import module as torch_module
from torch.nn.utils import prune

from wordloom.errors import ConfigError
from wordloom.kernels import acceptance, programs
from wordloom.nn import Linear, RMSNorm, fused, linear
from wordloom.nn.recurrent import Recurrent
from wordloom.nn.unmodified import modification

B, T, D, H = 3, 5, 7, 6
LAYERS = ("input_proj", "hidden_proj", "state_proj")


@pytest.fixture
def lines(caplog):
    """What a call says about paths that it does not take."""
    acceptance._log_once.cache_clear()
    caplog.set_level(logging.DEBUG, "wordloom")
    return lambda: [r.getMessage() for r in caplog.records if "calls the modules" in r.getMessage()]


def made(settings, **more) -> Recurrent:
    layer = Recurrent(dim=D, hidden_dim=H, **settings, **more)
    torch.manual_seed(0)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, 0.0, 0.4)
    return layer


@pytest.mark.parametrize("fits", [True, False], ids=["our kernel", "torch's"])
@pytest.mark.parametrize("name", VARIANTS)
def test_a_recurrent_layer_calls_its_modified_projections(name, fits, monkeypatch, lines):
    monkeypatch.setattr(programs, "MINIMUM_ELEMENTS", 0 if fits else 1 << 40)
    x, attend = torch.randn(B, T, D), torch.rand(B, T) < 0.7
    for which in LAYERS:
        for how, modify in WAYS.items():
            layer, twin = made(VARIANTS[name]), made(VARIANTS[name])
            if getattr(layer, which) is None:
                continue
            modify(layer, which)
            with torch.no_grad():
                getattr(twin, which).weight.copy_(matrix(getattr(layer, which)))
                if which == "input_proj" and how == "hook" and twin.input_proj.bias is not None:
                    twin.input_proj.bias.mul_(2)  # the hook doubles all that comes out
            expected, after = twin(x, attend=attend, exact=True)
            found, state = layer(x, attend=attend)
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5, msg=f"{which}, {how}")
            torch.testing.assert_close(state, after, atol=1e-5, rtol=1e-5)
            found.square().sum().backward()
            assert all(p.grad is not None and p.grad.any() for p in getattr(layer, which).parameters())
    assert all("Recurrent calls the modules: " in line for line in lines())
    assert len(lines()) == len(WAYS)


def test_weight_drop_refuses_a_modified_layer():
    layer = made({"cell": "lstm"}, weight_drop=0.5)
    WAYS["low rank"](layer, "hidden_proj")
    with pytest.raises(ConfigError, match=r"weight_drop needs hidden_proj's own matrix.*LowRank instead of"):
        layer(torch.randn(B, T, D))
    layer.eval()(torch.randn(B, T, D))


def test_a_recurrent_subclass_is_its_own_to_compute(monkeypatch):
    class Halved(Recurrent):
        def _step(self, wx, state, u):
            return tuple(part / 2 for part in super()._step(wx, state, u))

    monkeypatch.setattr(programs, "MINIMUM_ELEMENTS", 0)
    layer, x = made({"cell": "rnn_tanh"}), torch.randn(B, 1, D)
    expected = layer(x)[0] / 2
    layer.__class__ = Halved
    torch.testing.assert_close(layer(x)[0], expected)


def test_products_look_at_the_types_of_both_factors(monkeypatch, lines):
    monkeypatch.setattr(linear, "_onednn_is_faster", lambda: True)
    monkeypatch.setattr(linear, "LEAST_PRODUCTS", 0)
    monkeypatch.setattr(linear, "LEAST_ROWS", 0)
    layer, x = Linear(D, H), torch.randn(B, D)
    expected = 2 * x @ layer.weight.T + layer.bias
    layer.weight = Doubled(layer.weight.detach())
    torch.testing.assert_close(layer(x), expected)
    assert not linear.by_onednn(x, layer.weight)
    assert not linear.by_onednn(x, layer.weight.to_sparse())
    monkeypatch.setattr(linear, "_has_kernel", lambda dtype: False)
    low = layer(x.bfloat16()) if layer.bfloat16() else None
    torch.testing.assert_close(low.float(), expected, atol=0.05, rtol=0.05)
    assert lines()[0] == "Linear calls the modules: a factor is a Doubled"


def test_what_counts_as_a_modification():
    assert modification(Linear(D, H), Linear) == modification(None, Linear) == ""
    assert modification(nn.Linear(D, H), Linear) == "torch.nn.modules.linear.Linear instead of Linear"
    for name, value in (("forward", torch.relu), ("weight", torch.ones(H, D)), ("bias", torch.ones(H))):
        layer = Linear(D, H)
        if name != "forward":
            delattr(layer, name)
        setattr(layer, name, value)
        assert modification(layer, Linear) == f"Linear.{name} is replaced"
    for hook in (
        "forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook",
    ):  # fmt: skip
        layer = Linear(D, H)
        handle = getattr(layer, f"register_{hook}")(lambda *_given: None)
        assert modification(layer, Linear) == "Linear has hooks"
        handle.remove()
        assert modification(layer, Linear) == ""
    for hook in (
        "forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook",
    ):  # fmt: skip
        handle = getattr(torch_module, f"register_module_{hook}")(lambda *_given: None)
        try:
            assert modification(Linear(D, H), Linear) == "a hook is set on all modules"
        finally:
            handle.remove()
    pruned = Linear(D, H)
    prune.random_unstructured(pruned, "weight", 0.5)
    normed = torch.nn.utils.parametrizations.weight_norm(Linear(D, H))
    assert modification(pruned, Linear)
    assert modification(normed, Linear)


def test_norms_and_rotations_look_at_every_tensor(monkeypatch, lines):
    if not programs.ready():
        pytest.skip("no programs on this machine")
    monkeypatch.setattr(programs, "MINIMUM_ELEMENTS", 0)
    norm, x = RMSNorm(D), torch.randn(B, D)
    expected = norm(x)
    norm.weight = Doubled(norm.weight.detach())
    assert "RMSNorm" not in type(norm(x.requires_grad_()).grad_fn).__name__
    torch.testing.assert_close(norm(x), expected)
    assert lines() == ["a fused layer calls the modules: a tensor is a Doubled"]
    with pytest.raises(RuntimeError):  # of another size: the program would read past the weight
        fused.rms_norm(x, torch.ones(D - 2), 1e-6)
    heads = torch.randn(2, 3, 5, 8)
    cos, sin = torch.randn(2, 1, 5, 4)
    wanted = fused.rotate(heads.double(), cos, sin).float()
    for narrow in (torch.float64, torch.bfloat16):
        found = fused.rotate(heads, cos.to(narrow), sin.to(narrow))
        torch.testing.assert_close(found, wanted, atol=0.05, rtol=0.05)
