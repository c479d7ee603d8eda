"""Dropout (Srivastava et al. 2014) that depends on the sample, not on the batch around it.

On a CPU, an element is dropped if a hash of three numbers is low: its place within its row, the number of the
sample that the row belongs to, and a number that PyTorch's generator draws for each call.  A sample therefore
loses the same elements in a batch of any size, in any micro-batch and on any rank.  No mask is kept for the
backward pass.  On other devices and under torch.compile, dropout is PyTorch's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from wordloom.kernels.acceptance import plain
from wordloom.kernels.programs import fits, run

Seeds = NDArray[np.uint64]

_SAMPLES: ContextVar[NDArray[np.int64] | None] = ContextVar("samples", default=None)


@contextmanager
def samples_of_rows(numbers: NDArray[np.int64] | None) -> Iterator[None]:
    """Say which samples the rows of all tensors within the block belong to; by default row i to sample i.

    ``numbers`` [B] are of the rows of the batch.  A tensor of k B rows has k rows for each of them, one after
    another.
    """
    before = _SAMPLES.set(numbers)
    try:
        yield
    finally:
        _SAMPLES.reset(before)


def current_samples() -> NDArray[np.int64] | None:
    """Return the numbers that :func:`samples_of_rows` has set."""
    return _SAMPLES.get()


def dropout(x: Tensor, p: float, training: bool, *, shared: bool = False) -> Tensor:
    """``F.dropout(x, p, training)`` of x [R, ..], whose rows belong to samples: see :func:`samples_of_rows`.

    ``shared``: x belongs to no sample, such as a weight; all batches of a step lose the same elements.
    """
    if not training or not 0.0 < p < 1.0 or not x.numel() or not is_keyed(x):
        return F.dropout(x, p, training)
    return drop(x, p, _seed_of_batch() if shared or not x.ndim else row_seeds(len(x)))


def is_keyed(x: Tensor) -> bool:
    """Return whether dropout of ``x`` is ours; it is PyTorch's elsewhere."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling() and plain(x)


def row_seeds(R: int) -> Seeds:
    """Return a seed for each of R rows of the batch: [R].

    Each call draws one number from PyTorch's generator, whatever R is.
    """
    drawn = np.uint64(torch.randint(1 << 62, ()).item())
    samples = _SAMPLES.get()
    if samples is None or not len(samples) or R % len(samples):
        samples = np.arange(R)
    keys = _mixed(samples.astype(np.uint64))
    if len(keys) != R:
        each = np.arange(R // len(keys)).astype(np.uint64)
        keys = _mixed(keys[:, None] + each).ravel()
    return _mixed(keys ^ drawn)


def _seed_of_batch() -> Seeds:
    """Return one seed that all batches of a step share: [1]."""
    with samples_of_rows(None):
        return row_seeds(1)


def query_seeds(seeds: Seeds, H: int, T: int) -> Seeds:
    """Return a seed for each query of attention, from one for each row: [B] -> [B * H * T].

    It is that of :func:`wordloom.kernels.attention.blocks.query_seed`.
    """
    heads, queries = (np.arange(n).astype(np.uint64) for n in (H, T))
    number = ((heads[:, None] << np.uint64(32)) + queries).ravel()
    return (seeds[:, None] ^ (number * np.uint64(0x9E3779B97F4A7C15))).ravel()


def part_seeds(seeds: Seeds, rows: Tensor, places: Tensor) -> Seeds:
    """Return a seed for each of N parts of rows, at ``places`` [N] of ``rows`` [N], from one for each row."""
    return _mixed(seeds[rows.cpu().numpy()] + places.cpu().numpy().astype(np.uint64))


def drop_weights(weights: Tensor, p: float, seeds: Seeds | None = None) -> Tensor:
    """Return attention weights [B, .., T, S] after dropout; compiled kernels drop the same ones.

    ``seeds`` [B] replace those of the rows.
    """
    if p == 1.0 or not weights.numel() or not is_keyed(weights):
        return F.dropout(weights, p)
    B, T = weights.shape[0], weights.shape[-2]
    seeds = row_seeds(B) if seeds is None else seeds
    return drop(weights, p, query_seeds(seeds, weights[0, ..., 0, 0].numel(), T))


def drop(x: Tensor, p: float, seeds: Seeds) -> Tensor:
    """Return x with a share ``p`` of zeros and the other elements divided by 1 - p.

    ``seeds`` [R] has one for each of R equal parts of x.
    """
    dropped: Tensor = _Dropout.apply(x, p, seeds)  # type: ignore[no-untyped-call]
    return dropped


def as_argument(seeds: Seeds) -> Tensor:
    """Return seeds as a kernel takes them: int64 of the same bits."""
    return torch.from_numpy(seeds.view(np.int64))


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float, seeds: Seeds) -> Tensor:
        ctx.p, ctx.seeds = p, seeds
        return _dropped(x, p, seeds)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _dropped(grad, ctx.p, ctx.seeds), None, None


def _dropped(x: Tensor, p: float, seeds: Seeds) -> Tensor:
    x = x.contiguous()
    size, chance = x.numel() // len(seeds), int(p * (1 << 32))
    if fits(x):
        y = torch.empty_like(x)
        given = as_argument(seeds)
        run("elementwise.dropout", x.dtype, x.numel(), size, given, chance, 1.0 / (1.0 - p), x, y)
        return y
    kept = torch.from_numpy(_hashed(size, seeds) >= np.uint32(chance)).view(x.shape)
    wide = x.double() if x.dtype == torch.float64 else x.float()
    return torch.where(kept, wide * float(np.float32(1.0 / (1.0 - p))), 0.0).to(x.dtype)


def _hashed(size: int, seeds: Seeds) -> NDArray[np.uint32]:
    """Return 32 random bits for each place of each row, [R, size], as the kernel computes them."""
    low, high = seeds.astype(np.uint32)[:, None], (seeds >> np.uint64(32)).astype(np.uint32)[:, None]
    h = np.arange(size, dtype=np.uint32) ^ low
    h = (h ^ (h >> np.uint32(16))) * np.uint32(0x7FEB352D) ^ high
    h = (h ^ (h >> np.uint32(15))) * np.uint32(0x846CA68B)
    h = (h ^ (h >> np.uint32(16))) * np.uint32(0x7FEB352D)
    return h ^ (h >> np.uint32(15))


def _mixed(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return 64 random bits for each number, by SplitMix64 (Steele, Lea and Flood 2014)."""
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
