"""The programs behind :mod:`wordloom.nn.fused`: one pass over memory each, in float32 arithmetic.

Each is compiled when first asked for (a second) and kept on disk by numba.  Tensors are float32, or bfloat16
seen as the 16 bits that it is.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import cfunc, njit, types
from numba.extending import intrinsic

__all__ = ["PROGRAMS", "address_of"]

f4 = np.float32

# Sums may be reordered, which vectors need, but NaN and infinity stay what they are.  All is inlined by
# force: else a process that compiles and one that reads compiled code back from disk link different copies of
# a leaf, whose sums round differently, and a run resumed in a second process would not find the first's bits.
_leaf: Any = njit(fastmath={"contract", "reassoc", "nsz", "arcp"}, error_model="numpy", forceinline=True)
_exact: Any = njit(fastmath={"contract"}, error_model="numpy", forceinline=True)
# Only here may NaN be taken for any number: a row that has one ends in NaN whatever its highest is.
_unordered: Any = njit(fastmath={"nnan", "nsz"}, error_model="numpy", forceinline=True)
_intrinsic: Any = intrinsic
_CPointer: Any = types.CPointer


# -- memory ----------------------------------------------------------------------------------------------


@_intrinsic
def _float_of(_typing: Any, bits: Any) -> Any:
    """The float32 that has these 32 bits."""
    return types.float32(types.uint32), lambda _c, builder, _s, args: builder.bitcast(args[0], ir.FloatType())


@_intrinsic
def _bits_of(_typing: Any, value: Any) -> Any:
    """The 32 bits of a float32."""
    return types.uint32(types.float32), lambda _c, builder, _s, args: builder.bitcast(args[0], ir.IntType(32))


@_intrinsic
def _pointer(_typing: Any, address: Any, like: Any) -> Any:
    """``address`` as a pointer to elements of the type of the value ``like``."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], args[1].type.as_pointer())

    return _CPointer(like)(types.int64, like), generate


@_intrinsic
def _ticket(_typing: Any, packet: Any) -> Any:
    """The next number from the counter at the head of ``packet``; every thread gets another."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", args[0], ir.Constant(ir.IntType(64), 1), "seq_cst")

    return types.int64(_CPointer(types.int64)), generate


@_intrinsic
def _load(_typing: Any, pointer: Any, index: Any) -> Any:
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
def _put(_typing: Any, pointer: Any, index: Any, value: Any, rounded: Any) -> Any:
    """Store ``value`` where float32 is kept, ``rounded`` where bfloat16 is."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        place = builder.gep(args[0], [args[1]])
        builder.store(args[2 if pointer.dtype == types.float32 else 3], place)
        return _context.get_dummy_value()

    return types.void(pointer, types.int64, types.float32, types.uint16), generate


@_exact
def _store(pointer: Any, index: Any, value: Any) -> None:
    bits = _bits_of(value)
    even = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))  # to nearest, ties to even
    rounded = np.uint16(even >> np.uint32(16)) if value == value else np.uint16(0x7FC0)
    _put(pointer, index, value, rounded)


# -- arithmetic ------------------------------------------------------------------------------------------


@_exact
def _exp(x: Any) -> Any:
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
    return p * _float_of((_bits_of(shifted) << np.uint32(23)) + np.uint32(0x3F800000))  # p * 2^n


# -- programs --------------------------------------------------------------------------------------------
# A packet is: ticket counter, number of shares, how tensors are stored, then what the program's own first
# line lists, tensors as addresses.  ``like`` is a value of the stored type.


@_exact
def _bounds(packet: Any, share: int) -> tuple[int, int]:
    """From where to where share number ``share`` of the packet's first figure of items goes."""
    return packet[3] * share // packet[1], packet[3] * (share + 1) // packet[1]


# GELU(x) = x * sigmoid(z), z = 2 * sqrt(2 / pi) * (x + 0.044715 x^3): 0.5 * (1 + tanh(y)) = sigmoid(2 y)
_Z = f4(2.0 * math.sqrt(2.0 / math.pi))
_CUBE = f4(0.044715)


@_exact
def _gelu_tanh(packet: Any, like: Any, share: int) -> None:
    """n, x [n] -> y [n] and its slope at x [n]."""
    x, y, slope = _pointer(packet[4], like), _pointer(packet[5], like), _pointer(packet[6], like)
    start, stop = _bounds(packet, share)
    for i in range(start, stop):
        v = _load(x, i)
        square = v * v
        e = _exp(-_Z * v * (f4(1.0) + _CUBE * square))
        s = f4(1.0) / (f4(1.0) + e)
        _store(y, i, v * s)
        # z' s (1 - s); e s is 1 - s without the cancellation
        _store(slope, i, s + v * _Z * (f4(1.0) + f4(3.0) * _CUBE * square) * s * (e * s))


@_exact
def _swiglu(packet: Any, like: Any, share: int) -> None:
    """n, gate [n], up [n] -> y [n] = silu(gate) * up."""
    gate, up, y = _pointer(packet[4], like), _pointer(packet[5], like), _pointer(packet[6], like)
    start, stop = _bounds(packet, share)
    for i in range(start, stop):
        g = _load(gate, i)
        _store(y, i, g / (f4(1.0) + _exp(-g)) * _load(up, i))


@_exact
def _swiglu_backward(packet: Any, like: Any, share: int) -> None:
    """n, gate [n], up [n], d_y [n] -> d_gate [n], d_up [n]."""
    gate, up, d_y = _pointer(packet[4], like), _pointer(packet[5], like), _pointer(packet[6], like)
    d_gate, d_up = _pointer(packet[7], like), _pointer(packet[8], like)
    start, stop = _bounds(packet, share)
    for i in range(start, stop):
        g, d = _load(gate, i), _load(d_y, i)
        e = _exp(-g)
        s = f4(1.0) / (f4(1.0) + e)
        _store(d_up, i, d * g * s)
        _store(d_gate, i, d * _load(up, i) * (s + g * s * (e * s)))


@_leaf
def _rms_norm(packet: Any, like: Any, share: int) -> None:
    """N, D, eps (the bits of a float32), x [N, D], weight [D] float32 -> y [N, D], scale [N] float32."""
    D, eps = packet[4], _float_of(np.uint32(packet[5]))
    x, y = _pointer(packet[6], like), _pointer(packet[8], like)
    weight, scale = _pointer(packet[7], f4(0.0)), _pointer(packet[9], f4(0.0))
    start, stop = _bounds(packet, share)
    for row in range(start, stop):
        first = row * D
        total = f4(0.0)
        for i in range(D):
            v = _load(x, first + i)
            total += v * v
        r = f4(1.0) / np.sqrt(total / f4(D) + eps)
        scale[row] = r
        for i in range(D):
            _store(y, first + i, _load(x, first + i) * r * weight[i])


@_leaf
def _rms_norm_backward(packet: Any, like: Any, share: int) -> None:
    """N, D, x [N, D], weight [D], scale [N], d_y [N, D] -> d_x [N, D], d_weight [shares, D] of zeros."""
    D = packet[4]
    x, d_y, d_x = _pointer(packet[5], like), _pointer(packet[8], like), _pointer(packet[9], like)
    weight, scale = _pointer(packet[6], f4(0.0)), _pointer(packet[7], f4(0.0))
    start, stop = _bounds(packet, share)
    # the share, not the thread, says which row is added to: the sum of the rows repeats its bits
    d_weight = _pointer(packet[10] + 4 * share * D, f4(0.0))
    for row in range(start, stop):
        first, r = row * D, scale[row]
        total = f4(0.0)
        for i in range(D):
            v, d = _load(x, first + i), _load(d_y, first + i)
            total += d * weight[i] * v
            d_weight[i] += d * v * r
        back = total * r * r * r / f4(D)
        for i in range(D):
            _store(d_x, first + i, _load(d_y, first + i) * weight[i] * r - _load(x, first + i) * back)


@_unordered
def _highest(values: Any, first: int, n: int) -> Any:
    highest = _load(values, first)
    for i in range(first, first + n):
        value = _load(values, i)
        highest = value if value > highest else highest
    return highest


@_leaf
def _softmax_error(packet: Any, like: Any, share: int) -> None:
    """N, V, logits [N, V], targets [N] int64 -> losses [N] float32; logits become softmax - onehot(target).

    A target below 0 is not scored: its row and its loss are zero.
    """
    V, targets, losses = packet[4], _pointer(packet[6], np.int64(0)), _pointer(packet[7], f4(0.0))
    logits = _pointer(packet[5], like)
    start, stop = _bounds(packet, share)
    for row in range(start, stop):
        first, target = row * V, targets[row]
        if target < 0:
            losses[row] = f4(0.0)
            for i in range(first, first + V):
                _store(logits, i, f4(0.0))
            continue
        highest, scored = _highest(logits, first, V), _load(logits, first + target)
        total = f4(0.0)
        for i in range(first, first + V):
            total += _exp(_load(logits, i) - highest)
        losses[row] = np.log(total) + highest - scored
        # computed again: cheaper than keeping them elsewhere, and rounded once where logits are bfloat16
        scale = f4(1.0) / total
        for i in range(first, first + V):
            _store(logits, i, _exp(_load(logits, i) - highest) * scale)
        _store(logits, first + target, _exp(scored - highest) * scale - f4(1.0))


@_exact
def _rotate(packet: Any, like: Any, share: int) -> None:
    """B * T, T, H, E / 2, rows of cos (T or B * T), x [B, T, H, E], cos, sin [.., E / 2] -> y as x."""
    T, H, half, rows = packet[4], packet[5], packet[6], packet[7]
    x, y = _pointer(packet[8], like), _pointer(packet[11], like)
    cos, sin = _pointer(packet[9], f4(0.0)), _pointer(packet[10], f4(0.0))
    start, stop = _bounds(packet, share)
    for row in range(start, stop):
        angle = (row if rows != T else row % T) * half
        for head in range(H):
            first = (row * H + head) * 2 * half
            for i in range(half):
                a, b = _load(x, first + i), _load(x, first + half + i)
                c, s = cos[angle + i], sin[angle + i]
                _store(y, first + i, a * c - b * s)
                _store(y, first + half + i, b * c + a * s)


# -- as the threads call them: shares are taken until none is left -----------------------------------------


def gelu_tanh(packet: Any) -> None:
    share = _ticket(packet)
    while share < packet[1]:
        if packet[2]:
            _gelu_tanh(packet, np.uint16(0), share)
        else:
            _gelu_tanh(packet, f4(0), share)
        share = _ticket(packet)


def swiglu(packet: Any) -> None:
    share = _ticket(packet)
    while share < packet[1]:
        if packet[2]:
            _swiglu(packet, np.uint16(0), share)
        else:
            _swiglu(packet, f4(0), share)
        share = _ticket(packet)


def swiglu_backward(packet: Any) -> None:
    share = _ticket(packet)
    while share < packet[1]:
        if packet[2]:
            _swiglu_backward(packet, np.uint16(0), share)
        else:
            _swiglu_backward(packet, f4(0), share)
        share = _ticket(packet)


def rms_norm(packet: Any) -> None:
    share = _ticket(packet)
    while share < packet[1]:
        if packet[2]:
            _rms_norm(packet, np.uint16(0), share)
        else:
            _rms_norm(packet, f4(0), share)
        share = _ticket(packet)


def rms_norm_backward(packet: Any) -> None:
    share = _ticket(packet)
    while share < packet[1]:
        if packet[2]:
            _rms_norm_backward(packet, np.uint16(0), share)
        else:
            _rms_norm_backward(packet, f4(0), share)
        share = _ticket(packet)


def softmax_error(packet: Any) -> None:
    share = _ticket(packet)
    while share < packet[1]:
        if packet[2]:
            _softmax_error(packet, np.uint16(0), share)
        else:
            _softmax_error(packet, f4(0), share)
        share = _ticket(packet)


def rotate(packet: Any) -> None:
    share = _ticket(packet)
    while share < packet[1]:
        if packet[2]:
            _rotate(packet, np.uint16(0), share)
        else:
            _rotate(packet, f4(0), share)
        share = _ticket(packet)


PROGRAMS = {
    program.__name__: program
    for program in (gelu_tanh, swiglu, swiglu_backward, rms_norm, rms_norm_backward, softmax_error, rotate)
}


@functools.cache
def address_of(name: str) -> int:
    """Where the machine code of program ``name`` begins; compiled when first asked for."""
    signature = types.void(_CPointer(types.int64))
    compiled: Any = cfunc
    try:
        program = compiled(signature, cache=True)(PROGRAMS[name])
    except RuntimeError:  # numba finds no folder that it may keep compiled code in
        program = compiled(signature)(PROGRAMS[name])
    return int(program.address)
