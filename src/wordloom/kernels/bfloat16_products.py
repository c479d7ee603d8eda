"""Matrix products of bfloat16 with bfloat16, by the processor's instruction for them.

Both factors are bfloat16, and products are added in float32, two at a time.  That is twice as fast as
widening the weights, and rounds the other factor as PyTorch's products in bfloat16 do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]

from wordloom.kernels.machine_code import exact
from wordloom.kernels.memory import pointer, store, write_prefetch
from wordloom.kernels.products import existing_rows, write_out
from wordloom.kernels.registers import LANES, VectorWriter, has_bfloat16_products, vector_kernel

__all__ = ["bfloat16_tile", "has_bfloat16_products", "shorten", "shortened_bytes"]

_I16 = ir.IntType(16)
_BFLOAT16 = np.uint16(0)


@exact
def shortened_bytes(K: int) -> int:
    """Return the bytes of a row of K numbers as :func:`shorten` writes it, a multiple of 64."""
    return (K + 31) // 32 * 64


@exact
def shorten(row: Any, to: int) -> None:
    """Write ``row`` [K] as bfloat16 to address ``to``, rounded to nearest even, and zeros up to 64 bytes."""
    numbers = pointer(to, _BFLOAT16)
    for i in range(row.shape[0]):
        store(numbers, i, row[i])
    for i in range(row.shape[0], (row.shape[0] + 31) // 32 * 32):
        store(numbers, i, np.float32(0))


def bfloat16_tile(tokens: int, rows: int, ahead: int = 0) -> Any:
    """Make a kernel for the products of ``tokens`` shortened rows with ``rows`` rows of a bfloat16 weight.

    The order of additions is the same in every kernel.  Weights are prefetched ``ahead`` elements before they
    are needed.
    """

    def bfloat16_tile_kernel(
        w: VectorWriter, weight: int, weight_row: int, there: int, x: int, x_row: int, K: int, out: int,
        out_row: int, out_column: int, add: bool,
    ) -> None:  # fmt: skip
        """out [tokens, rows] (+)= x times rows of K elements at ``weight``.

        x is rows of :func:`shorten`, ``x_row`` bytes apart.  The rest is as in
        :func:`wordloom.kernels.products.tile`.
        """
        b, stored = w.builder, w.pointer(weight, _I16)
        weights = [w.at(stored, b.mul(j, weight_row)) for j in existing_rows(w, there, rows)]
        xs = [w.pointer(b.add(x, b.mul(w.number(t), x_row)), _I16) for t in range(tokens)]
        pairs = [(t, j) for t in range(tokens) for j in range(rows)]
        sums = dict(zip(pairs, w.variables(len(pairs)), strict=True))
        w.zeroed(list(sums.values()))
        whole = b.and_(K, w.number(-2 * LANES))
        with w.steps(w.number(0), whole, 2 * LANES) as (k, _):
            if ahead:
                later = b.add(k, w.number(ahead))
                for row in weights:
                    write_prefetch(b, w.at(row, later))
            vectors = [w.pairs(row, k) for row in weights]
            for t in range(tokens):
                numbers = w.pairs(xs[t], k)
                for j in range(rows):
                    b.store(w.bfloat16_products(b.load(sums[t, j]), vectors[j], numbers), sums[t, j])
        totals = dict(zip(pairs, w.variables(len(pairs), ir.FloatType()), strict=True))
        for pair in pairs:
            b.store(w.total(b.load(sums[pair])), totals[pair])
        with w.steps(whole, K, 1) as (k, _):
            for t, j in pairs:
                added = w.multiply_add(w.one(weights[j], k), w.one(xs[t], k), b.load(totals[t, j]))
                b.store(added, totals[t, j])
        write_out(w, {pair: b.load(totals[pair]) for pair in pairs}, there, out, out_row, out_column, add)

    return vector_kernel(bfloat16_tile_kernel)
