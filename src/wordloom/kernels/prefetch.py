"""What the kernels of co-occurrences and GloVe ask of the processor and numba has no word for."""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["lowest_bit", "prefetch"]

_intrinsic: Any = intrinsic


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
