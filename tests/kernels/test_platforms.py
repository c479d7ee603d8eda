"""Plain expressions run where kernels cannot: other systems, no OpenMP, no numba, torch.compile."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch
from torch import nn

from wordloom.kernels import programs
from wordloom.nn import RMSNorm, fused
from wordloom.nn.recurrent import Recurrent


@pytest.fixture
def fresh(monkeypatch):
    """``programs.ready`` as in a new process, restored afterwards."""
    for cached in (programs.ready, programs._openmp, programs.sgemm):
        cached.cache_clear()
    monkeypatch.setattr(programs, "MINIMUM_ELEMENTS", 0)
    yield monkeypatch
    monkeypatch.undo()
    for cached in (programs.ready, programs._openmp, programs.sgemm):
        cached.cache_clear()


def without_linux(monkeypatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")


def without_openmp(monkeypatch) -> None:
    def missing(*_given, **_options):
        raise OSError("libgomp.so.1: cannot open shared object file")

    monkeypatch.setattr(programs.ctypes, "CDLL", missing)


def without_numba(monkeypatch) -> None:
    real = importlib.import_module

    def no_kernels(name, *more):
        if name.startswith("wordloom.kernels."):
            raise ImportError("No module named 'numba'")
        return real(name, *more)

    monkeypatch.setattr(programs.importlib, "import_module", no_kernels)


def layers() -> dict[str, torch.Tensor]:
    """Values and gradients of one layer of each family, by the path that the sizes and the machine choose."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 40, 32, generator=generator).requires_grad_()
    heads = x.view(3, 40, 2, 16).transpose(1, 2)  # [B, H, T, E]
    angle = torch.rand(1, 40, 8, generator=generator)
    layer = Recurrent(cell="gru", dim=32, hidden_dim=24)
    for p in layer.parameters():
        nn.init.normal_(p, 0.0, 0.2, generator=generator)
    norm = RMSNorm(32)
    nn.init.ones_(norm.weight)
    targets = torch.arange(120) % 32
    loss, gradient = fused.softmax_error(x.detach().flatten(0, 1).clone(), targets, ignore_index=-100)
    outputs = {
        "gelu": fused.gelu_tanh(x), "swiglu": fused.swiglu(x, x), "norm": norm(x),
        "rotation": fused.rotate(heads, angle.cos(), angle.sin()), "recurrent": layer(x)[0],
    }  # fmt: skip
    gradients = {f"d {k}": torch.autograd.grad(v.square().sum(), x)[0] for k, v in outputs.items()}
    return {**outputs, **gradients, "loss": loss, "d loss": gradient}


@pytest.mark.parametrize("missing", [without_linux, without_openmp, without_numba])
def test_the_plain_expressions_take_over(missing, fresh):
    if not programs.ready():
        pytest.skip("no kernels on this machine")
    expected = layers()
    assert "GeluTanh" in type(expected["gelu"].grad_fn).__name__
    programs.ready.cache_clear()
    programs._openmp.cache_clear()
    missing(fresh)
    assert not programs.ready()
    assert programs.sgemm() == 0
    found = layers()
    assert "GeluTanh" not in type(found["gelu"].grad_fn).__name__
    heads = torch.randn(2, 2, 64, 16)
    assert not fused.attention_fits(heads, heads, heads)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=1e-5, rtol=1e-4, msg=name)


def test_under_torch_compile_the_plain_expressions_are_traced(fresh):
    norm = RMSNorm(32)
    nn.init.ones_(norm.weight)

    def block(x: torch.Tensor) -> torch.Tensor:
        return fused.swiglu(norm(x), fused.gelu_tanh(x))

    x = torch.randn(4, 32, generator=torch.Generator().manual_seed(0))
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)  # a kernel would break the graph
    torch.testing.assert_close(compiled(x), block(x), atol=1e-5, rtol=1e-5)
