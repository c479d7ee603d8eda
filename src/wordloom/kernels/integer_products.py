"""Matrix products with weights in 8 bits, as sums of integers.

A weight is rows of groups: 64 signed bytes and a bfloat16 scale each.  The other factor is narrowed to 16
bits in the same groups, with a float32 scale each, which is a hundred times finer than bfloat16.  The
integers of a group are multiplied and summed exactly, twice as many in a register as float32 numbers.  Then
each sum is scaled and added in float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]

from wordloom.kernels import GROUP
from wordloom.kernels.machine_code import exact
from wordloom.kernels.memory import FLOAT, bits_of, float_of, pointer, write_prefetch
from wordloom.kernels.products import existing_rows, write_out
from wordloom.kernels.registers import LANES, VectorWriter, vector_kernel

_I8, _I16 = ir.IntType(8), ir.IntType(16)
_TOP = np.float32(32767)
_ROUNDING = np.float32(1.5 * 2**23)  # a float32 of this size has its last bit at 1, so adding it rounds


@exact
def narrowed_bytes(K: int) -> int:
    """Return the bytes of a row of K numbers as :func:`narrow` writes it, a multiple of 64.

    Scales are read as whole vectors, so the last one has room for a vector behind it.
    """
    groups = (K + GROUP - 1) // GROUP
    return groups * 2 * GROUP + (groups + LANES + 15) // 16 * 64


@exact
def narrow(row: Any, to: int) -> None:
    """Write ``row`` [K] in 16 bits to address ``to``: K' integers, K' being K rounded up to 64s, and scales.

    A group's largest number becomes 32,767.  A group with NaN or infinity has such a scale, so that products
    with it are no numbers either; one with nothing above 1e-30 becomes zeros.
    """
    K = row.shape[0]
    groups = (K + GROUP - 1) // GROUP
    integers, scales = pointer(to, np.int16(0)), pointer(to + 2 * GROUP * groups, FLOAT)
    for g in range(groups):
        first = g * GROUP
        n = min(GROUP, K - first)
        group = row[first : first + n]
        highest = np.uint32(0)  # as bits, whose order is that of the magnitudes, with NaN at the top
        for i in range(n):
            highest = max(highest, bits_of(group[i]) & np.uint32(0x7FFFFFFF))
        top = float_of(highest)
        factor = np.float32(0) if top < np.float32(1e-30) else _TOP / top
        scales[g] = top / _TOP
        for i in range(n):
            integers[first + i] = np.int16(bits_of(group[i] * factor + _ROUNDING))
        for i in range(n, GROUP):
            integers[first + i] = np.int16(0)


def integer_tile(tokens: int, rows: int, ahead: int = 0) -> Any:
    """Make a kernel for the products of ``tokens`` narrowed rows with ``rows`` rows of a weight in 8 bits.

    The order of additions is the same in every kernel.  Weights are prefetched ``ahead`` elements before they
    are needed.
    """

    def integer_tile_kernel(
        w: VectorWriter, weight: int, weight_row: int, scales: int, there: int, x: int, x_row: int, K: int,
        out: int, out_row: int, out_column: int, add: bool,
    ) -> None:  # fmt: skip
        """out [tokens, rows] (+)= x times rows of K bytes at ``weight``; K is a multiple of 64.

        x is rows of :func:`narrow`.  ``scales`` is the address of the first row's, and there is room for a
        vector behind the last.  The rest is as in :func:`wordloom.kernels.products.tile`.
        """
        b, groups = w.builder, w.builder.udiv(K, w.number(GROUP))
        starts = [b.mul(j, weight_row) for j in existing_rows(w, there, rows)]
        weights = [w.at(w.pointer(weight, _I8), start) for start in starts]
        table = w.pointer(scales, _I16)
        weight_scales = [w.at(table, b.udiv(start, w.number(GROUP))) for start in starts]
        addresses = [b.add(x, b.mul(w.number(t), x_row)) for t in range(tokens)]
        xs = [w.pointer(address, _I16) for address in addresses]
        x_scales = [w.pointer(b.add(address, b.mul(K, w.number(2)))) for address in addresses]
        pairs = [(t, j) for t in range(tokens) for j in range(rows)]
        sums = dict(zip(pairs, w.variables(len(pairs)), strict=True))
        w.zeroed(list(sums.values()))

        def add_group(g: Any, at_factor: Any) -> None:
            k = b.mul(g, w.number(GROUP))
            if ahead:
                later = b.add(k, w.number(ahead))
                for row in weights:
                    write_prefetch(b, w.at(row, later))
            parts = GROUP // (2 * LANES)
            bytes_of_rows = [[w.sixteen_bits(row, k, u) for u in range(parts)] for row in weights]
            for t in range(tokens):
                numbers = [w.sixteen_bits(xs[t], k, u) for u in range(parts)]
                for j in range(rows):
                    products = [
                        w.pairs_of_products(*both) for both in zip(bytes_of_rows[j], numbers, strict=True)
                    ]
                    total = products[0]
                    for more in products[1:]:
                        total = b.add(total, more)
                    factor = w.repeated(b.load(w.at(single[t, j], at_factor)))
                    b.store(w.multiply_add(w.as_floats(total), factor, b.load(sums[t, j])), sums[t, j])

        # the scales of a vector of groups are multiplied at once, also where fewer groups are left
        factors = dict(zip(pairs, w.variables(len(pairs)), strict=True))
        single = {pair: b.bitcast(place, ir.FloatType().as_pointer()) for pair, place in factors.items()}
        with w.steps(w.number(0), groups, LANES) as (first, _):
            for t, j in pairs:
                b.store(b.fmul(w.load(weight_scales[j], first), w.load(x_scales[t], first)), factors[t, j])
            left = b.sub(groups, first)
            some = b.select(b.icmp_signed("<", left, w.number(LANES)), left, w.number(LANES))
            with w.times(some) as loop:
                add_group(b.add(first, loop.index), loop.index)
        totals = {pair: w.total(b.load(place)) for pair, place in sums.items()}
        write_out(w, totals, there, out, out_row, out_column, add)

    return vector_kernel(integer_tile_kernel)
