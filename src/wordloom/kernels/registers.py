"""Inner loops written in vector registers, where the compiler's own vectors of the plain loop spill or stall.

Everything is given by address, as float32 unless ``like`` says otherwise: an empty array whose type tells how
a tensor is stored, float32 or uint16 for the bits of bfloat16.

:func:`tile` and :func:`panel` multiply; what works on rows of a table is in :mod:`wordloom.kernels.rows`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import llvmlite.binding as llvm  # type: ignore[import-untyped]
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["LANES", "VectorWriter", "panel", "stored_as", "tile"]

_intrinsic: Any = intrinsic

LANES = 16 if dict(llvm.get_host_cpu_features()).get("avx512f") else 8  # floats in a vector register


_FLOAT = ir.FloatType()


def stored_as(like: Any) -> Any:
    """What memory holds of a tensor that is ``like`` this: floats, or the 16 bits of bfloat16."""
    return _FLOAT if like.dtype == types.float32 else ir.IntType(16)


def _widened(builder: Any, value: Any) -> Any:
    """A loaded number, or vector of them, as float32: bfloat16 is the upper half of it."""
    vector = isinstance(value.type, ir.VectorType)
    if (value.type.element if vector else value.type) == _FLOAT:
        return value
    i32 = ir.IntType(32)
    whole = ir.VectorType(i32, LANES) if vector else i32
    by = ir.Constant(whole, [16] * LANES if vector else 16)
    wide = builder.shl(builder.zext(value, whole), by)
    return builder.bitcast(wide, ir.VectorType(_FLOAT, LANES) if vector else _FLOAT)


def tile(tokens: int, rows: int, ahead: int = 0) -> Any:
    """A kernel for the products of ``tokens`` rows of x with ``rows`` rows of a weight.

    Written in vector registers, one for each product: what the compiler makes of the plain loop spills them,
    and runs at half the speed.  tokens * rows + rows + 1 of them are in use.  What lies ``ahead`` elements
    further on in each row of the weight is fetched from memory meanwhile.
    """

    def multiply(
        _typing: Any, like: Any, weight: Any, weight_row: Any, there: Any, x: Any, K: Any, out: Any,
        out_row: Any, out_column: Any, add: Any,
    ) -> Any:  # fmt: skip
        """out [tokens, rows] (+)= float32 x [tokens, K] times rows of K elements at ``weight``.

        The next row of the weight follows after ``weight_row`` elements, the next row and column of ``out``
        after ``out_row`` and ``out_column``.  Where fewer rows are ``there``, no more are written.
        """

        def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            _, at_weight, row_step, n_rows, at_x, n, at_out, out_step, column_step, add_to = args
            i8, i32, i64, f32 = ir.IntType(8), ir.IntType(32), ir.IntType(64), _FLOAT
            stored = stored_as(like)
            vector = ir.VectorType(f32, LANES)
            number = partial(ir.Constant, i64)

            def function(name: str, result: Any, *given: Any) -> Any:
                kind = ir.FunctionType(result, given)
                return cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call]

            def slot(kind: Any) -> Any:
                return cgutils.alloca_once(builder, kind)  # type: ignore[no-untyped-call]

            multiply_add = function(f"llvm.fmuladd.v{LANES}f32", vector, vector, vector, vector)
            multiply_add_one = function("llvm.fmuladd.f32", f32, f32, f32, f32)
            add_up = function(f"llvm.vector.reduce.fadd.v{LANES}f32", f32, f32, vector)
            prefetch = function("llvm.prefetch.p0i8", ir.VoidType(), i8.as_pointer(), i32, i32, i32)

            def load_vector(pointer: Any, k: Any, kind: Any, align: int) -> Any:
                place = builder.bitcast(builder.gep(pointer, [k]), ir.VectorType(kind, LANES).as_pointer())
                return _widened(builder, builder.load(place, align=align))

            first = builder.inttoptr(at_weight, stored.as_pointer())
            w, last = [], builder.sub(n_rows, number(1))
            for j in range(rows):
                row = builder.select(builder.icmp_signed("<", number(j), last), number(j), last)
                w.append(builder.gep(first, [builder.mul(row, row_step)]))
            first = builder.inttoptr(at_x, f32.as_pointer())
            xs = [builder.gep(first, [builder.mul(number(t), n)]) for t in range(tokens)]
            pairs = [(t, j) for t in range(tokens) for j in range(rows)]
            sums = {pair: slot(vector) for pair in pairs}
            for pair in pairs:
                builder.store(ir.Constant(vector, [0.0] * LANES), sums[pair])
            whole = builder.and_(n, number(-LANES))
            with cgutils.for_range_slice(builder, number(0), whole, number(LANES), i64) as (k, _):
                later = builder.add(k, number(ahead))
                for j in range(rows if ahead else 0):
                    place = builder.bitcast(builder.gep(w[j], [later]), i8.as_pointer())
                    builder.call(prefetch, [place, *(ir.Constant(i32, flag) for flag in (0, 3, 1))])
                side = [load_vector(w[j], k, stored, 4 if stored == f32 else 2) for j in range(rows)]
                for t in range(tokens):
                    value = load_vector(xs[t], k, f32, 4)
                    for j in range(rows):
                        total = builder.call(multiply_add, [side[j], value, builder.load(sums[t, j])])
                        builder.store(total, sums[t, j])
            ones = {pair: slot(f32) for pair in pairs}
            for pair in pairs:
                start = ir.Constant(f32, -0.0)
                total = builder.call(add_up, [start, builder.load(sums[pair])], fastmath=["reassoc"])
                builder.store(total, ones[pair])
            with cgutils.for_range_slice(builder, whole, n, number(1), i64) as (k, _):
                for t, j in pairs:
                    value, one = builder.load(builder.gep(xs[t], [k])), builder.load(builder.gep(w[j], [k]))
                    total = builder.call(
                        multiply_add_one, [_widened(builder, one), value, builder.load(ones[t, j])]
                    )
                    builder.store(total, ones[t, j])
            first, nowhere = builder.inttoptr(at_out, f32.as_pointer()), slot(f32)
            for t, j in pairs:
                column = builder.mul(number(j), column_step)
                place = builder.gep(first, [builder.add(builder.mul(number(t), out_step), column)])
                place = builder.select(builder.icmp_signed("<", number(j), n_rows), place, nowhere)
                total = builder.load(ones[t, j])
                sum_with = builder.fadd(builder.load(place), total)
                builder.store(builder.select(add_to, sum_with, total), place)
            return context.get_dummy_value()

        i = types.int64
        return types.void(like, *[i] * 8, types.boolean), generate

    return _intrinsic(multiply)


class VectorWriter:
    """Writes the loops of the row kernels: vectors of LANES floats, four of them in registers at a time."""

    HELD = 4

    def __init__(self, builder: Any) -> None:
        self.builder = builder
        self.i64, self.i32, self.f32 = ir.IntType(64), ir.IntType(32), _FLOAT
        self.vector = ir.VectorType(self.f32, LANES)
        self.number = partial(ir.Constant, self.i64)

    def floats(self, address: Any) -> Any:
        return self.builder.inttoptr(address, self.f32.as_pointer())

    def row(self, table: Any, indices: Any, i: Any, D: Any) -> Any:
        """A pointer to row ``indices[i]`` of ``table``."""
        places = self.builder.inttoptr(indices, self.i64.as_pointer())
        index = self.builder.load(self.builder.gep(places, [i]))
        return self.builder.gep(table, [self.builder.mul(index, D)])

    def _place(self, pointer: Any, k: Any, u: int, stored: Any) -> Any:
        at = self.builder.gep(pointer, [self.builder.add(k, self.number(u * LANES))])
        return self.builder.bitcast(at, ir.VectorType(stored, LANES).as_pointer())

    def load(self, pointer: Any, k: Any, u: int, stored: Any = _FLOAT) -> Any:
        """Vector u after element k, as float32 whatever is ``stored``."""
        value = self.builder.load(self._place(pointer, k, u, stored), align=4 if stored == _FLOAT else 2)
        return _widened(self.builder, value)

    def store(self, value: Any, pointer: Any, k: Any, u: int) -> None:
        self.builder.store(value, self._place(pointer, k, u, _FLOAT), align=4)

    def repeated(self, value: Any) -> Any:
        """A vector of one number."""
        undefined = ir.Constant(self.vector, ir.Undefined)
        first = self.builder.insert_element(undefined, value, ir.Constant(self.i32, 0))
        mask = ir.Constant(ir.VectorType(self.i32, LANES), [0] * LANES)
        return self.builder.shuffle_vector(first, undefined, mask)

    def times(self, n: Any) -> Any:
        return cgutils.for_range(self.builder, n, intp=self.i64)

    def stretches(self, D: Any, body: Any) -> None:
        """``body(k, count)`` for every stretch of ``count`` vectors, at element k, of a row."""
        first = self.number(0)
        for count in (self.HELD, 2, 1):
            by = self.number(count * LANES)
            last = self.builder.mul(self.builder.sdiv(D, by), by)
            with cgutils.for_range_slice(self.builder, first, last, by, self.i64) as (k, _):
                body(k, count)
            first = last

    def slots(self, count: int) -> list[Any]:
        return [cgutils.alloca_once(self.builder, self.vector) for _ in range(count)]  # type: ignore[no-untyped-call]


def panel(rows: int, vectors: int) -> Any:
    """A kernel for a product of ``rows`` rows with a panel of ``vectors`` * LANES columns.

    panel(a, a_row, a_column, b, b_row, K, scale, add, out, out_row), all but ``scale`` and ``add`` int64:
    out [rows, columns] = scale * a [rows, K] b [K, columns], added to ``out`` where ``add``.  The steps of a
    are free, so that it may lie transposed.  rows * vectors + vectors + 1 registers are in use.
    """

    def multiply(
        _typing: Any, a: Any, a_row: Any, a_column: Any, b: Any, b_row: Any, K: Any, scale: Any, add: Any,
        out: Any, out_row: Any,
    ) -> Any:  # fmt: skip
        def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            a, a_row, a_column, b, b_row, n, scale, add, out, out_row = args
            w, made = VectorWriter(builder), builder
            kind = ir.FunctionType(w.vector, [w.vector] * 3)
            fma = cgutils.get_or_insert_function(made.module, kind, f"llvm.fma.v{LANES}f32")  # type: ignore[no-untyped-call]
            a, b, out = w.floats(a), w.floats(b), w.floats(out)
            held = w.slots(rows * vectors)
            for one in held:
                made.store(ir.Constant(w.vector, [0.0] * LANES), one)
            lines = [made.gep(a, [made.mul(w.number(r), a_row)]) for r in range(rows)]
            with w.times(n) as loop:
                at_a, at_b = made.mul(loop.index, a_column), made.mul(loop.index, b_row)
                side = [w.load(b, at_b, v) for v in range(vectors)]
                for r in range(rows):
                    factor = w.repeated(made.load(made.gep(lines[r], [at_a])))
                    for v in range(vectors):
                        one = held[r * vectors + v]
                        made.store(made.call(fma, [factor, side[v], made.load(one)]), one)
            scales = w.repeated(scale)
            for r in range(rows):
                line = made.mul(w.number(r), out_row)
                for v in range(vectors):
                    total = made.fmul(scales, made.load(held[r * vectors + v]))
                    with made.if_else(add) as (then, otherwise):
                        with then:
                            w.store(made.fadd(w.load(out, line, v), total), out, line, v)
                        with otherwise:
                            w.store(total, out, line, v)
            return context.get_dummy_value()

        i = types.int64
        return types.void(i, i, i, i, i, i, types.float32, types.boolean, i, i), generate

    return _intrinsic(multiply)
