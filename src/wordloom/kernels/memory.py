"""Memory as kernels see it: typed pointers, elements read and written as float32, prefetching and counters.

A tensor is an address.  ``like`` gives the type of its elements: a value of that type, or an array of them.
Elements are float32, or bfloat16 kept as the 16 bits of a uint16; arithmetic is in float32 for both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from wordloom.kernels.machine_code import exact

# values of each type of element, for ``like``
FLOAT, UINT8, UINT32, UINT64 = np.float32(0), np.uint8(0), np.uint32(0), np.uint64(0)
INT32, INT64, DOUBLE = np.int32(0), np.int64(0), np.float64(0)

_intrinsic: Any = intrinsic
_CPointer: Any = types.CPointer
_f32, _i32, _i64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)


# -- elements ----------------------------------------------------------------------------------------------


def _element_type(like: Any) -> Any:
    return getattr(like, "dtype", like)


def stored_as(like: Any) -> Any:
    """Return the LLVM type of one element: a float, or the 16 bits of a bfloat16."""
    return _f32 if _element_type(like) == types.float32 else ir.IntType(16)


def widened(builder: Any, value: Any) -> Any:
    """Write code that widens a loaded number or vector to float32: of a bfloat16, it is the upper half."""
    lanes = value.type.count if isinstance(value.type, ir.VectorType) else 0
    kind = value.type.element if lanes else value.type
    if kind == _f32:
        return value
    wide = ir.VectorType(_i32, lanes) if lanes else _i32
    by = ir.Constant(wide, [16] * lanes if lanes else 16)
    bits = builder.shl(builder.zext(value, wide), by)
    return builder.bitcast(bits, ir.VectorType(_f32, lanes) if lanes else _f32)


@_intrinsic
def float_of(_typing: Any, bits: Any) -> Any:
    """Return the float32 that has these 32 bits."""
    return types.float32(types.uint32), lambda _c, builder, _s, args: builder.bitcast(args[0], _f32)


@_intrinsic
def bits_of(_typing: Any, value: Any) -> Any:
    """Return the 32 bits of a float32."""
    return types.uint32(types.float32), lambda _c, builder, _s, args: builder.bitcast(args[0], _i32)


@_intrinsic
def pointer(_typing: Any, address: Any, like: Any) -> Any:
    """Return ``address`` as a pointer to elements of the type of ``like``."""
    kind = _element_type(like)

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_data_type(kind).as_pointer())

    return _CPointer(kind)(types.int64, like), generate


@_intrinsic
def element_size(_typing: Any, like: Any) -> Any:
    """Return the bytes of one element of the type of ``like``."""
    size = ir.Constant(_i64, _element_type(like).bitwidth // 8)
    return types.int64(like), lambda _context, _builder, _signature, _args: size


@_intrinsic
def is_null(_typing: Any, place: Any) -> Any:
    """Return whether a pointer is null, which stands for an absent tensor."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.icmp_unsigned("==", builder.ptrtoint(args[0], _i64), ir.Constant(_i64, 0))

    return types.boolean(place), generate


@_intrinsic
def load(_typing: Any, place: Any, index: Any) -> Any:
    """Return element ``index`` as float32."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return widened(builder, builder.load(builder.gep(args[0], [args[1]])))

    return types.float32(place, types.int64), generate


@_intrinsic
def _put(_typing: Any, place: Any, index: Any, value: Any, rounded: Any) -> Any:
    """Store ``value`` where float32 is kept, ``rounded`` where bfloat16 is."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        builder.store(args[2 if place.dtype == types.float32 else 3], builder.gep(args[0], [args[1]]))
        return context.get_dummy_value()

    return types.void(place, types.int64, types.float32, types.uint16), generate


@exact
def store(place: Any, index: Any, value: Any) -> None:
    """Write a float32 to element ``index``; bfloat16 is rounded to the nearest, ties to even."""
    bits = bits_of(value)
    even = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded = np.uint16(even >> np.uint32(16)) if value == value else np.uint16(0x7FC0)
    _put(place, index, value, rounded)


# -- the processor -----------------------------------------------------------------------------------------


def write_prefetch(builder: Any, address: Any, *, to_write: bool = False, locality: int = 3) -> None:
    """Write code that asks for the cache line at pointer ``address``; ``locality`` 3 is the nearest cache."""
    i8 = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [i8, _i32, _i32, _i32])
    get: Any = cgutils.get_or_insert_function
    function = get(builder.module, kind, "llvm.prefetch.p0i8")
    flags = (ir.Constant(_i32, flag) for flag in (int(to_write), locality, 1))
    builder.call(function, [builder.bitcast(address, i8), *flags])


def _prefetch(locality: int) -> Any:
    def prefetch(_typing: Any, address: Any) -> Any:
        """Prefetch the cache line at ``address``, which may be any address, without waiting."""

        def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            place = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
            write_prefetch(builder, place, locality=locality)
            return context.get_dummy_value()

        return types.void(types.int64), generate

    return _intrinsic(prefetch)


prefetch, prefetch_far = _prefetch(3), _prefetch(2)  # into the first-level cache, into the second-level one


@_intrinsic
def add_atomically(_typing: Any, place: Any, value: Any) -> Any:
    """Add atomically to the int64 at a pointer or address, and return the value before."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        by_address = not isinstance(args[0].type, ir.PointerType)
        at = builder.inttoptr(args[0], _i64.as_pointer()) if by_address else args[0]
        return builder.atomic_rmw("add", at, args[1], "seq_cst")

    kind = place if isinstance(place, _CPointer) else types.int64
    return types.int64(kind, types.int64), generate


@exact
def ticket(place: Any) -> int:
    """Return the next number of the counter at ``place``: 0, 1, ...; each number goes to one thread."""
    number: int = add_atomically(place, 1)
    return number


@_intrinsic
def lowest_bit(_typing: Any, bits: Any) -> Any:
    """Return the number of the lowest bit that is set, counted from 0; ``bits`` is not 0."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate
