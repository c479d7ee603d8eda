"""Matrix products with weights in 8 bits, as sums of integers.

A weight is rows of groups: 64 signed bytes and a bfloat16 scale each.  The other factor is narrowed to 16
bits in the same groups, with a float32 scale each, which is a hundred times finer than bfloat16.  The
integers of a group are multiplied and summed exactly, twice as many in a register as float32 numbers.  Then
the sum of each group is scaled and added in float32, in the order of the groups.  So a product has the same
bits in every kernel, however the kernel arranges its vectors.

A few rows at a time are multiplied with the weight as it lies (:func:`integer_tile`).  For many rows that is
bound by widening the bytes and adding up the lanes.  So a panel of the weight is packed once
(:func:`pack_panel`): widened, and transposed into vectors whose lanes are rows of the weight.  Then all rows
of the other factor are multiplied with it (:func:`integer_panel`).
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

_I8, _I16, _I32 = ir.IntType(8), ir.IntType(16), ir.IntType(32)
_TWO, _FOUR, _EIGHT = (ir.VectorType(ir.FloatType(), n) for n in (2, 4, 8))
_UNROLLED = 8  # pairs of neighbours in one step of a loop; all 32 of a group are half as fast
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


def integer_tile(tokens: int) -> Any:
    """Make a kernel for the products of ``tokens`` narrowed rows with four rows of a weight in 8 bits."""

    def integer_tile_kernel(
        w: VectorWriter, weight: int, weight_row: int, scales: int, there: int, x: int, x_row: int, K: int,
        out: int, out_row: int, out_column: int, add: bool,
    ) -> None:  # fmt: skip
        """out [tokens, 4] (+)= x times rows of K bytes at ``weight``; K is a multiple of 64.

        x is rows of :func:`narrow`.  ``scales`` is the address of the first row's, and there is room for a
        vector behind the last.  The rest is as in :func:`wordloom.kernels.products.tile`.

        Two groups are summed at once, since eight sums fill a vector.
        """
        b, groups, rows = w.builder, w.builder.udiv(K, w.number(GROUP)), 4
        starts = [b.mul(j, weight_row) for j in existing_rows(w, there, rows)]
        weights = [w.at(w.pointer(weight, _I8), start) for start in starts]
        table = w.pointer(scales, _I16)
        weight_scales = [w.at(table, b.udiv(start, w.number(GROUP))) for start in starts]
        xs, x_scales = _narrowed_rows(w, x, x_row, K, tokens, _I16)
        sums = w.variables(tokens, _FOUR)
        for place in sums:
            b.store(ir.Constant(_FOUR, [0.0] * rows), place)

        def totals(k: Any, following: Any) -> list[Any]:
            """Return the sums of the groups at elements k and ``following``: [2, 4] for each token."""

            def of_row(i: int) -> list[Any]:
                first, parts = (following if i >= rows else k), range(GROUP // (2 * LANES))
                row = [w.sixteen_bits(weights[i % rows], first, u) for u in parts]
                return [
                    w.summed(
                        [
                            w.pairs_of_products(part, w.sixteen_bits(x_t, first, u))
                            for u, part in enumerate(row)
                        ]
                    )
                    for x_t in xs
                ]

            return w.totals_of_eight(of_row)

        # the scales of a vector of groups are transposed at once, also where fewer groups are left
        (transposed,) = w.variables(1, ir.ArrayType(ir.FloatType(), LANES * rows))
        with w.steps(w.number(0), groups, LANES) as (first, _):
            together = w.transposed([w.load(row, first) for row in weight_scales])
            found = b.bitcast(transposed, ir.FloatType().as_pointer())
            for i, vector in enumerate(together):
                w.store(vector, found, w.number(i * LANES))
            left = b.sub(groups, first)
            some = b.select(b.icmp_signed("<", left, w.number(LANES)), left, w.number(LANES))
            with w.steps(w.number(0), some, 2) as (i, _):
                g = b.add(first, i)
                two = b.icmp_signed("<", b.add(i, w.number(1)), some)
                k = b.mul(g, w.number(GROUP))
                sums_of_groups = totals(k, b.select(two, b.add(k, w.number(GROUP)), k))
                scale = b.load(b.bitcast(w.at(found, b.mul(i, w.number(rows))), _EIGHT.as_pointer()), align=4)
                for t, place in enumerate(sums):
                    both = b.load(b.bitcast(w.at(x_scales[t], g), _TWO.as_pointer()), align=4)
                    factors = b.fmul(scale, w.shuffled(both, both, [0] * rows + [1] * rows))
                    numbers = w.as_floats(sums_of_groups[t])
                    lower, upper = range(rows), range(rows, 2 * rows)
                    first_four, last_four = (
                        [w.shuffled(v, v, part) for v in (numbers, factors)] for part in (lower, upper)
                    )
                    total = w.multiply_add(first_four[0], first_four[1], b.load(place))
                    second = w.multiply_add(last_four[0], last_four[1], total)
                    b.store(b.select(two, second, total), place)
        totals_of_rows = {
            (t, j): b.extract_element(b.load(place), w.number(j))
            for t, place in enumerate(sums)
            for j in range(rows)
        }
        write_out(w, totals_of_rows, there, out, out_row, out_column, add)

    return vector_kernel(integer_tile_kernel)


def _narrowed_rows(
    w: VectorWriter, x: Any, x_row: Any, K: Any, tokens: int, element: Any
) -> tuple[list[Any], list[Any]]:
    """Return pointers to the integers, read as ``element``, and to the scales of rows of :func:`narrow`."""
    b = w.builder
    addresses = [b.add(x, b.mul(w.number(t), x_row)) for t in range(tokens)]
    behind = b.mul(K, w.number(2))
    return [w.pointer(a, element) for a in addresses], [w.pointer(b.add(a, behind)) for a in addresses]


# -- panels ------------------------------------------------------------------------------------------------

PANEL = 2 * LANES
"""The rows of a weight in a panel: two vectors of them are in registers beside the sums of three tokens."""


@exact
def panel_bytes(K: int) -> int:
    """Return the bytes of a panel of rows of K numbers as :func:`pack_panel` writes it, a multiple of 64."""
    groups = (K + GROUP - 1) // GROUP
    return groups * PANEL * (2 * GROUP + 4)


def write_pack_panel(
    w: VectorWriter, weight: int, scales: int, there: int, following: int, K: int, to: int
) -> None:
    """Write PANEL rows of K bytes at ``weight`` to address ``to`` in 16 bits, side by side.

    First come the integers [K / 2, PANEL, 2], of which each two neighbours of a row are together.  Then come
    the scales [K / 64, PANEL] in float32.  Only the first ``there`` rows exist; the last stands for others.
    The lines from ``weight + following`` on are prefetched.
    """
    b, half = w.builder, 8  # rows that are transposed together: 16-bit words in 128 bits
    words, narrow_bytes = ir.VectorType(_I16, half), ir.VectorType(_I8, 2 * half)
    wide = ir.VectorType(_I16, 2 * half)
    rows = existing_rows(w, there, PANEL)
    stored, integers = w.pointer(weight, _I8), w.pointer(to, _I8)
    starts = [b.mul(j, K) for j in rows]
    with w.steps(w.number(0), K, 2 * half) as (k, _):
        at = b.mul(k, w.number(2 * PANEL))
        for first in range(0, PANEL, half):
            places = [w.at(stored, b.add(start, k)) for start in starts[first : first + half]]
            for place in places:
                write_prefetch(b, w.at(place, following))
            together = w.transposed(
                [b.load(b.bitcast(place, words.as_pointer()), align=1) for place in places]
            )
            for p, pair in enumerate(together):
                place = w.at(integers, b.add(at, w.number(4 * (PANEL * p + first))))
                widened_pair = b.sext(b.bitcast(pair, narrow_bytes), wide)
                b.store(widened_pair, b.bitcast(place, wide.as_pointer()), align=4)
    groups = b.udiv(K, w.number(GROUP))
    table, transposed = w.pointer(scales, _I16), w.pointer(b.add(to, b.mul(K, w.number(2 * PANEL))))
    with w.times(groups) as loop:
        for i, j in enumerate(rows):
            scale = w.one(table, b.add(b.mul(j, groups), loop.index))
            b.store(scale, w.at(transposed, b.add(b.mul(loop.index, w.number(PANEL)), w.number(i))))


pack_panel = vector_kernel(write_pack_panel)


def integer_panel(tokens: int) -> Any:
    """Make a kernel for the products of ``tokens`` narrowed rows with a panel of :func:`pack_panel`."""

    def integer_panel_kernel(
        w: VectorWriter, panel: int, x: int, x_row: int, K: int, add: bool, out: int, out_row: int
    ) -> None:
        """out [tokens, PANEL] (+)= x times the panel's rows of K numbers; K is a multiple of 64.

        x is rows of :func:`narrow`, ``x_row`` bytes apart.
        """
        b, groups, vectors = w.builder, w.builder.udiv(K, w.number(GROUP)), PANEL // LANES
        xs, x_scales = _narrowed_rows(w, x, x_row, K, tokens, _I32)
        pairs = [(t, v) for t in range(tokens) for v in range(vectors)]
        sums = dict(zip(pairs, w.variables(len(pairs)), strict=True))
        of_group = dict(zip(pairs, w.variables(len(pairs), w.integers), strict=True))
        integers = w.pointer(panel, _I16)
        scales = w.pointer(b.add(panel, b.mul(K, w.number(2 * PANEL))))
        w.zeroed(list(sums.values()))
        with w.times(groups) as loop:
            for place in of_group.values():
                b.store(ir.Constant(w.integers, [0] * LANES), place)
            with w.steps(w.number(0), w.number(GROUP // 2), _UNROLLED) as (some, _):
                for u in range(_UNROLLED):
                    p = b.add(b.mul(loop.index, w.number(GROUP // 2)), b.add(some, w.number(u)))
                    of_rows = [
                        w.sixteen_bits(integers, b.mul(p, w.number(2 * PANEL)), v) for v in range(vectors)
                    ]
                    for t, x_t in enumerate(xs):
                        numbers = w.repeated_pair(b.load(w.at(x_t, p)))
                        for v, of_row in enumerate(of_rows):
                            product = w.pairs_of_products(of_row, numbers)
                            b.store(b.add(b.load(of_group[t, v]), product), of_group[t, v])
            for t, v in pairs:
                scale = w.load(scales, b.mul(loop.index, w.number(PANEL)), v)
                factor = b.fmul(scale, w.repeated(b.load(w.at(x_scales[t], loop.index))))
                total = w.as_floats(b.load(of_group[t, v]))
                b.store(w.multiply_add(total, factor, b.load(sums[t, v])), sums[t, v])
        to = w.pointer(out)
        for (t, v), place in sums.items():
            w.write_out(b.load(place), to, b.mul(w.number(t), out_row), v, add)

    return vector_kernel(integer_panel_kernel)
