"""Attention by blocks against attention written out: value, gradients, masks of keys, what dropout drops."""

from __future__ import annotations

import pytest
import torch
from tests.nn.fused_cases import agree, both_dtypes, draw
from torch.nn import functional as F

from wordloom.kernels import programs
from wordloom.nn import fused

pytestmark = pytest.mark.skipif(
    not programs.ready(), reason="no OpenMP runtime or no numba: nothing is fused"
)


@pytest.fixture(autouse=True)
def _every_size(monkeypatch):
    monkeypatch.setattr(programs, "MINIMUM_ELEMENTS", 0)
    monkeypatch.setattr(fused, "has_amx", lambda: False)  # there PyTorch's kernel serves bfloat16


blocked = pytest.mark.skipif(not programs.sgemm(), reason="PyTorch was built without MKL")


def attended(q, k, v):
    """By PyTorch; q [B, T, H, E], k and v [B, T, K, E]."""
    heads = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(*heads, is_causal=True, scale=0.3, enable_gqa=True)


def test_causal_attention_by_products_of_our_own(monkeypatch):
    """Around the edges of blocks of queries, of panels of columns and of vectors; T also of odd length."""
    monkeypatch.setattr(fused, "attention_products", lambda head_dim: 0)
    for dtype in (torch.float32, torch.bfloat16):
        for shape in ((1, 1, 1, 1, 16), (2, 5, 4, 2, 32), (1, 65, 4, 1, 80), (2, 150, 6, 2, 64)):
            check_causal_attention(dtype, shape, scale=0.3)  # sums are longer than in the test below


@blocked
@both_dtypes
@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1, 3), (2, 5, 4, 2, 8), (2, 64, 3, 3, 6), (1, 65, 4, 1, 16), (2, 150, 6, 2, 5)]
)
def test_causal_attention(monkeypatch, dtype, shape):
    monkeypatch.setattr(fused, "attention_products", lambda head_dim: programs.sgemm())
    check_causal_attention(dtype, shape)


def check_causal_attention(dtype, shape, scale=1.0):
    B, T, H, K, E = shape  # T around the size of a block
    sizes = ((B, T, H, E), (B, T, K, E), (B, T, K, E))
    inputs = [draw(*size, dtype=dtype, seed=seed, scale=scale) for seed, size in enumerate(sizes)]

    def fast(*inputs):
        heads = [x.transpose(1, 2) for x in inputs]
        assert fused.attention_fits(*heads)
        return fused.attention(*heads, scale=0.3, is_causal=True)

    agree(fast, attended, inputs, dtype, "Attention")


def keys_of(B, S, how):
    """[B, S] which keys may be seen: padding behind, holes, none at all of the last text."""
    numbers = torch.arange(S)
    lengths = torch.tensor([S, *((5 * i) % S for i in range(1, B))])[:, None]
    keys = numbers < lengths if how == "padding" else (numbers * 7 + lengths) % 3 > 0
    keys[-1] &= how != "none"
    return keys


def weights_of(q, k, keys, *, is_causal, scale):
    """softmax(q k^T scale), written out: [B, H, T, S], zeros where there is nothing to see."""
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    seen = seen.tril() if is_causal else seen
    seen = seen if keys is None else seen & keys[:, None, None]
    scores = (q @ k.transpose(-2, -1) * scale).masked_fill(~seen, -1e30)
    return scores.softmax(-1).masked_fill(~seen, 0.0)


@blocked
@both_dtypes
@pytest.mark.parametrize("own", [True, False], ids=["own products", "sgemm"])
@pytest.mark.parametrize("shape", [(3, 5, 7, 4, 2, 16), (2, 33, 70, 2, 2, 32), (2, 70, 17, 3, 1, 16)])
def test_attention_over_keys_that_may_be_seen(monkeypatch, dtype, own, shape):
    """Queries and keys of unlike numbers, each kind of mask; causal where they are alike."""
    B, T, S, H, K, E = shape
    monkeypatch.setattr(fused, "attention_products", lambda head_dim: 0 if own else programs.sgemm())
    for how, is_causal in (("all", False), ("padding", False), ("holes", False), ("none", False),
                           ("padding", True), ("holes", True)):  # fmt: skip
        S = T if is_causal else S
        sizes = ((B, T, H, E), (B, S, K, E), (B, S, K, E))
        inputs = [draw(*size, dtype=dtype, seed=seed, scale=0.7) for seed, size in enumerate(sizes)]
        keys = None if how == "all" else keys_of(B, S, how)

        def fast(*inputs, keys=keys, is_causal=is_causal):
            heads = [x.transpose(1, 2) for x in inputs]
            assert fused.attention_fits(*heads, is_causal=is_causal)
            return fused.attention(*heads, scale=0.3, is_causal=is_causal, keys=keys)

        def plain(*inputs, keys=keys, is_causal=is_causal):
            q, k, v = (x.transpose(1, 2) for x in inputs)
            k, v = (x.repeat_interleave(H // K, dim=1) for x in (k, v))
            return weights_of(q, k, keys, is_causal=is_causal, scale=0.3) @ v

        agree(fast, plain, inputs, dtype, "Attention")


@blocked
@pytest.mark.parametrize("is_causal", [False, True])
def test_dropped_attention_is_that_of_the_weights_left(monkeypatch, is_causal):
    """What was dropped is read off values that are unit vectors; the gradients are those of that mask."""
    monkeypatch.setattr(fused, "attention_products", lambda head_dim: 0)
    B, T, H, E, p = 2, 48, 3, 48, 0.25
    q, k = (draw(B, H, T, E, seed=seed).detach().requires_grad_() for seed in range(2))
    v = torch.eye(T).expand(B, H, T, T).contiguous().requires_grad_()
    keys = keys_of(B, T, "padding")

    def dropped():
        torch.manual_seed(5)
        return fused.attention(q, k, v, scale=0.2, is_causal=is_causal, keys=keys, dropout=p)

    out = dropped()
    weights = weights_of(q, k, keys, is_causal=is_causal, scale=0.2)
    left = (out != 0).float() / (1 - p)  # values are unit vectors: an output is its query's row of weights
    torch.testing.assert_close(out, weights * left, atol=1e-6, rtol=1e-5)
    share = (out != 0).sum() / (weights > 0).sum()
    assert abs(share - (1 - p)) < 0.03
    assert torch.equal(out, dropped())
    grad = draw(B, H, T, T, seed=3).detach()
    found = torch.autograd.grad(out, (q, k, v), grad)
    expected = torch.autograd.grad(weights * left @ v, (q, k, v), grad)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


@blocked
def test_causal_attention_reads_any_layout_of_heads():
    q, k, v = (draw(2, 3, 70, 8, seed=seed) for seed in range(3))  # heads before time, as a cache keeps them
    wide = draw(2, 3, 70, 16, seed=1)
    for keys in (k, wide[..., :8], wide[..., 8:]):
        assert fused.attention_fits(q, keys.detach(), v)
        out = fused.attention(q, keys, v, scale=0.5, is_causal=True)
        expected = F.scaled_dot_product_attention(q, keys, v, is_causal=True, scale=0.5)
        torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    assert not fused.attention_fits(q, wide[..., ::2].detach(), v)
    assert not fused.attention_fits(q[:, :, :1], k, v, is_causal=True)  # a query that stands after the keys


@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 16), (2, 7, 4, 2, 32), (3, 65, 6, 1, 48), (1, 131, 3, 3, 64)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_pytorch_computes_forward_and_we_backward_on_a_cpu_with_amx(monkeypatch, shape, is_causal):
    monkeypatch.setattr(fused, "has_amx", lambda: True)
    B, T, H, K, E = shape
    sizes = ((B, T, H, E), (B, T, K, E), (B, T, K, E))
    inputs = [draw(*size, dtype=torch.bfloat16, seed=seed, scale=0.5) for seed, size in enumerate(sizes)]
    q, k, v = (x.transpose(1, 2) for x in inputs)
    assert fused.attention_fits(q, k, v, is_causal=is_causal)
    flash = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=0.3, enable_gqa=True)
    assert torch.equal(fused.attention(q, k, v, scale=0.3, is_causal=is_causal), flash)

    def fast(*inputs):
        heads = [x.transpose(1, 2) for x in inputs]
        return fused.attention(*heads, scale=0.3, is_causal=is_causal)

    def plain(*inputs):
        q, k, v = (x.transpose(1, 2) for x in inputs)
        k, v = (x.repeat_interleave(H // K, dim=1) for x in (k, v))
        return weights_of(q, k, None, is_causal=is_causal, scale=0.3) @ v

    agree(fast, plain, inputs, torch.bfloat16, "Attention")


def test_pytorch_keeps_what_it_computes_faster_with_amx(monkeypatch):
    monkeypatch.setattr(fused, "has_amx", lambda: True)
    keys, many, more = (draw(1, 1, S, 64, dtype=torch.bfloat16) for S in (256, 257, 1025))
    assert fused.attention_fits(keys, keys, keys)
    assert not fused.attention_fits(many, many, many)
    assert fused.attention_fits(many, many, many, is_causal=True)
    assert not fused.attention_fits(more, more, more, is_causal=True)
    assert fused.attention_fits(more, more, more, is_causal=True, dropout=0.1)  # PyTorch's has no dropout
    with torch.no_grad():
        assert not fused.attention_fits(keys, keys, keys)
        assert fused.attention_fits(keys.float(), keys.float(), keys.float())


@blocked
def test_few_queries_without_a_gradient_go_to_pytorch():
    """As of rows that write a token each: nothing of many keys is laid out for one product."""
    q, k = draw(2, 4, 1, 16), draw(2, 4, 64, 16)
    assert fused.attention_fits(q, k, k)
    with torch.no_grad():
        assert not fused.attention_fits(q, k, k)
        assert fused.attention_fits(q, k[:, :, :8], k[:, :, :8])
    assert not fused.attention_fits(q.detach(), k.detach(), k.detach())
    assert fused.attention_fits(k.detach(), k.detach(), k.detach())


def test_what_is_not_alike_goes_to_pytorch():
    q = draw(2, 4, 6, 8).detach()
    once, heads, wide = q[:1], draw(2, 3, 6, 8).detach(), draw(2, 4, 6, 9).detach()
    lying_over = draw(2, 4, 1, 8).detach().expand(2, 4, 6, 8)
    for k, v in (
        (once, once),
        (heads, heads),
        (q, wide),
        (wide, wide),
        (q, q[:, :2]),
        (lying_over, q),
        (q, lying_over),
    ):
        assert not fused.attention_fits(q, k, v)
    assert not fused.attention_fits(q[:1], q, q)  # and k's batch is not broadcast over either
    single = draw(1, 2, 4, 1).detach().permute(0, 1, 3, 2)  # one row whose step is 1
    assert not fused.attention_fits(single, single, single)


@blocked
def test_large_scores_neither_overflow_nor_lose_the_largest():
    q, k, v = (draw(1, 2, 80, 4, seed=seed, scale=200.0) for seed in range(3))
    out = fused.attention(q, k, v, scale=1.0, is_causal=True)
    expected = F.scaled_dot_product_attention(*(x.double() for x in (q, k, v)), is_causal=True, scale=1.0)
    torch.testing.assert_close(out.double(), expected, atol=1e-2, rtol=1e-4)
    assert fused.attention(q.detach().fill_(torch.nan), k, v, scale=1.0, is_causal=True).isnan().all()
