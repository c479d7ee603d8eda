"""The layers of the decoding programs: products, norms, activations, rotation, softmax and attention.

One token reads every weight once, so decoding is bound by memory.  These kernels read a model's own tensors,
in float32 or bfloat16, and compute in float32.  Every thread runs the same program on its share of the output
rows and waits at barriers (:mod:`wordloom.kernels.barrier`).  One call computes a whole token, so nothing is
scheduled or allocated in between.

Letters are those of :mod:`wordloom.nn`; R is the number of tokens computed at once, one row each.  ``like``
is an empty array whose type says how weights and cache are stored: float32, or uint16 for bfloat16's bits.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wordloom.kernels import arithmetic
from wordloom.kernels.arithmetic import exp, highest, rms_scale, silu
from wordloom.kernels.bfloat16_products import bfloat16_tile, shorten, shortened_bytes
from wordloom.kernels.machine_code import exact_routine, routine
from wordloom.kernels.memory import FLOAT, load, pointer, store
from wordloom.kernels.products import tile
from wordloom.kernels.registers import LANES
from wordloom.kernels.rows import add_rows

RELU, GELU, GELU_TANH, SILU = range(4)


@exact_routine
def share(n: int, thread: int, threads: int) -> tuple[int, int]:
    """Return the bounds of this thread's part of range(n): multiples of four, the rows of one product."""
    fours = (n + 3) // 4
    return min(n, 4 * (fours * thread // threads)), min(n, 4 * (fours * (thread + 1) // threads))


# The number of weight rows that are multiplied with four tokens at once.  AVX512 has 32 registers for the
# sums, older processors 16.  Two rows leave time to prefetch the next ones.  Eight tokens do so too, and pay
# off in bfloat16, whose vectors are half as many bytes: a tenth more tokens a second on Zen 4, but a fifth
# fewer in float32.
_WIDE = LANES == 16
_BESIDE_FOUR = 4 if _WIDE else 2
_eights, _fours = tile(8, 2, ahead=1024), tile(4, 4) if _WIDE else tile(4, 2, ahead=1024)
_two_by_four, _one_by_four = tile(2, 4), tile(1, 4)
_bfloat16_fours, _bfloat16_two_by_four, _bfloat16_one_by_four = (bfloat16_tile(n, 4) for n in (4, 2, 1))


@routine
def project(
    out: Any, x: Any, address: int, bias: Any, add: bool, like: Any, thread: int, threads: int
) -> None:
    """out [R, N] = (out +) x [R, K] @ weight [N, K]^T + bias [N or 0]; this thread's share of the columns.

    Four rows of the weight are read at once, a quarter of the share apart, so that the processor prefetches
    four long streams.  Neighbouring short rows share memory pages, and Zen 4 seems to prefetch only one
    stream in a page: rows of 768 floats are read at half the speed, rows of 2,048 at two thirds.
    """
    R, K = x.shape
    N = out.shape[1]
    size = like.itemsize
    first, last = share(N, thread, threads)
    quarter = (last - first + 3) // 4
    apart = quarter * K
    at_x, at_out = x.ctypes.data, out.ctypes.data
    for n in range(first, first + quarter):
        there = (last - n + quarter - 1) // quarter
        weight = address + n * K * size
        r = 0
        while r < R:
            token, place = at_x + 4 * r * K, at_out + 4 * (r * N + n)
            if _WIDE and size == 2 and r == 0 and R >= 8:
                for j in range(0, there, 2):
                    rows, to, few = weight + j * apart * size, place + 4 * j * quarter, there - j
                    _eights(like, rows, apart, min(2, few), token, K, to, N, quarter, add)
                r += 8
            elif R - r >= 4:
                for j in range(0, there, _BESIDE_FOUR):
                    rows, to, few = weight + j * apart * size, place + 4 * j * quarter, there - j
                    _fours(like, rows, apart, min(_BESIDE_FOUR, few), token, K, to, N, quarter, add)
                r += 4
            elif R - r >= 2:
                _two_by_four(like, weight, apart, there, token, K, place, N, quarter, add)
                r += 2
            else:
                _one_by_four(like, weight, apart, there, token, K, place, N, quarter, add)
                r += 1
    if bias.shape[0]:
        for r in range(R):
            for n in range(first, last):
                out[r, n] += bias[n]


@routine
def add_low_rank(out: Any, x: Any, adapters: Any, updates: Any, thread: int, threads: int) -> None:
    """out [R, N] += (x A^T) B of the adapter of each row; this thread's share of the columns.

    ``adapters`` [R] are numbers in ``updates`` [.., 3], or -1.  These hold the addresses of A [rank, K] and
    B [rank, N] in float32, and the rank.
    """
    K, N = x.shape[1], out.shape[1]
    first, last = share(N, thread, threads)
    for r in range(x.shape[0]):
        if adapters[r] < 0:
            continue
        update = updates[adapters[r]]
        into, outof, row, written = pointer(update[0], FLOAT), pointer(update[1], FLOAT), x[r], out[r]
        for j in range(update[2]):
            total = np.float32(0)
            for k in range(K):
                total += load(into, j * K + k) * row[k]
            for n in range(first, last):
                written[n] += total * load(outof, j * N + n)


@routine
def project_bfloat16(
    out: Any, x: Any, address: int, bias: Any, add: bool, shortened: Any, thread: int, threads: int
) -> None:
    """As :func:`project` with x rounded to bfloat16; ``shortened`` is room for it.

    The weight is bfloat16, and the processor has products of bfloat16.
    """
    R, K = x.shape
    N = out.shape[1]
    row_of_x = shortened_bytes(K)
    at_x, at_out = (shortened.ctypes.data + 63) // 64 * 64, out.ctypes.data
    for r in range(R):
        shorten(x[r], at_x + r * row_of_x)
    first, last = share(N, thread, threads)
    quarter = (last - first + 3) // 4
    apart = quarter * K
    for n in range(first, first + quarter):
        there = (last - n + quarter - 1) // quarter
        weight = address + 2 * n * K
        r = 0
        while r < R:
            token, place = at_x + r * row_of_x, at_out + 4 * (r * N + n)
            if R - r >= 4:
                _bfloat16_fours(weight, apart, there, token, row_of_x, K, place, N, quarter, add)
                r += 4
            elif R - r >= 2:
                _bfloat16_two_by_four(weight, apart, there, token, row_of_x, K, place, N, quarter, add)
                r += 2
            else:
                _bfloat16_one_by_four(weight, apart, there, token, row_of_x, K, place, N, quarter, add)
                r += 1
    if bias.shape[0]:
        for r in range(R):
            for n in range(first, last):
                out[r, n] += bias[n]


@routine
def rms_norm(out: Any, x: Any, gain: Any, eps: float) -> None:
    """out [R, D] = x / sqrt(mean(x^2) + eps) * gain; every thread computes all rows, into its own buffer."""
    R, D = x.shape
    for r in range(R):
        scale = rms_scale(pointer(x.ctypes.data, FLOAT), r * D, D, np.float32(eps))
        for d in range(D):
            out[r, d] = x[r, d] * scale * gain[d]


@routine
def layer_norm(out: Any, x: Any, gain: Any, offset: Any, eps: float) -> None:
    """out [R, D] = (x - mean) / sqrt(var + eps) * gain + offset [D or 0]; as :func:`rms_norm`.

    ``out`` may be ``x``.  The loops read ``out`` alone, since LLVM does not vectorize over arrays that may
    overlap.
    """
    R, D = x.shape
    copied = out.ctypes.data != x.ctypes.data
    for r in range(R):
        if copied:
            for d in range(D):
                out[r, d] = x[r, d]
        mean = np.float32(0)
        for d in range(D):
            mean += out[r, d]
        mean /= np.float32(D)
        squares = np.float32(0)
        for d in range(D):
            squares += (out[r, d] - mean) * (out[r, d] - mean)
        scale = np.float32(1) / np.float32(math.sqrt(squares / np.float32(D) + np.float32(eps)))
        if offset.shape[0]:
            for d in range(D):
                out[r, d] = (out[r, d] - mean) * scale * gain[d] + offset[d]
        else:
            for d in range(D):
                out[r, d] = (out[r, d] - mean) * scale * gain[d]


@exact_routine
def activate(x: Any, kind: int, first: int, last: int) -> None:
    """x [R, F] = activation(x) in columns first to last, in place."""
    one, half, n = np.float32(1), np.float32(0.5), last - first
    for r in range(x.shape[0]):
        row = x[r, first:last]  # numba checks whether any start but zero is negative, in every step of a loop
        if kind == SILU:
            for f in range(n):
                row[f] = silu(row[f])
        elif kind == GELU_TANH:
            for f in range(n):
                v = row[f]
                t = np.float32(0.7978845608) * (v + np.float32(0.044715) * v * v * v)
                # 0.5 (1 + tanh t) is the logistic function of 2t
                row[f] = v / (one + exp(np.float32(-2) * t))
        elif kind == GELU:
            for f in range(n):
                row[f] = half * row[f] * (one + np.float32(math.erf(row[f] * np.float32(0.70710678))))
        else:
            for f in range(n):
                value = row[f]
                row[f] = (
                    np.float32(0) if value < np.float32(0) else value
                )  # keeps NaN; max() is not vectorized


@exact_routine
def rotate(x: Any, r: int, offset: int, cos: Any, sin: Any) -> None:
    """Rotate the halves of one head, x[r, offset : offset + E], by the angles cos and sin [E/2]."""
    row = pointer(x[r].ctypes.data, FLOAT)
    arithmetic.rotate(row, offset, cos.shape[0], cos, sin, 0, row)


@exact_routine
def store_row(like: Any, address: int, index: int, x: Any, r: int, offset: int, E: int) -> None:
    """Write x[r, offset : offset + E] into the cache from element ``index`` on, rounded to nearest even."""
    cache = pointer(address, like)
    for e in range(E):
        store(cache, index + e, x[r, offset + e])


@routine
def softmax(weights: Any, n: int, scale: float) -> None:
    """weights [n] = softmax(weights * scale), scale > 0; ``weights`` is a whole number of vectors long.

    Filled up with -inf, the loops below run in whole vectors.  For the few weights of most texts, a loop over
    the remainder would take longer than the vectors.
    """
    whole = (n + LANES - 1) // LANES * LANES
    for s in range(n, whole):
        weights[s] = -np.inf
    top = highest(pointer(weights.ctypes.data, FLOAT), 0, whole)
    factor, total = np.float32(scale), np.float32(0)
    for s in range(whole):
        weights[s] = exp((weights[s] - top) * factor)
        total += weights[s]
    for s in range(whole):
        weights[s] /= total


@routine
def attend(
    out: Any, q: Any, r: int, head: int, E: int, keys: int, values: int, start: int, stop: int,
    scale: float, weights: Any, like: Any,
) -> None:  # fmt: skip
    """out[r, head] = softmax(q[r, head] . keys * scale) values over cached positions start to stop.

    ``keys`` and ``values`` are the addresses of one row's [S, E] of one key head.  ``weights`` is a buffer
    for S numbers, as :func:`softmax` needs it.  Without any positions the result is zeros.
    """
    n, size, at = stop - start, like.itemsize, head * E
    query, mixed = q.ctypes.data + 4 * (r * q.shape[1] + at), out.ctypes.data + 4 * (r * out.shape[1] + at)
    first, factors = keys + start * E * size, weights.ctypes.data
    for s in range(0, n, 4):
        _one_by_four(like, first + s * E * size, E, min(4, n - s), query, E, factors + 4 * s, 0, 1, False)
    softmax(weights, n, scale)
    for e in range(E):
        out[r, at + e] = np.float32(0)
    first, whole = values + start * E * size, E - E % LANES
    add_rows(like, mixed, first, n, E, factors, 1, whole)
    for e in range(whole, E):
        for s in range(n):
            out[r, at + e] += weights[s] * load(pointer(first, like), s * E + e)


UNUSED, FULL, DILATED, GLOBAL, BLOCK, RANDOM = range(6)
"""The kinds of :mod:`wordloom.nn.attention.kinds`, as a table [P, 3] numbers them; two settings follow."""


@exact_routine
def _hashed(x: int) -> int:
    """Return 32 bits as :func:`wordloom.nn.attention.kinds.hashed`."""
    x &= 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return x ^ (x >> 16)


@exact_routine
def _sees(q: int, k: int, kinds: Any) -> bool:
    """Return whether a query at position q of a causal text sees the key at position k <= q."""
    for p in range(kinds.shape[0]):
        kind, a, b = kinds[p, 0], kinds[p, 1], kinds[p, 2]
        if kind == FULL:
            return True
        if kind == DILATED and q - k <= (a - 1) * b and (b == 1 or (q - k) % b == 0):
            return True
        if kind == GLOBAL and k < a:
            return True
        if kind == BLOCK and k >= q // a * a:
            return True
        if kind == RANDOM:
            part = ((k + 1) * a - 1) // (q + 1)
            first, end = part * (q + 1) // a, (part + 1) * (q + 1) // a
            if k == first + _hashed(_hashed(q + _hashed(b)) + part) % (end - first):
                return True
    return False


@routine
def attend_by_position(
    out: Any, q: Any, r: int, head: int, E: int, keys: int, values: int, position: int, first: int, ring: int,
    kinds: Any, scale: float, weights: Any, like: Any,
) -> None:  # fmt: skip
    """out[r, head] = softmax(q[r, head] . keys * scale) values over the keys that ``kinds`` [P, 3] allow.

    The query stands at ``position``.  The places from ``first`` on are a ring of ``ring`` places; 0: there is
    none.  Runs of visible keys that lie side by side are read together.
    """
    size, at = like.itemsize, head * E
    query, mixed = q.ctypes.data + 4 * (r * q.shape[1] + at), out.ctypes.data + 4 * (r * out.shape[1] + at)
    factors, whole = weights.ctypes.data, E - E % LANES
    wraps = ring > 0 and position >= first + ring
    stop = first + ring if wraps else position + 1
    newest = first + (position - first) % ring if wraps else position
    for second in range(2):  # first the scores, then the values
        n, start = 0, -1
        for s in range(stop + 1):
            visible = False
            if s < stop:
                key = s
                if wraps and s >= first:
                    key = position - newest + s - (ring if s > newest else 0)
                visible = _sees(position, key, kinds)
            if visible and start < 0:
                start = s
            elif not visible and start >= 0:
                many = s - start
                if second:
                    add_rows(
                        like, mixed, values + start * E * size, many, E, factors + 4 * n, 1, whole
                    )  # fmt: skip
                    for e in range(whole, E):
                        for i in range(many):
                            out[r, at + e] += weights[n + i] * load(
                                pointer(values, like), (start + i) * E + e
                            )  # fmt: skip
                else:
                    for i in range(0, many, 4):
                        _one_by_four(
                            like, keys + (start + i) * E * size, E, min(4, many - i), query, E,
                            factors + 4 * (n + i), 0, 1, False,
                        )  # fmt: skip
                n, start = n + many, -1
        if second == 0:
            softmax(weights, n, scale)
            for e in range(E):
                out[r, at + e] = np.float32(0)
