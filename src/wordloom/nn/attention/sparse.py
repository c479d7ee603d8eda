"""Sparse attention on a CPU, by one compiled kernel that visits only the keys that a query sees."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from wordloom.kernels import programs
from wordloom.kernels.acceptance import fall_back, plain
from wordloom.nn.attention.pattern import Pattern, Ranges
from wordloom.nn.dropout import as_argument, row_seeds
from wordloom.nn.fused import attention_products


def sparse_attention_fits(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Return whether :func:`sparse_attention` accepts these."""
    if torch.compiler.is_compiling() or not q.numel():
        return False
    if (
        k.shape != v.shape
        or q.shape[0] != k.shape[0]
        or q.shape[2:] != k.shape[2:]
        or q.shape[1] % k.shape[1]
    ):
        return False
    for t in (q, k, v):
        if t.device.type != "cpu" or t.dtype != q.dtype or t.dtype not in (torch.float32, torch.bfloat16):
            return False
        if not plain(t):
            fall_back("sparse attention", f"queries, keys or values are a {type(t).__name__}")
            return False
        if t.stride(3) != 1 or t.stride(2) < t.shape[3]:  # the BLAS takes no overlapping rows
            return False
    return attention_products(q.shape[3]) is not None


def sparse_attention(
    q: Tensor, k: Tensor, v: Tensor, *, pattern: Pattern, segments: Tensor, scale: float, dropout: float = 0.0
) -> Tensor:
    """Attention in which a query sees the keys of its own segment that ``pattern`` allows, where it fits.

    q [B, H, T, E]; k, v [B, K, T, E], head h of q with head h // (H / K) of k -> [B, H, T, E].
    ``segments`` [N, 3] int64 has the row, first token and length of each text; tokens outside get zeros.
    ``dropout`` of the weights keeps no mask in memory: see :mod:`wordloom.nn.dropout`.
    """
    if not len(segments):
        return torch.zeros_like(q)
    seeds = as_argument(row_seeds(len(q))) if dropout else None
    keys = _keys_of_segments(pattern, segments)
    return _SparseAttention.apply(q, k, v, keys, scale, dropout, seeds)  # type: ignore[no-untyped-call]


class _SegmentKeys(NamedTuple):
    """The ranges of the longest segment, which shorter ones share, and the draws of every segment.

    ``segments`` [N, 4] has the row, first token and length of each, and its first row of ``drawn`` [*, R].
    """

    segments: Tensor
    ranges: Ranges
    drawn: Tensor


def _keys_of_segments(pattern: Pattern, segments: Tensor) -> _SegmentKeys:
    lengths = segments[:, 2].tolist()
    ranges = pattern.ranges(max(lengths))
    places = dict.fromkeys(lengths, 0)
    drawn = ranges.drawn
    if not pattern.causal and drawn.shape[1]:
        # how many keys an encoder's query may see, and so the draw, depends on the length of its text
        tables = {n: pattern.ranges(n, max(lengths)).drawn for n in places}
        total = 0
        for n, table in tables.items():
            places[n], total = total, total + len(table)
        drawn = torch.cat(list(tables.values()))
    first_draws = torch.tensor([places[n] for n in lengths])
    return _SegmentKeys(torch.cat([segments, first_draws[:, None]], dim=1).contiguous(), ranges, drawn)


class _SparseAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, keys: _SegmentKeys, *settings: Any) -> Tensor:
        B, H, T, E = q.shape
        whole = int(keys.segments[:, 2].sum()) == B * T
        out = q.new_empty(B, T, H, E) if whole else q.new_zeros(B, T, H, E)
        sums = q.new_empty(B, H, T, dtype=torch.float32)
        _run("sparse_attention", q, k, v, keys, settings, out, sums)
        ctx.save_for_backward(q, k, v, out, sums)
        ctx.keys, ctx.settings = keys, settings
        return out.transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, sums = ctx.saved_tensors
        B, _, T, E = q.shape
        d_q = torch.zeros_like(out)
        d_k, d_v = (q.new_zeros(B, T, k.shape[1], E, dtype=torch.float32) for _ in range(2))
        grad = grad.transpose(1, 2).contiguous()
        _run("sparse_attention_backward", q, k, v, ctx.keys, ctx.settings, out, sums, grad, d_q, d_k, d_v)
        return (*(d.to(q.dtype).transpose(1, 2) for d in (d_q, d_k, d_v)), *[None] * 4)


def _run(
    name: str, q: Tensor, k: Tensor, v: Tensor, keys: _SegmentKeys, settings: Any, *others: Tensor
) -> None:
    from wordloom.kernels.attention.sparse import scratch_elements

    (_, H, T, E), K = q.shape, k.shape[1]
    scale, dropout, seeds = settings
    ranges = keys.ranges
    row_steps = [t.stride(axis) for t in (q, k, v) for axis in (0, 2, 1)]
    first, end, drawn = (table.contiguous() for table in (ranges.first, ranges.end, keys.drawn))
    run = programs.run
    run(
        f"attention.sparse.{name}", q.dtype, len(keys.segments) * K, attention_products(E), keys.segments, T,
        E, H, K, scale, len(ranges.steps), first.shape[1], first, end,
        torch.tensor(ranges.steps, dtype=torch.int64), drawn.shape[1], drawn, seeds, int(dropout * (1 << 32)),
        1.0 / (1.0 - dropout), q, k, v, *row_steps, *others, scratch=scratch_elements(E),
    )  # fmt: skip
