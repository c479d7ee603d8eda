"""Kernels on rows of a table, of D floats each, a multiple of :data:`~wordloom.kernels.registers.LANES`.

Everything is given by address, as float32 unless ``like`` says otherwise, as in
:mod:`wordloom.kernels.registers`; ``indices`` and ``places`` are int64.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from wordloom.kernels.registers import LANES, VectorWriter, stored_as

__all__ = ["add_rows", "copy_rows", "dot_at", "fetch_rows", "mix_at", "spread", "sum_rows"]

_intrinsic: Any = intrinsic


def _rows_kernel(body: Any, *arguments: Any) -> Any:
    """An intrinsic of arguments of these types, whose code ``body(writer, *arguments)`` writes."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        body(VectorWriter(builder), *args)
        return context.get_dummy_value()

    return types.void(*arguments), generate


@_intrinsic
def add_rows(
    _typing: Any, like: Any, out: Any, rows: Any, n: Any, step: Any, factors: Any, factor_step: Any, D: Any
) -> Any:
    """out [D] += sum over i < n of factors[i * factor_step] * rows[i * step : i * step + D].

    ``rows`` are stored as ``like`` says.
    """

    def body(
        w: VectorWriter, _: Any, out: Any, rows: Any, n: Any, step: Any, factors: Any, f_step: Any, D: Any
    ) -> None:
        stored = stored_as(like)
        out, rows, factors = w.floats(out), w.builder.inttoptr(rows, stored.as_pointer()), w.floats(factors)
        held, b = w.slots(w.HELD), w.builder
        kind = ir.FunctionType(w.vector, [w.vector] * 3)
        fma = cgutils.get_or_insert_function(b.module, kind, f"llvm.fma.v{LANES}f32")  # type: ignore[no-untyped-call]

        def stretch(k: Any, count: int) -> None:
            for u in range(count):
                b.store(w.load(out, k, u), held[u])
            with w.times(n) as loop:
                factor = w.repeated(b.load(b.gep(factors, [b.mul(loop.index, f_step)])))
                at = b.add(b.mul(loop.index, step), k)
                for u in range(count):
                    row = w.load(rows, at, u, stored)
                    b.store(b.call(fma, [factor, row, b.load(held[u])]), held[u])
            for u in range(count):
                w.store(b.load(held[u]), out, k, u)

        w.stretches(D, stretch)

    return _rows_kernel(body, like, *[types.int64] * 7)


@_intrinsic
def dot_at(_typing: Any, out: Any, places: Any, n: Any, offset: Any, x: Any, D: Any) -> Any:
    """out [n] = the products of x [D] with D floats ``offset`` bytes behind each of the n addresses."""

    def body(w: VectorWriter, out: Any, places: Any, n: Any, offset: Any, x: Any, D: Any) -> None:
        out, x, b = w.floats(out), w.floats(x), w.builder
        places = b.inttoptr(places, w.i64.as_pointer())
        kind = ir.FunctionType(w.vector, [w.vector] * 3)
        fma = cgutils.get_or_insert_function(b.module, kind, f"llvm.fma.v{LANES}f32")  # type: ignore[no-untyped-call]
        kind, name = ir.FunctionType(w.f32, [w.f32, w.vector]), f"llvm.vector.reduce.fadd.v{LANES}f32"
        add_up = cgutils.get_or_insert_function(b.module, kind, name)  # type: ignore[no-untyped-call]
        (total,) = w.slots(1)
        with w.times(n) as loop:
            row = w.floats(b.add(b.load(b.gep(places, [loop.index])), offset))
            b.store(ir.Constant(w.vector, [0.0] * LANES), total)

            def stretch(k: Any, count: int) -> None:
                for u in range(count):
                    b.store(b.call(fma, [w.load(x, k, u), w.load(row, k, u), b.load(total)]), total)

            w.stretches(D, stretch)
            one = b.call(add_up, [ir.Constant(w.f32, -0.0), b.load(total)], fastmath=["reassoc"])
            b.store(one, b.gep(out, [loop.index]))

    return _rows_kernel(body, *[types.int64] * 6)


@_intrinsic
def mix_at(_typing: Any, out: Any, places: Any, n: Any, offset: Any, factors: Any, D: Any) -> Any:
    """out [D] = the sum of factors[i] times the D floats ``offset`` bytes behind each of the n addresses."""

    def body(w: VectorWriter, out: Any, places: Any, n: Any, offset: Any, factors: Any, D: Any) -> None:
        out, factors, b = w.floats(out), w.floats(factors), w.builder
        places = b.inttoptr(places, w.i64.as_pointer())
        kind = ir.FunctionType(w.vector, [w.vector] * 3)
        fma = cgutils.get_or_insert_function(b.module, kind, f"llvm.fma.v{LANES}f32")  # type: ignore[no-untyped-call]
        held = w.slots(w.HELD)

        def stretch(k: Any, count: int) -> None:
            for u in range(count):
                b.store(ir.Constant(w.vector, [0.0] * LANES), held[u])
            with w.times(n) as loop:
                factor = w.repeated(b.load(b.gep(factors, [loop.index])))
                row = w.floats(b.add(b.load(b.gep(places, [loop.index])), offset))
                for u in range(count):
                    b.store(b.call(fma, [factor, w.load(row, k, u), b.load(held[u])]), held[u])
            for u in range(count):
                w.store(b.load(held[u]), out, k, u)

        w.stretches(D, stretch)

    return _rows_kernel(body, *[types.int64] * 6)


@_intrinsic
def sum_rows(_typing: Any, out: Any, table: Any, indices: Any, n: Any, D: Any) -> Any:
    """out [D] = the sum of rows ``indices`` [n] of ``table``."""

    def body(w: VectorWriter, out: Any, table: Any, indices: Any, n: Any, D: Any) -> None:
        out, table, b = w.floats(out), w.floats(table), w.builder
        held = w.slots(w.HELD)

        def stretch(k: Any, count: int) -> None:
            for u in range(count):
                b.store(ir.Constant(w.vector, [0.0] * LANES), held[u])
            with w.times(n) as loop:
                row = w.row(table, indices, loop.index, D)
                for u in range(count):
                    b.store(b.fadd(b.load(held[u]), w.load(row, k, u)), held[u])
            for u in range(count):
                w.store(b.load(held[u]), out, k, u)

        w.stretches(D, stretch)

    return _rows_kernel(body, *[types.int64] * 5)


@_intrinsic
def spread(_typing: Any, table: Any, indices: Any, n: Any, change: Any, D: Any) -> Any:
    """Add ``change`` [D] to rows ``indices`` [n] of ``table``."""

    def body(w: VectorWriter, table: Any, indices: Any, n: Any, change: Any, D: Any) -> None:
        table, change, b = w.floats(table), w.floats(change), w.builder

        def stretch(k: Any, count: int) -> None:
            more = [w.load(change, k, u) for u in range(count)]
            with w.times(n) as loop:
                row = w.row(table, indices, loop.index, D)
                for u in range(count):
                    w.store(b.fadd(w.load(row, k, u), more[u]), row, k, u)

        w.stretches(D, stretch)

    return _rows_kernel(body, *[types.int64] * 5)


@_intrinsic
def copy_rows(_typing: Any, out: Any, table: Any, indices: Any, n: Any, D: Any) -> Any:
    """out [n, D] = rows ``indices`` [n] of ``table``."""

    def body(w: VectorWriter, out: Any, table: Any, indices: Any, n: Any, D: Any) -> None:
        out, table, b = w.floats(out), w.floats(table), w.builder
        with w.times(n) as loop:
            row, place = w.row(table, indices, loop.index, D), b.gep(out, [b.mul(loop.index, D)])

            def stretch(k: Any, count: int) -> None:
                for u in range(count):
                    w.store(w.load(row, k, u), place, k, u)

            w.stretches(D, stretch)

    return _rows_kernel(body, *[types.int64] * 5)


@_intrinsic
def fetch_rows(_typing: Any, table: Any, indices: Any, n: Any, D: Any) -> Any:
    """Have rows ``indices`` [n] of ``table`` brought near from memory, to be written to soon."""

    def body(w: VectorWriter, table: Any, indices: Any, n: Any, D: Any) -> None:
        table, b, i8 = w.floats(table), w.builder, ir.IntType(8)
        kind = ir.FunctionType(ir.VoidType(), [i8.as_pointer(), w.i32, w.i32, w.i32])
        prefetch = cgutils.get_or_insert_function(b.module, kind, "llvm.prefetch.p0i8")  # type: ignore[no-untyped-call]
        with w.times(n) as loop:
            row = w.row(table, indices, loop.index, D)
            with cgutils.for_range_slice(b, w.number(0), D, w.number(16), w.i64) as (k, _):
                line = b.bitcast(b.gep(row, [k]), i8.as_pointer())
                b.call(prefetch, [line, *(ir.Constant(w.i32, flag) for flag in (1, 3, 1))])

    return _rows_kernel(body, *[types.int64] * 4)
