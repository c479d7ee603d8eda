"""Matrix products of bfloat16 with bfloat16, by the processor's instruction for them.

Both factors are bfloat16, and products are added in float32, two at a time.  That is twice as fast as
widening the weights, and rounds the other factor as PyTorch's products in bfloat16 do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]

from wordloom.kernels.machine_code import exact
from wordloom.kernels.memory import pointer, store
from wordloom.kernels.products import existing_rows, products_of_rows, write_out
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


def bfloat16_tile(tokens: int, rows: int) -> Any:
    """Make a kernel for the products of ``tokens`` shortened rows with ``rows`` rows of a bfloat16 weight.

    The order of additions is the same in every kernel.
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
        totals = products_of_rows(w, weights, xs, K, 0, 2 * LANES, w.pairs, w.multiply_add_pairs)
        write_out(w, totals, there, out, out_row, out_column, add)

    return vector_kernel(bfloat16_tile_kernel)
