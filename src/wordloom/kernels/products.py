"""Matrix products in float32 for one thread of a program: our own, and the BLAS's.

Tensors are given by address; ``like`` (:mod:`wordloom.kernels.memory`) says how a weight is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from wordloom.kernels.machine_code import leaf
from wordloom.kernels.memory import FLOAT, write_prefetch
from wordloom.kernels.registers import LANES, VectorWriter, vector_kernel

_intrinsic: Any = intrinsic
_CPointer: Any = types.CPointer


def tile(tokens: int, rows: int, ahead: int = 0) -> Any:
    """Make a kernel for the products of ``tokens`` rows of x with ``rows`` rows of a weight.

    Each product keeps its sum in a vector register.  A plain loop that the compiler vectorizes spills these
    registers and runs at half the speed.  tokens * rows + rows + 1 registers are in use.  Weights are
    prefetched ``ahead`` elements before they are needed.
    """

    def tile_kernel(
        w: VectorWriter, like: Any, weight: int, weight_row: int, there: int, x: int, K: int, out: int,
        out_row: int, out_column: int, add: bool,
    ) -> None:  # fmt: skip
        """out [tokens, rows] (+)= float32 x [tokens, K] times rows of K elements at ``weight``.

        The next row of the weight follows after ``weight_row`` elements, the next row and column of ``out``
        after ``out_row`` and ``out_column``.  Only the first ``there`` rows exist; no others are written.
        """
        b, stored = w.builder, w.pointer(weight, like)
        weights = [w.at(stored, b.mul(j, weight_row)) for j in existing_rows(w, there, rows)]
        xs = [w.at(w.pointer(x), b.mul(w.number(t), K)) for t in range(tokens)]
        totals = products_of_rows(w, weights, xs, K, ahead, LANES, w.load, w.multiply_add)
        write_out(w, totals, there, out, out_row, out_column, add)

    return vector_kernel(tile_kernel)


def products_of_rows(
    w: VectorWriter, weights: list[Any], xs: list[Any], K: Any, ahead: int, step: int,
    load: Callable[[Any, Any], Any], multiply_add: Callable[[Any, Any, Any], Any],
) -> dict[tuple[int, int], Any]:  # fmt: skip
    """Write code for the product of each row of ``xs`` with each of ``weights``, of K elements each.

    Returns the products by the numbers of the two rows.  ``load(row, k)`` reads ``step`` elements, and
    ``multiply_add(a, b, sums)`` adds their products to a vector of sums.
    """
    b, pairs = w.builder, [(t, j) for t in range(len(xs)) for j in range(len(weights))]
    sums = dict(zip(pairs, w.variables(len(pairs)), strict=True))
    w.zeroed(list(sums.values()))
    whole = b.and_(K, w.number(-step))
    with w.steps(w.number(0), whole, step) as (k, _):
        if ahead:
            later = b.add(k, w.number(ahead))
            for row in weights:
                write_prefetch(b, w.at(row, later))
        vectors = [load(row, k) for row in weights]
        for t, x in enumerate(xs):
            value = load(x, k)
            for j, vector in enumerate(vectors):
                b.store(multiply_add(vector, value, b.load(sums[t, j])), sums[t, j])
    totals = dict(zip(pairs, w.variables(len(pairs), ir.FloatType()), strict=True))
    for pair in pairs:
        b.store(w.total(b.load(sums[pair])), totals[pair])
    with w.steps(whole, K, 1) as (k, _):
        for t, j in pairs:
            value, element = w.one(xs[t], k), w.one(weights[j], k)
            b.store(w.multiply_add(element, value, b.load(totals[t, j])), totals[t, j])
    return {pair: b.load(totals[pair]) for pair in pairs}


def existing_rows(w: VectorWriter, there: Any, rows: int) -> list[Any]:
    """Return the numbers of ``rows`` rows, of which the first ``there`` exist; the last stands for others."""
    last = w.builder.sub(there, w.number(1))
    return [
        w.builder.select(w.builder.icmp_signed("<", w.number(j), last), w.number(j), last)
        for j in range(rows)
    ]


def write_out(
    w: VectorWriter, totals: dict[tuple[int, int], Any], there: Any, out: Any, out_row: Any, out_column: Any,
    add: Any,
) -> None:  # fmt: skip
    """Write code that stores the total of each token and row, or adds it; see :func:`tile`."""
    b = w.builder
    (nowhere,) = w.variables(1, ir.FloatType())
    for (t, j), total in totals.items():
        place_in_out = b.add(b.mul(w.number(t), out_row), b.mul(w.number(j), out_column))
        exists = b.icmp_signed("<", w.number(j), there)
        place = b.select(exists, w.at(w.pointer(out), place_in_out), nowhere)
        b.store(b.select(add, b.fadd(b.load(place), total), total), place)


def panel(rows: int, vectors: int) -> Any:
    """Make a kernel for a product of ``rows`` rows with a panel of ``vectors`` * LANES columns.

    rows * vectors + vectors + 1 registers are in use.
    """

    def panel_kernel(
        w: VectorWriter, a: int, a_row: int, a_column: int, b: int, b_row: int, K: int, scale: float,
        add: bool, out: int, out_row: int,
    ) -> None:  # fmt: skip
        """out [rows, columns] = scale * a [rows, K] b [K, columns], added to ``out`` where ``add``.

        a may be transposed, because both its steps are arguments.
        """
        build, left, right, to = w.builder, w.pointer(a), w.pointer(b), w.pointer(out)
        pairs = [(r, v) for r in range(rows) for v in range(vectors)]
        sums = dict(zip(pairs, w.variables(len(pairs)), strict=True))
        w.zeroed(list(sums.values()))
        lines = [w.at(left, build.mul(w.number(r), a_row)) for r in range(rows)]
        with w.times(K) as loop:
            at_a, at_b = build.mul(loop.index, a_column), build.mul(loop.index, b_row)
            side = [w.load(right, at_b, v) for v in range(vectors)]
            for r in range(rows):
                factor = w.repeated(w.one(lines[r], at_a))
                for v in range(vectors):
                    build.store(w.multiply_add(factor, side[v], build.load(sums[r, v])), sums[r, v])
        factor = w.repeated(scale)
        for r, v in pairs:
            line = build.mul(w.number(r), out_row)
            total = build.fmul(factor, build.load(sums[r, v]))
            w.write_out(total, to, line, v, add)

    return vector_kernel(panel_kernel)


_four_by_two, _two_by_four, _one_by_four = tile(4, 2), tile(2, 4), tile(1, 4)


@leaf
def products(g: int, x: int, m: int, t: int, n: int, S: int) -> None:
    """g [m, n] = x [m, S] t [n, S]^T; all are addresses."""
    r = 0
    while r + 4 <= m:
        for c in range(0, n, 2):
            place = g + 4 * (r * n + c)
            _four_by_two(FLOAT, t + 4 * c * S, S, min(2, n - c), x + 4 * r * S, S, place, n, 1, False)
        r += 4
    if r + 2 <= m:
        for c in range(0, n, 4):
            place = g + 4 * (r * n + c)
            _two_by_four(FLOAT, t + 4 * c * S, S, min(4, n - c), x + 4 * r * S, S, place, n, 1, False)
        r += 2
    if r < m:
        for c in range(0, n, 4):
            place = g + 4 * (r * n + c)
            _one_by_four(FLOAT, t + 4 * c * S, S, min(4, n - c), x + 4 * r * S, S, place, n, 1, False)


@_intrinsic
def gemm(
    _typing: Any, routine: Any, left_t: Any, right_t: Any, M: Any, N: Any, K: Any, scale: Any, left: Any,
    left_row: Any, right: Any, right_row: Any, keep: Any, out: Any, out_row: Any,
) -> Any:  # fmt: skip
    """out [M, N] = scale * left [M, K] @ right [K, N] + keep * out, in float32, by ``sgemm``.

    ``routine`` is the address of BLAS's; ``left_t`` and ``right_t`` say that a factor is transposed;
    ``*_row`` is the step from row to row.
    """
    wide, single, place = types.int64, types.float32, _CPointer(types.float32)

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        at, left_flag, right_flag, m, n, k, alpha, a, a_row, b, b_row, beta, c, c_row = args
        char, integer = ir.IntType(8), ir.IntType(32)

        def kept(value: Any, kind: Any) -> Any:
            slot = cgutils.alloca_once(builder, kind)  # type: ignore[no-untyped-call]
            builder.store(value, slot)
            return slot

        def letter(flag: Any) -> Any:
            return kept(builder.select(flag, ir.Constant(char, ord("T")), ir.Constant(char, ord("N"))), char)

        def size(value: Any) -> Any:
            return kept(builder.trunc(value, integer), integer)

        # Fortran reads rows as columns: out^T [N, M] = right^T [N, K] left^T [K, M]
        arguments = [
            letter(right_flag), letter(left_flag), size(n), size(m), size(k), kept(alpha, ir.FloatType()), b,
            size(b_row), a, size(a_row), kept(beta, ir.FloatType()), c, size(c_row),
        ]  # fmt: skip
        kind = ir.FunctionType(ir.VoidType(), [value.type for value in arguments])
        builder.call(builder.inttoptr(at, kind.as_pointer()), arguments)
        return _context.get_dummy_value()

    flag = types.boolean
    factors = (single, place, wide, place, wide)
    return types.void(wide, flag, flag, wide, wide, wide, *factors, single, place, wide), generate
