"""Inner loops written in vector registers, where the compiler's own vectors of the plain loop spill or stall.

Everything is given by address, as float32 unless ``like`` says otherwise: an empty array whose type tells how
a tensor is stored, float32 or uint16 for the bits of bfloat16.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import llvmlite.binding as llvm  # type: ignore[import-untyped]
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["LANES", "tile"]

_intrinsic: Any = intrinsic

LANES = 16 if dict(llvm.get_host_cpu_features()).get("avx512f") else 8  # floats in a vector register


def tile(tokens: int, rows: int) -> Any:
    """A kernel for the products of ``tokens`` rows of x with ``rows`` rows of a weight.

    Written in vector registers, one for each product: what the compiler makes of the plain loop spills them,
    and runs at half the speed.  tokens * rows + rows of them are in use, of sixteen.
    """

    def multiply(
        _typing: Any, like: Any, weight: Any, there: Any, ahead: Any, x: Any, K: Any, out: Any, N: Any,
        add: Any,
    ) -> Any:  # fmt: skip
        """out [tokens, rows] (+)= float32 x [tokens, K] times rows of K elements at ``weight``.

        A row of ``out`` follows after N elements.  Where fewer rows are ``there``, no more are written.  What
        lies ``ahead`` elements further on in the weight is fetched from memory meanwhile: a row is too short
        for the processor to see where it leads.
        """

        def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            _, at_weight, n_rows, distance, at_x, n, at_out, out_step, add_to = args
            i8, i32, i64, f32 = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
            stored = f32 if like.dtype == types.float32 else ir.IntType(16)
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

            def widened(value: Any, lanes: int) -> Any:
                """bfloat16 is the upper half of float32."""
                if stored == f32:
                    return value
                whole, result = (ir.VectorType(i32, lanes), vector) if lanes > 1 else (i32, f32)
                by = ir.Constant(whole, [16] * lanes if lanes > 1 else 16)
                return builder.bitcast(builder.shl(builder.zext(value, whole), by), result)

            def load_vector(pointer: Any, k: Any, kind: Any, align: int) -> Any:
                place = builder.bitcast(builder.gep(pointer, [k]), ir.VectorType(kind, LANES).as_pointer())
                return builder.load(place, align=align)

            first = builder.inttoptr(at_weight, stored.as_pointer())
            w, last = [], builder.sub(n_rows, number(1))
            for j in range(rows):
                row = builder.select(builder.icmp_signed("<", number(j), last), number(j), last)
                w.append(builder.gep(first, [builder.mul(row, n)]))
            first = builder.inttoptr(at_x, f32.as_pointer())
            xs = [builder.gep(first, [builder.mul(number(t), n)]) for t in range(tokens)]
            pairs = [(t, j) for t in range(tokens) for j in range(rows)]
            sums = {pair: slot(vector) for pair in pairs}
            for pair in pairs:
                builder.store(ir.Constant(vector, [0.0] * LANES), sums[pair])
            whole = builder.and_(n, number(-LANES))
            with cgutils.for_range_slice(builder, number(0), whole, number(LANES), i64) as (k, _):
                later = builder.add(k, distance)
                for j in range(rows):
                    place = builder.bitcast(builder.gep(w[j], [later]), i8.as_pointer())
                    builder.call(prefetch, [place, *(ir.Constant(i32, flag) for flag in (0, 3, 1))])
                side = [
                    widened(load_vector(w[j], k, stored, 4 if stored == f32 else 2), LANES)
                    for j in range(rows)
                ]
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
                    total = builder.call(multiply_add_one, [widened(one, 1), value, builder.load(ones[t, j])])
                    builder.store(total, ones[t, j])
            first, nowhere = builder.inttoptr(at_out, f32.as_pointer()), slot(f32)
            for t, j in pairs:
                place = builder.gep(first, [builder.add(builder.mul(number(t), out_step), number(j))])
                place = builder.select(builder.icmp_signed("<", number(j), n_rows), place, nowhere)
                total = builder.load(ones[t, j])
                sum_with = builder.fadd(builder.load(place), total)
                builder.store(builder.select(add_to, sum_with, total), place)
            return context.get_dummy_value()

        i = types.int64
        return types.void(like, i, i, i, i, i, i, i, types.boolean), generate

    return _intrinsic(multiply)
