"""What the tests of one pass over memory share: drawn tensors, and how they are compared."""

from __future__ import annotations

import pytest
import torch

TOLERANCE = {torch.float32: {"atol": 1e-6, "rtol": 1e-5}, torch.bfloat16: {"atol": 1e-2, "rtol": 1e-2}}
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale
    return x.to(dtype).requires_grad_()


def agree(fast, plain, inputs, dtype, program):
    """``fast()`` ran ``program`` and equals ``plain()`` in float64, in value and in every gradient."""
    y = fast(*inputs)
    assert program in type(y.grad_fn).__name__ or program in str(y.grad_fn.next_functions)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    expected = plain(*exact)
    grad = draw(*y.shape, dtype=dtype, seed=9).detach()
    assert y.dtype == dtype
    torch.testing.assert_close(y.double(), expected, **TOLERANCE[dtype])
    grads = torch.autograd.grad(y, inputs, grad)
    for g, x, e in zip(grads, inputs, torch.autograd.grad(expected, exact, grad.double()), strict=True):
        assert g.dtype == x.dtype
        torch.testing.assert_close(g.double(), e, **TOLERANCE[dtype])
