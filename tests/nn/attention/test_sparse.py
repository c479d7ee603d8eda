"""The compiled kernel of sparse attention: dropout, and what it does not take.

``tests/kernels/cases.py`` compares its values and gradients with a dense mask at random sizes.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from wordloom.nn.attention import Pattern
from wordloom.nn.attention.sparse import sparse_attention, sparse_attention_fits


def test_dropped_weights_scale_the_others_and_have_gradients() -> None:
    torch.manual_seed(0)
    pattern, segments = Pattern.parse("band:40", causal=True), torch.tensor([[0, 0, 200]])
    q, k = torch.zeros(2, 1, 2, 200, 16).unbind()
    v = torch.ones(1, 2, 200, 16, requires_grad=True)
    settings = {"pattern": pattern, "segments": segments, "scale": 1.0}
    found = sparse_attention(q, k, v, dropout=0.25, **settings)
    assert abs(float(found.detach().mean()) - 1) < 0.02  # of equal weights, some are 0 and the others 4/3
    kept = found.detach()[0, :, -1] * 0.75 * 40
    torch.testing.assert_close(kept, kept.round(), atol=1e-3, rtol=0)
    (grad,) = torch.autograd.grad(found.sum(), v)
    assert abs(float(grad.sum()) / float(found.detach().sum()) - 1) < 1e-4  # the same weights are dropped
    torch.manual_seed(5)
    first = sparse_attention(q, k, v, dropout=0.25, **settings)
    torch.manual_seed(5)
    assert torch.equal(first, sparse_attention(q, k, v, dropout=0.25, **settings))
    assert not torch.equal(first, sparse_attention(q, k, v, dropout=0.25, **settings))


def test_gradients_with_dropout_are_those_of_differences() -> None:
    torch.manual_seed(1)
    pattern, segments = Pattern.parse("band:4+global:2+random:2:0", causal=False), torch.tensor([[0, 0, 9]])
    q, k, v = (torch.randn(1, 1, 9, 4, requires_grad=True) for _ in range(3))

    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch.manual_seed(3)  # the same weights are dropped
        out = sparse_attention(q, k, v, pattern=pattern, segments=segments, scale=0.7, dropout=0.3)
        return (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum()

    grads = torch.autograd.grad(loss(q, k, v), (q, k, v))
    for i, grad in enumerate(grads):
        numeric = torch.zeros_like(grad)
        for at in range(grad.numel()):
            step = torch.zeros(grad.numel())
            step[at] = 1e-2
            moved = [x.detach() + (step.view_as(x) if j == i else 0) for j, x in enumerate((q, k, v))]
            back = [x.detach() - (step.view_as(x) if j == i else 0) for j, x in enumerate((q, k, v))]
            numeric.view(-1)[at] = (loss(*moved) - loss(*back)) / 2e-2
        torch.testing.assert_close(grad, numeric, atol=2e-3, rtol=2e-2)


def test_what_the_kernel_does_not_take_is_left_to_the_modules() -> None:
    q = torch.randn(1, 2, 5, 8)
    assert sparse_attention_fits(q, q, q)
    assert not sparse_attention_fits(q.double(), q.double(), q.double())
    assert not sparse_attention_fits(q, q[:, :, :4], q[:, :, :4])
    assert not sparse_attention_fits(q[..., ::2], q[..., ::2], q[..., ::2])
    assert not sparse_attention_fits(q, q.bfloat16(), q)
    assert not sparse_attention_fits(q.expand(2, 2, 5, 8)[:0], q[:0], q[:0])
    one = torch.nn.Parameter(F.pad(q, (0, 0)))
    assert sparse_attention_fits(one, q, q)
