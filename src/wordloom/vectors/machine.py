"""What kernels ask of the processor and numba has no word for.

:mod:`wordloom.nn` has some of this too, but to import it is to import torch, which takes longer than counting
a small corpus, and more memory.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm  # type: ignore[import-untyped]
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["LANES", "bits_of", "float_of", "lowest_bit", "prefetch"]

_intrinsic: Any = intrinsic

LANES = 16 if dict(llvm.get_host_cpu_features()).get("avx512f") else 8  # floats in a vector register


@_intrinsic
def float_of(_typing: Any, bits: Any) -> Any:
    """The float32 that has these 32 bits."""
    return types.float32(types.uint32), lambda _c, builder, _s, args: builder.bitcast(args[0], ir.FloatType())


@_intrinsic
def bits_of(_typing: Any, value: Any) -> Any:
    """The 32 bits of a float32."""
    return types.uint32(types.float32), lambda _c, builder, _s, args: builder.bitcast(args[0], ir.IntType(32))


@_intrinsic
def prefetch(_typing: Any, address: Any) -> Any:
    """Ask for the cache line at ``address``, which will be needed soon, and go on at once."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        i8, i32 = ir.IntType(8), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [i8.as_pointer(), i32, i32, i32])
        function: Any = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
            builder.module, kind, "llvm.prefetch.p0i8"
        )
        place = builder.inttoptr(args[0], i8.as_pointer())
        builder.call(function, [place, *(ir.Constant(i32, flag) for flag in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@_intrinsic
def lowest_bit(_typing: Any, bits: Any) -> Any:
    """The number of the lowest bit that is set, counted from 0; ``bits`` is not 0."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate
