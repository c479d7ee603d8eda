"""Chunked linear cross-entropy against torch's, value and gradients."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from wordloom.nn import head
from wordloom.nn.head import linear_cross_entropy


@pytest.mark.parametrize("chunk", [1, 7 * 11, 10**9])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("ignored", [0, 5, 20])
def test_equals_torch(monkeypatch, chunk, bias, ignored):
    monkeypatch.setattr(head, "CHUNK_BYTES", 4 * chunk)
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(20, 6, generator=g, requires_grad=True)
    weight = torch.randn(11, 6, generator=g, requires_grad=True)
    b = torch.randn(11, generator=g, requires_grad=True) if bias else None
    targets = torch.randint(0, 11, (20,), generator=g)
    targets[:ignored] = -100
    inputs = [x for x in (hidden, weight, b) if x is not None]
    expected = F.cross_entropy(F.linear(hidden, weight, b), targets, ignore_index=-100, reduction="sum")
    total = linear_cross_entropy(hidden, weight, b, targets)
    torch.testing.assert_close(total, expected)
    for a, e in zip(
        torch.autograd.grad(total / 3, inputs), torch.autograd.grad(expected / 3, inputs), strict=True
    ):
        torch.testing.assert_close(a, e)


def test_frozen_head_and_no_gradient():
    hidden = torch.randn(4, 6, requires_grad=True)
    weight = torch.randn(11, 6)
    targets = torch.randint(0, 11, (4,))
    total = linear_cross_entropy(hidden, weight, None, targets)
    total.backward()
    assert hidden.grad is not None
    with torch.no_grad():
        assert torch.equal(linear_cross_entropy(hidden, weight, None, targets), total)


def test_without_rows_all_inputs_have_gradients_of_zero():
    hidden = torch.randn(0, 6, requires_grad=True)
    weight, bias = torch.randn(11, 6, requires_grad=True), torch.randn(11, requires_grad=True)
    linear_cross_entropy(hidden, weight, bias, torch.zeros(0, dtype=torch.int64)).backward()
    for given in (hidden, weight, bias):
        assert torch.equal(given.grad, torch.zeros_like(given))


def test_a_second_derivative_is_refused_not_wrong():
    hidden, weight = torch.randn(5, 6, requires_grad=True), torch.randn(11, 6, requires_grad=True)
    loss = linear_cross_entropy(hidden, weight, None, torch.randint(0, 11, (5,)))
    for grad in torch.autograd.grad(loss.square(), (hidden, weight), create_graph=True):
        with pytest.raises(RuntimeError, match="once_differentiable"):
            grad.sum().backward(retain_graph=True)


def test_autocast_runs_the_products_low_and_returns_float32():
    hidden = torch.randn(40, 16, requires_grad=True)
    weight = torch.randn(50, 16, requires_grad=True)
    targets = torch.randint(0, 50, (40,))
    exact = linear_cross_entropy(hidden, weight, None, targets)
    with torch.autocast("cpu", torch.bfloat16):
        low = linear_cross_entropy(hidden, weight, None, targets)
    low.backward()
    assert low.dtype == torch.float32
    assert weight.grad.dtype == torch.float32
    assert low.item() != exact.item()
    assert low.item() == pytest.approx(exact.item(), rel=0.02)
