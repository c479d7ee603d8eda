"""Dropout: what it computes, by chance alone, and that a sample loses the same elements in any batch."""

from __future__ import annotations

import random
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from tests.kernels.cases import every_size, size
from tests.nn.fused_cases import both_dtypes, draw
from torch import Tensor

from wordloom.kernels import programs
from wordloom.nn import Attention, Visibility, fused
from wordloom.nn.attention import Pattern
from wordloom.nn.attention.layer import exact_attention
from wordloom.nn.attention.longformer import LongformerAttention
from wordloom.nn.attention.setting import patterns_of_layers
from wordloom.nn.attention.sparse import sparse_attention
from wordloom.nn.dropout import drop, dropout, row_seeds, samples_of_rows


@both_dtypes
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout(dtype, p):
    x = draw(300, 500, dtype=dtype)
    torch.manual_seed(3)
    y = dropout(x, p, True)
    assert "Dropout" in type(y.grad_fn).__name__
    (grad,) = torch.autograd.grad(y.sum(), x)
    kept, scale = y != 0, torch.tensor(1 / (1 - p))
    assert torch.equal(grad, (kept * scale).to(dtype))
    assert torch.equal(y, (x.float() * kept * scale).to(dtype))
    share, off = kept.double().mean(), (p * (1 - p) / x.numel()) ** 0.5
    assert abs(share - (1 - p)) < 5 * off
    torch.manual_seed(3)
    assert torch.equal(dropout(x, p, True), y)
    assert dropout(x, p, False) is x
    assert dropout(x, 0.0, True) is x
    assert not dropout(x, 1.0, True).any()


def test_what_is_dropped_is_dropped_by_chance_alone():
    """Neighbours, rows, bits of the place and other seeds tell nothing about it: 5 deviations at most."""
    torch.manual_seed(5)
    n, p = 1 << 20, 0.3
    ones, kept = torch.ones(n), []
    for rows in (1, 1, 1, 64, 64):  # of one draw, the seeds of all rows differ
        kept.append((drop(ones, p, row_seeds(rows)) > 0).double() - (1 - p))
    pairs = [(a, b) for i, a in enumerate(kept) for b in kept[:i]]
    pairs += [(a[step:], a[:-step]) for a in kept for step in (1, 2, 3, 4, 16, 32, 500, 1024, 1 << 16)]
    pairs += [(a[1:], b[:-1]) for a in kept for b in kept if a is not b]
    for a, b in pairs:
        assert abs((a * b).sum()) < 5 * p * (1 - p) * n**0.5
    places = torch.arange(n)
    for a in kept:
        assert abs(a.sum()) < 5 * (p * (1 - p) * n) ** 0.5
        for bit in range(20):
            assert abs(a[(places >> bit) & 1 == 1].sum()) < 5 * (p * (1 - p) * n / 2) ** 0.5


def random_tensor(rng: random.Random, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(rng.getrandbits(40))).to(dtype)


def test_the_kernel_drops_what_its_twin_drops(rng: random.Random) -> None:
    """The twin, in numpy, takes what the kernel does not: small tensors and other dtypes."""
    for _ in range(20):
        R, p = size(rng, 40), rng.choice([0.01, 0.1, 0.5, 0.9, 0.999])
        x = random_tensor(rng, R, size(rng, 30), size(rng, 30))
        x = x.to(rng.choice([torch.float32, torch.bfloat16]))
        seeds = row_seeds(R)
        with mock.patch.object(programs, "MINIMUM_ELEMENTS", 0):
            by_kernel = drop(x, p, seeds)
        with mock.patch.object(programs, "MINIMUM_ELEMENTS", 1 << 60):
            assert torch.equal(drop(x, p, seeds), by_kernel)
            wide = drop(x.double(), p, seeds)
        assert wide.dtype == torch.float64
        assert torch.equal(wide != 0, by_kernel.double() != 0) or bool((x == 0).any())


def with_samples(function: object, x: Tensor, samples: list[int], seed: int) -> Tensor:
    torch.manual_seed(seed)
    with samples_of_rows(np.array(samples)):
        return function(x)  # type: ignore[operator]


def test_a_sample_loses_the_same_elements_in_any_batch(rng: random.Random) -> None:
    for _ in range(10):
        B, k, seed = rng.randint(1, 9), rng.randint(1, 3), rng.getrandbits(30)
        samples = [rng.randrange(1 << 40) for _ in range(B)]
        x = torch.ones(B * k, rng.randint(1, 20), size(rng, 30))

        def drops(x: Tensor) -> Tensor:
            return dropout(x, 0.4, True)

        whole = with_samples(drops, x, samples, seed)
        for row in rng.sample(range(B), B):
            alone = with_samples(drops, x[:k, : rng.randint(1, x.shape[1])], samples[row : row + 1], seed)
            assert torch.equal(alone, whole[row * k : (row + 1) * k, : alone.shape[1]])
        if x.numel() > 1000:
            assert not torch.equal(with_samples(drops, x, [i + 1 for i in samples], seed), whole)


def test_a_shared_tensor_loses_the_same_elements_in_every_batch(rng: random.Random) -> None:
    weight = torch.ones(60, 17)
    first, second = (
        with_samples(lambda x: dropout(x, 0.5, True, shared=True), weight, samples, 3)
        for samples in ([1, 2, 3], [7])
    )
    assert torch.equal(first, second)
    assert len({tuple(row) for row in first.tolist()}) > 50


@pytest.mark.skipif(not programs.sgemm(), reason="PyTorch has no MKL here")
@pytest.mark.parametrize("_", range(6))
def test_attention_drops_the_weights_that_exact_attention_drops(_: int, rng: random.Random) -> None:
    """Compiled kernels of full and of sparse attention against the softmax as written."""
    B, H, T, E = size(rng, 4), size(rng, 3), rng.randint(2, 90), size(rng, 40)
    causal, p, seed = rng.random() < 0.5, rng.choice([0.1, 0.5]), rng.getrandbits(30)
    q, k, v = (random_tensor(rng, B, H, T, E).requires_grad_() for _ in range(3))
    samples = [rng.randrange(1 << 40) for _ in range(B)]
    pattern = Pattern.parse(rng.choice(["band:3", "global:2+band:5", "dilated:2:3"]), causal=causal)
    texts: dict[str, Any] = {"pattern": pattern, "segments": torch.tensor([(b, 0, T) for b in range(B)])}
    whole, chosen = Visibility(causal=causal), Visibility(causal=causal).through(pattern)
    settings = {"scale": 0.4, "dropout": p}
    for fast, slow in (
        (
            lambda _: fused.attention(q, k, v, is_causal=causal, **settings),
            lambda _: exact_attention(q, k, v, visibility=whole, **settings)[0],
        ),
        (
            lambda _: sparse_attention(q, k, v, **texts, **settings),
            lambda _: exact_attention(q, k, v, visibility=chosen, **settings)[0],
        ),
    ):
        results = []
        for function in (fast, slow):
            with every_size():
                out = with_samples(function, q, samples, seed)
            results.append((out, *torch.autograd.grad(out.sin().sum(), (q, k, v))))
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["full", "band:3", "linformer:4", "longformer:3:2"])
def test_attention_of_a_sample_is_the_same_in_any_batch(kind: str, rng: random.Random) -> None:
    """With padding of other lengths, of documents, large and small."""
    B, T, dim = rng.randint(2, 6), rng.choice([5, 70]), rng.choice([8, 48])
    pattern = patterns_of_layers(kind, 1, causal=False, longest=T)[0]
    make = LongformerAttention if kind.startswith("longformer") else Attention
    layer = make(dim=dim, n_heads=2, dropout=0.3, pattern=pattern)
    x, lengths = random_tensor(rng, B, T, dim), [rng.randint(1, T) for _ in range(B)]
    lengths[0] = T
    samples, seed = [rng.randrange(1 << 40) for _ in range(B)], rng.getrandbits(30)

    def attended(rows: list[int]) -> Tensor:
        longest = max(lengths[row] for row in rows)
        real = torch.arange(longest) < torch.tensor([lengths[row] for row in rows])[:, None]
        visibility = Visibility(real_keys=real)
        return with_samples(
            lambda x: layer(x, visibility=visibility), x[rows, :longest], [samples[row] for row in rows], seed
        )

    whole = attended(list(range(B)))
    for row in range(B):
        n = lengths[row]
        torch.testing.assert_close(attended([row])[0, :n], whole[row, :n], atol=2e-6, rtol=1e-5)
