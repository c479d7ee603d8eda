"""The programs behind :mod:`wordloom.nn.fused`: one pass over memory each, in float32 arithmetic.

Each is compiled when first asked for (a second) and kept on disk by numba.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wordloom.kernels.arithmetic import exp, f4, hashed, highest
from wordloom.kernels.machine_code import exact, leaf
from wordloom.kernels.memory import float_of, load, pointer, store, ticket
from wordloom.kernels.packets import bounds

__all__ = ["PROGRAMS"]

# -- programs --------------------------------------------------------------------------------------------
# A packet is: ticket counter, number of shares, how tensors are stored, then what the program's own first
# line lists, tensors as addresses.  ``like`` is a value of the stored type.


# GELU(x) = x * sigmoid(z), z = 2 * sqrt(2 / pi) * (x + 0.044715 x^3): 0.5 * (1 + tanh(y)) = sigmoid(2 y)
_Z = f4(2.0 * math.sqrt(2.0 / math.pi))
_CUBE = f4(0.044715)


@exact
def _gelu_tanh(packet: Any, like: Any, share: int) -> None:
    """n, x [n] -> y [n] and its slope at x [n]."""
    x, y, slope = pointer(packet[4], like), pointer(packet[5], like), pointer(packet[6], like)
    start, stop = bounds(packet, share)
    for i in range(start, stop):
        v = load(x, i)
        square = v * v
        e = exp(-_Z * v * (f4(1.0) + _CUBE * square))
        s = f4(1.0) / (f4(1.0) + e)
        store(y, i, v * s)
        # z' s (1 - s); e s is 1 - s without the cancellation
        store(slope, i, s + v * _Z * (f4(1.0) + f4(3.0) * _CUBE * square) * s * (e * s))


@exact
def _swiglu(packet: Any, like: Any, share: int) -> None:
    """n, gate [n], up [n] -> y [n] = silu(gate) * up."""
    gate, up, y = pointer(packet[4], like), pointer(packet[5], like), pointer(packet[6], like)
    start, stop = bounds(packet, share)
    for i in range(start, stop):
        g = load(gate, i)
        store(y, i, g / (f4(1.0) + exp(-g)) * load(up, i))


@exact
def _swiglu_backward(packet: Any, like: Any, share: int) -> None:
    """n, gate [n], up [n], d_y [n] -> d_gate [n], d_up [n]."""
    gate, up, d_y = pointer(packet[4], like), pointer(packet[5], like), pointer(packet[6], like)
    d_gate, d_up = pointer(packet[7], like), pointer(packet[8], like)
    start, stop = bounds(packet, share)
    for i in range(start, stop):
        g, d = load(gate, i), load(d_y, i)
        e = exp(-g)
        s = f4(1.0) / (f4(1.0) + e)
        store(d_up, i, d * g * s)
        store(d_gate, i, d * load(up, i) * (s + g * s * (e * s)))


@leaf
def _rms_norm(packet: Any, like: Any, share: int) -> None:
    """N, D, eps (the bits of a float32), x [N, D], weight [D] float32 -> y [N, D], scale [N] float32."""
    D, eps = packet[4], float_of(np.uint32(packet[5]))
    x, y = pointer(packet[6], like), pointer(packet[8], like)
    weight, scale = pointer(packet[7], f4(0.0)), pointer(packet[9], f4(0.0))
    start, stop = bounds(packet, share)
    for row in range(start, stop):
        first = row * D
        total = f4(0.0)
        for i in range(D):
            v = load(x, first + i)
            total += v * v
        r = f4(1.0) / np.sqrt(total / f4(D) + eps)
        scale[row] = r
        for i in range(D):
            store(y, first + i, load(x, first + i) * r * weight[i])


@leaf
def _rms_norm_backward(packet: Any, like: Any, share: int) -> None:
    """N, D, x [N, D], weight [D], scale [N], d_y [N, D] -> d_x [N, D], d_weight [shares, D] of zeros."""
    D = packet[4]
    x, d_y, d_x = pointer(packet[5], like), pointer(packet[8], like), pointer(packet[9], like)
    weight, scale = pointer(packet[6], f4(0.0)), pointer(packet[7], f4(0.0))
    start, stop = bounds(packet, share)
    # the share, not the thread, says which row is added to: the sum of the rows repeats its bits
    d_weight = pointer(packet[10] + 4 * share * D, f4(0.0))
    for row in range(start, stop):
        first, r = row * D, scale[row]
        total = f4(0.0)
        for i in range(D):
            v, d = load(x, first + i), load(d_y, first + i)
            total += d * weight[i] * v
            d_weight[i] += d * v * r
        back = total * r * r * r / f4(D)
        for i in range(D):
            store(d_x, first + i, load(d_y, first + i) * weight[i] * r - load(x, first + i) * back)


@leaf
def _softmax_error(packet: Any, like: Any, share: int) -> None:
    """N, V, smoothing (the bits of a float32), logits [N, V], targets [N] int64 -> losses [N] float32.

    Logits become softmax less what is wanted: 1 - smoothing at the target, and smoothing / V everywhere.  A
    target below 0 is not scored: its row and its loss are zero.
    """
    V, smoothing = packet[4], float_of(np.uint32(packet[5]))
    logits, targets = pointer(packet[6], like), pointer(packet[7], np.int64(0))
    losses = pointer(packet[8], f4(0.0))
    own, other = f4(1.0) - smoothing, smoothing / f4(V)
    start, stop = bounds(packet, share)
    for row in range(start, stop):
        first, target = row * V, targets[row]
        if target < 0:
            losses[row] = f4(0.0)
            for i in range(first, first + V):
                store(logits, i, f4(0.0))
            continue
        most, scored = highest(logits, first, V), load(logits, first + target)
        total = f4(0.0)
        lower = f4(0.0)  # by how much all logits together are below the highest
        for i in range(first, first + V):
            below = load(logits, i) - most
            total += exp(below)
            lower += below
        losses[row] = np.log(total) - own * (scored - most)
        if smoothing > f4(0.0):  # else a logit of -inf, which nothing asks for, would make 0 * inf of it
            losses[row] -= other * lower
        # computed again: cheaper than keeping them elsewhere, and rounded once where logits are bfloat16
        scale = f4(1.0) / total
        for i in range(first, first + V):
            store(logits, i, exp(load(logits, i) - most) * scale - other)
        store(logits, first + target, exp(scored - most) * scale - other - own)


@exact
def _rotate(packet: Any, like: Any, share: int) -> None:
    """B * T, T, H, E / 2, rows of cos (T or B * T), x [B, T, H, E], cos, sin [.., E / 2] -> y as x."""
    T, H, half, rows = packet[4], packet[5], packet[6], packet[7]
    x, y = pointer(packet[8], like), pointer(packet[11], like)
    cos, sin = pointer(packet[9], f4(0.0)), pointer(packet[10], f4(0.0))
    start, stop = bounds(packet, share)
    for row in range(start, stop):
        angle = (row if rows != T else row % T) * half
        for head in range(H):
            first = (row * H + head) * 2 * half
            for i in range(half):
                a, b = load(x, first + i), load(x, first + half + i)
                c, s = cos[angle + i], sin[angle + i]
                store(y, first + i, a * c - b * s)
                store(y, first + half + i, b * c + a * s)


@exact
def _dropout(packet: Any, like: Any, share: int) -> None:
    """n, seed, chance and scale (the bits of a float32), x [n] -> y [n]: x * scale, or 0.

    Element i is dropped where 32 bits, a hash of i and the seed, are below ``chance``: who asks again with
    the seed gets the same elements, and no mask is kept.
    """
    low, high = np.uint32(packet[4]), np.uint32(packet[4] >> 32)
    chance, scale = np.uint32(packet[5]), float_of(np.uint32(packet[6]))
    x, y = pointer(packet[7], like), pointer(packet[8], like)
    start, stop = bounds(packet, share)
    for i in range(start, stop):
        h = hashed(np.uint32(i), low, high)
        store(y, i, load(x, i) * scale if h >= chance else f4(0.0))


# -- as the threads call them: shares are taken until none is left -----------------------------------------


def gelu_tanh(packet: Any) -> None:
    share = ticket(packet)
    while share < packet[1]:
        if packet[2]:
            _gelu_tanh(packet, np.uint16(0), share)
        else:
            _gelu_tanh(packet, f4(0), share)
        share = ticket(packet)


def swiglu(packet: Any) -> None:
    share = ticket(packet)
    while share < packet[1]:
        if packet[2]:
            _swiglu(packet, np.uint16(0), share)
        else:
            _swiglu(packet, f4(0), share)
        share = ticket(packet)


def swiglu_backward(packet: Any) -> None:
    share = ticket(packet)
    while share < packet[1]:
        if packet[2]:
            _swiglu_backward(packet, np.uint16(0), share)
        else:
            _swiglu_backward(packet, f4(0), share)
        share = ticket(packet)


def rms_norm(packet: Any) -> None:
    share = ticket(packet)
    while share < packet[1]:
        if packet[2]:
            _rms_norm(packet, np.uint16(0), share)
        else:
            _rms_norm(packet, f4(0), share)
        share = ticket(packet)


def rms_norm_backward(packet: Any) -> None:
    share = ticket(packet)
    while share < packet[1]:
        if packet[2]:
            _rms_norm_backward(packet, np.uint16(0), share)
        else:
            _rms_norm_backward(packet, f4(0), share)
        share = ticket(packet)


def softmax_error(packet: Any) -> None:
    share = ticket(packet)
    while share < packet[1]:
        if packet[2]:
            _softmax_error(packet, np.uint16(0), share)
        else:
            _softmax_error(packet, f4(0), share)
        share = ticket(packet)


def rotate(packet: Any) -> None:
    share = ticket(packet)
    while share < packet[1]:
        if packet[2]:
            _rotate(packet, np.uint16(0), share)
        else:
            _rotate(packet, f4(0), share)
        share = ticket(packet)


def dropout(packet: Any) -> None:
    share = ticket(packet)
    while share < packet[1]:
        if packet[2]:
            _dropout(packet, np.uint16(0), share)
        else:
            _dropout(packet, f4(0), share)
        share = ticket(packet)


PROGRAMS = {
    program.__name__: program
    for program in (
        *(gelu_tanh, swiglu, swiglu_backward, rms_norm, rms_norm_backward, softmax_error, rotate),
        dropout,
    )
}
