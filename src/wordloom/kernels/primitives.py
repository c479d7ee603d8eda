"""What programs compiled by numba are written with: threads' shares, memory, arithmetic.

Tensors are float32, or bfloat16 seen as the 16 bits that it is; arithmetic is in float32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from wordloom.kernels.cache import compiled_callback

__all__ = [
    "bits_of",
    "bounds",
    "exact",
    "exp",
    "f4",
    "float_of",
    "gemm",
    "highest",
    "leaf",
    "load",
    "machine_code",
    "pointer",
    "scrambled",
    "store",
    "ticket",
]

f4 = np.float32

# Sums may be reordered, which vectors need, but NaN and infinity stay what they are.  All is inlined by
# force: else a process that compiles and one that reads compiled code back from disk link different copies of
# a leaf, whose sums round differently, and a run resumed in a second process would not find the first's bits.
leaf: Any = njit(fastmath={"contract", "reassoc", "nsz", "arcp"}, error_model="numpy", forceinline=True)
exact: Any = njit(fastmath={"contract"}, error_model="numpy", forceinline=True)
# Only here may NaN be taken for any number: a row that has one ends in NaN whatever its highest is.
unordered: Any = njit(fastmath={"nnan", "nsz"}, error_model="numpy", forceinline=True)
_intrinsic: Any = intrinsic
_CPointer: Any = types.CPointer


# -- memory ----------------------------------------------------------------------------------------------


@_intrinsic
def float_of(_typing: Any, bits: Any) -> Any:
    """The float32 that has these 32 bits."""
    return types.float32(types.uint32), lambda _c, builder, _s, args: builder.bitcast(args[0], ir.FloatType())


@_intrinsic
def bits_of(_typing: Any, value: Any) -> Any:
    """The 32 bits of a float32."""
    return types.uint32(types.float32), lambda _c, builder, _s, args: builder.bitcast(args[0], ir.IntType(32))


@_intrinsic
def pointer(_typing: Any, address: Any, like: Any) -> Any:
    """``address`` as a pointer to elements of the type of the value ``like``."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], args[1].type.as_pointer())

    return _CPointer(like)(types.int64, like), generate


@_intrinsic
def ticket(_typing: Any, packet: Any) -> Any:
    """The next number from the counter at the head of ``packet``; every thread gets another."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", args[0], ir.Constant(ir.IntType(64), 1), "seq_cst")

    return types.int64(_CPointer(types.int64)), generate


@_intrinsic
def load(_typing: Any, pointer: Any, index: Any) -> Any:
    """Element ``index`` as float32."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        value = builder.load(builder.gep(args[0], [args[1]]))
        if pointer.dtype == types.float32:
            return value
        # a bfloat16 is the upper half of a float32
        wide = builder.shl(builder.zext(value, ir.IntType(32)), ir.Constant(ir.IntType(32), 16))
        return builder.bitcast(wide, ir.FloatType())

    return types.float32(pointer, types.int64), generate


@_intrinsic
def put(_typing: Any, pointer: Any, index: Any, value: Any, rounded: Any) -> Any:
    """Store ``value`` where float32 is kept, ``rounded`` where bfloat16 is."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        place = builder.gep(args[0], [args[1]])
        builder.store(args[2 if pointer.dtype == types.float32 else 3], place)
        return _context.get_dummy_value()

    return types.void(pointer, types.int64, types.float32, types.uint16), generate


@exact
def store(pointer: Any, index: Any, value: Any) -> None:
    bits = bits_of(value)
    even = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))  # to nearest, ties to even
    rounded = np.uint16(even >> np.uint32(16)) if value == value else np.uint16(0x7FC0)
    put(pointer, index, value, rounded)


@_intrinsic
def gemm(
    _typing: Any,
    routine: Any,
    left_t: Any,
    right_t: Any,
    M: Any,
    N: Any,
    K: Any,
    scale: Any,
    left: Any,
    left_row: Any,
    right: Any,
    right_row: Any,
    keep: Any,
    out: Any,
    out_row: Any,
) -> Any:
    """out [M, N] = scale * left [M, K] @ right [K, N] + keep * out, in float32, by ``sgemm``.

    ``routine`` is the address of BLAS's; ``left_t`` and ``right_t`` say that a side lies transposed;
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
        given = [
            letter(right_flag),
            letter(left_flag),
            size(n),
            size(m),
            size(k),
            kept(alpha, ir.FloatType()),
            b,
            size(b_row),
            a,
            size(a_row),
            kept(beta, ir.FloatType()),
            c,
            size(c_row),
        ]
        kind = ir.FunctionType(ir.VoidType(), [value.type for value in given])
        builder.call(builder.inttoptr(at, kind.as_pointer()), given)
        return _context.get_dummy_value()

    signature = types.void(
        wide,
        types.boolean,
        types.boolean,
        wide,
        wide,
        wide,
        single,
        place,
        wide,
        place,
        wide,
        single,
        place,
        wide,
    )
    return signature, generate


# -- arithmetic ------------------------------------------------------------------------------------------


@exact
def exp(x: Any) -> Any:
    """e**x to two units in the last place (Cephes' expf), without a branch, so that loops become vectors."""
    x = f4(-80.0) if x < f4(-80.0) else x  # beyond, sums with 1 are what they are here, and nothing overflows
    x = f4(80.0) if x > f4(80.0) else x
    shifted = x * f4(1.44269504) + f4(12582912.0)  # adding 1.5 * 2^23 rounds: the integer is in the low bits
    n = shifted - f4(12582912.0)
    r = x - n * f4(0.693359375) - n * f4(-2.12194440e-4)
    p = f4(1.9875691500e-4)
    p = p * r + f4(1.3981999507e-3)
    p = p * r + f4(8.3334519073e-3)
    p = p * r + f4(4.1665795894e-2)
    p = p * r + f4(1.6666665459e-1)
    p = p * r + f4(5.0000001201e-1)
    p = p * r * r + r + f4(1.0)
    return p * float_of((bits_of(shifted) << np.uint32(23)) + np.uint32(0x3F800000))  # p * 2^n


@unordered
def highest(values: Any, first: int, n: int) -> Any:
    """The largest of n elements."""
    largest = load(values, first)
    for i in range(first, first + n):
        value = load(values, i)
        largest = value if value > largest else largest
    return largest


@exact
def scrambled(i: Any, low: Any, high: Any) -> Any:
    """32 bits, a hash of i and the two halves of a seed, all uint32.

    It multiplies and shifts as Wellons's "lowbias32" (2018, "Prospecting for hash functions"); the second
    half of the seed comes in between two rounds, so that seeds do not share stretches.
    """
    h = i ^ low
    h = np.uint32((h ^ (h >> np.uint32(16))) * np.uint32(0x7FEB352D)) ^ high
    h = np.uint32((h ^ (h >> np.uint32(15))) * np.uint32(0x846CA68B))
    h = np.uint32((h ^ (h >> np.uint32(16))) * np.uint32(0x7FEB352D))
    return h ^ (h >> np.uint32(15))


# -- shares ---------------------------------------------------------------------------------------------


@exact
def bounds(packet: Any, share: int) -> tuple[int, int]:
    """From where to where share number ``share`` of the packet's first figure of items goes."""
    return packet[3] * share // packet[1], packet[3] * (share + 1) // packet[1]


# -- from Python to machine code --------------------------------------------------------------------------


@functools.cache
def machine_code(program: Callable[[Any], None]) -> int:
    """Where the machine code of ``program``, of one packet, begins; compiled when first asked for."""
    return int(compiled_callback(types.void(_CPointer(types.int64)), program).address)
