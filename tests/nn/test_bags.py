"""Sums over bags against the dense product, forward and gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import random as random_rows

from wordloom.nn import bags


def arguments(B: int, V: int, density: float, seed: int):
    matrix = random_rows(B, V, density, format="csr", random_state=seed, dtype=np.float32)
    matrix.sort_indices()
    return matrix, (
        torch.from_numpy(matrix.indices.astype(np.int32)),
        torch.from_numpy(matrix.data),
        torch.from_numpy(matrix.indptr.astype(np.int32)),
    )


@settings(deadline=None)  # the first call loads scipy
@given(st.integers(1, 9), st.integers(1, 12), st.integers(1, 6), st.sampled_from([0.0, 0.3, 1.0]))
def test_it_is_the_dense_product(B, V, C, density):
    matrix, (ids, weights, offsets) = arguments(B, V, density, seed=B * V)
    generator = torch.Generator().manual_seed(C)
    table = torch.randn(C, V, generator=generator, requires_grad=True)
    dense = table.detach().clone().requires_grad_()
    out = torch.randn(B, C, generator=generator)
    sums = bags.bag_products(ids, weights, offsets, table)
    expected = torch.from_numpy(matrix.toarray()) @ dense.t()
    torch.testing.assert_close(sums, expected, rtol=1e-5, atol=1e-5)
    (sums * out).sum().backward()
    (expected * out).sum().backward()
    torch.testing.assert_close(table.grad, dense.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("C", [1, 2, 3, 4, 20])
def test_the_path_of_other_devices_is_the_same(C):
    _, (ids, weights, offsets) = arguments(7, 30, 0.2, seed=1)
    table = torch.randn(C, 30, requires_grad=True)
    other = table.detach().clone().requires_grad_()
    bags.bag_products(ids, weights, offsets, table).square().sum().backward()
    bags._embedding_bag(ids, weights, offsets, other).square().sum().backward()
    torch.testing.assert_close(table.grad, other.grad, rtol=1e-5, atol=1e-5)


def test_repeated_ids_of_a_bag_add_up():
    ids, weights, offsets = torch.tensor([1, 1], dtype=torch.int32), torch.ones(2), torch.tensor([0, 2, 2])
    table = torch.arange(6.0).view(3, 2).t().contiguous().requires_grad_()
    sums = bags.bag_products(ids, weights, offsets.int(), table)
    assert sums.tolist() == [[4.0, 6.0], [0.0, 0.0]]
    sums.sum().backward()
    assert table.grad.tolist() == [[0.0, 2.0, 0.0], [0.0, 2.0, 0.0]]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_gives_the_same():
    _, on_cpu = arguments(50, 400, 0.05, seed=2)
    table = torch.randn(5, 400, requires_grad=True)
    other = table.detach().cuda().requires_grad_()
    here = bags.bag_products(*on_cpu, table)
    there = bags.bag_products(*(tensor.cuda() for tensor in on_cpu), other)
    torch.testing.assert_close(there.cpu(), here, rtol=1e-5, atol=1e-5)
    here.square().sum().backward()
    there.square().sum().backward()
    torch.testing.assert_close(other.grad.cpu(), table.grad, rtol=1e-4, atol=1e-4)
