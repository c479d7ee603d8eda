"""By whichever routine a product is made, it is PyTorch's own number."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from wordloom.models import config_from, skeleton
from wordloom.nn import Attention, Linear, linear, set_attention_backend
from wordloom.nn.attention.visibility import Visibility
from wordloom.nn.head import linear_cross_entropy

both = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])


@pytest.fixture
def bare(monkeypatch):
    """A machine where PyTorch has no kernel for 16-bit products."""
    monkeypatch.setattr(linear, "_has_kernel", lambda dtype: False)
    monkeypatch.setattr(linear, "LEAST_ROWS", 0)


def rounded(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x.detach().to(dtype).double().requires_grad_()


@both
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("autocast", [True, False])
def test_value_and_gradients_are_those_of_rounded_factors(bare, dtype, bias, autocast):
    torch.manual_seed(0)
    layer, x = Linear(24, 10, bias=bias), torch.randn(2, 5, 24, requires_grad=True)
    grad = torch.randn(2, 5, 10).to(dtype)
    if not autocast:
        layer, x = layer.to(dtype), x.detach().to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=dtype, enabled=autocast):
        y = layer(x)
    assert "_Product" in type(y.grad_fn).__name__
    assert y.dtype == dtype
    inputs = [x, *layer.parameters()]
    exact = [rounded(t, dtype) for t in inputs]
    expected = F.linear(*exact)
    tolerance = {"atol": 2e-2, "rtol": 1e-2}
    torch.testing.assert_close(y.double(), expected, **tolerance)
    grads = torch.autograd.grad(y, inputs, grad)
    for g, t, e in zip(grads, inputs, torch.autograd.grad(expected, exact, grad.double()), strict=True):
        assert g.dtype == t.dtype
        torch.testing.assert_close(g.double(), e, **tolerance)


@both
def test_inputs_in_the_dtype_of_autocast_are_widened_too(bare, dtype):
    torch.manual_seed(0)
    layer, x = Linear(24, 10), torch.randn(7, 24).to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        y = layer(x)
    assert "_Product" in type(y.grad_fn).__name__
    exact = [rounded(t, dtype) for t in (x, layer.weight, layer.bias)]
    torch.testing.assert_close(y.double(), F.linear(*exact), atol=2e-2, rtol=1e-2)
    y.float().sum().backward()
    assert (x.grad.dtype, layer.weight.grad.dtype) == (dtype, torch.float32)


@both
def test_it_is_what_pytorch_computes(bare, monkeypatch, dtype):
    torch.manual_seed(0)
    layer, x = Linear(64, 32).to(dtype), torch.randn(7, 64).to(dtype)
    widened = layer(x)
    monkeypatch.setattr(linear, "_has_kernel", lambda dtype: True)
    own = layer(x)
    # both round the same sum, made in another order: they part by a unit in the last place at most
    torch.testing.assert_close(widened, own, atol=0, rtol=2 * torch.finfo(dtype).eps)


def test_float32_and_machines_with_a_kernel_are_left_alone(monkeypatch):
    layer, x = Linear(4, 4), torch.randn(2, 4)
    assert "_Product" not in type(layer(x).grad_fn).__name__
    monkeypatch.setattr(linear, "_has_kernel", lambda dtype: True)
    assert "_Product" not in type(layer.bfloat16()(x.bfloat16()).grad_fn).__name__


def test_the_loss_over_a_widened_head(bare):
    torch.manual_seed(0)
    hidden, weight = torch.randn(6, 16, requires_grad=True), torch.randn(50, 16, requires_grad=True)
    targets = torch.tensor([3, 1, -100, 49, 0, 7])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = linear_cross_entropy(hidden, weight, None, targets)
    exact = [rounded(t, torch.bfloat16) for t in (hidden, weight)]
    expected = F.cross_entropy(F.linear(*exact), targets, ignore_index=-100, reduction="sum")
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)  # the logits were never rounded
    for g, e in zip(
        torch.autograd.grad(loss, (hidden, weight)), torch.autograd.grad(expected, exact), strict=True
    ):
        torch.testing.assert_close(g.double(), e, atol=2e-2, rtol=2e-2)


@pytest.fixture
def onednn(monkeypatch):
    """A machine where oneDNN's float32 products are the faster ones."""
    if not torch._C._has_mkldnn:
        pytest.skip("this build of PyTorch has no oneDNN")
    monkeypatch.setattr(linear, "_onednn_is_faster", lambda: True)
    monkeypatch.setattr(linear, "LEAST_PRODUCTS", 0)
    monkeypatch.setattr(linear, "LEAST_ROWS", 0)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(2, 5, 24), (7, 24), (24,)])
def test_value_and_gradients_by_onednn(onednn, shape, bias):
    torch.manual_seed(0)
    layer, x = Linear(24, 10, bias=bias), torch.randn(shape, requires_grad=True)
    y = layer(x)
    assert "_Product" in type(y.grad_fn).__name__
    inputs = [x, *layer.parameters()]
    exact = [t.detach().double().requires_grad_() for t in inputs]
    expected = F.linear(*exact)
    torch.testing.assert_close(y.double(), expected, atol=1e-5, rtol=1e-5)
    grad = torch.randn_like(y)
    grads = torch.autograd.grad(y, inputs, grad)
    for g, e in zip(grads, torch.autograd.grad(expected, exact, grad.double()), strict=True):
        torch.testing.assert_close(g.double(), e, atol=1e-5, rtol=1e-5)


def test_a_frozen_weight_and_strided_rows_by_onednn(onednn):
    torch.manual_seed(0)
    layer = Linear(24, 10).requires_grad_(False)
    x = torch.randn(3, 24, 6).transpose(1, 2).requires_grad_()
    y = layer(x)
    torch.testing.assert_close(y, F.linear(x, layer.weight, layer.bias), atol=1e-5, rtol=1e-5)
    y.transpose(0, 1).sum().backward()  # a gradient whose rows are not dense
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand_as(x), atol=1e-5, rtol=1e-5)
    assert layer.weight.grad is None


def test_onednn_is_for_plain_float32_on_the_cpu(onednn):
    plain = torch.randn(4, 8)
    assert linear.by_onednn(plain, plain)
    assert not linear.by_onednn(plain.double(), plain.double())
    assert not linear.by_onednn(plain.bfloat16(), plain)
    assert not linear.by_onednn(plain.to("meta"), plain)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert Linear(8, 8)(plain).dtype == torch.bfloat16


def test_the_loss_over_a_head_by_onednn(onednn):
    torch.manual_seed(0)
    hidden, weight = torch.randn(6, 16, requires_grad=True), torch.randn(50, 16, requires_grad=True)
    targets = torch.tensor([3, 1, -100, 49, 0, 7])
    loss = linear_cross_entropy(hidden, weight, None, targets)
    exact = [t.detach().double().requires_grad_() for t in (hidden, weight)]
    expected = F.cross_entropy(F.linear(*exact), targets, ignore_index=-100, reduction="sum")
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for g, e in zip(
        torch.autograd.grad(loss, (hidden, weight)), torch.autograd.grad(expected, exact), strict=True
    ):
        torch.testing.assert_close(g.double(), e, atol=1e-5, rtol=1e-5)


def test_few_rows_and_factors_of_two_dtypes_are_left_to_pytorch(bare, monkeypatch):
    layer, x = Linear(8, 8).bfloat16(), torch.randn(3, 8).bfloat16()
    with pytest.raises(RuntimeError, match="same dtype"):
        Linear(8, 8)(x)
    monkeypatch.setattr(linear, "LEAST_ROWS", 4)
    assert "_Product" not in type(layer(x).grad_fn).__name__
    assert "_Product" in type(layer(x.repeat(2, 1)).grad_fn).__name__


def test_a_single_vector_has_gradients(bare):
    layer, x = Linear(4, 3).bfloat16(), torch.randn(4).bfloat16().requires_grad_()
    layer(x).float().sum().backward()
    assert (x.grad.shape, layer.weight.grad.shape) == ((4,), (3, 4))


def test_shapes_are_found_on_the_meta_device():
    config = config_from("llama", vocab_size=11, max_seq_len=8, dim=8, n_layers=1, n_heads=2, hidden_dim=8)
    for backend in ("auto", "exact"):
        model = skeleton(config)
        set_attention_backend(model, backend)
        assert model(torch.zeros(2, 5, dtype=torch.int64, device="meta")).shape == (2, 5, 11)


def test_masked_attention_is_widened_when_it_is_trained(bare, monkeypatch):
    torch.manual_seed(0)
    seen = []
    own = F.scaled_dot_product_attention
    monkeypatch.setattr(
        F,
        "scaled_dot_product_attention",
        lambda q, *args, **kw: (seen.append(q.dtype), own(q, *args, **kw))[1],
    )
    layer, x = Attention(dim=32, n_heads=4).bfloat16(), torch.randn(2, 9, 32).bfloat16()
    visibility = Visibility(documents=torch.randint(0, 2, (2, 9)))  # a dense mask
    layer(x, visibility=visibility).float().square().sum().backward()
    assert seen == [torch.float32]
    wide = Attention(dim=32, n_heads=4)
    wide.load_state_dict(layer.state_dict())
    wide(x.float(), visibility=visibility).square().sum().backward()
    for a, b in zip(layer.parameters(), wide.parameters(), strict=True):
        assert (a.grad.float() - b.grad).norm() < 0.03 * b.grad.norm()
