"""The programs behind :func:`wordloom.nn.fused.causal_attention`: block of queries by block of queries.

A block looks at the keys up to its own and at no others, which halves the work of a whole product, and its
scores stay in the processor's cache.  Products are our own, or the BLAS's ``sgemm``, in float32 whatever the
tensors are stored as; softmax lies between them.  Backward makes the scores again from the row sums that
forward kept (Dao et al. 2022, arXiv:2205.14135, appendix B.2).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wordloom.nn.program_parts import (
    bounds,
    exact,
    exp,
    f4,
    float_of,
    gemm,
    highest,
    leaf,
    load,
    pointer,
    store,
    ticket,
)
from wordloom.nn.vector_registers import LANES, panel

__all__ = ["BLOCK", "PROGRAMS", "scratch_elements"]

BLOCK = 64  # queries at a time: scores of 64 x 512 are a quarter of a Zen 3 core's second-level cache
_OUR_BLOCK = 32  # ... of our own products, which cost no call: less is multiplied beyond the diagonal


def scratch_elements(T: int, E: int) -> int:
    """Floats that a thread needs in either direction, a whole number of cache lines."""
    padded = -(-T // LANES) * LANES
    return -(-(2 * BLOCK * padded + 5 * padded * E + 4 * BLOCK * E) // 16) * 16


# A packet goes on after its third figure: B * K units, each a row's key head, then
#   4 the address of sgemm, or 0 for products of our own, which take E in whole vectors,
#   5 a counter by which threads find scratch of their own, 6 scratch, 7 its floats by thread,
#   8 T, 9 E, 10 H, 11 K, 12 scale (the bits of a float32),
#   13-15 q, k, v; 16-24 their steps in elements for batch, time and head
# and each program's own from 25 on.  H / K query heads share a key head.
#
# Products of our own want their right side row by row, so keys (and in backward values) are laid out again
# with time along the row; and all rows dense.  BLAS does that by itself.


@exact
def _floats(address: int, elements: int) -> Any:
    return pointer(address + 4 * elements, f4(0.0))


@leaf
def _rows(source: Any, step: int, n: int, E: int, out: int) -> None:
    """n rows of E elements, ``step`` apart in ``source``, as float32 into ``out`` [n, E]."""
    rows = _floats(out, 0)
    for i in range(n):
        for e in range(E):
            rows[i * E + e] = load(source, i * step + e)


@leaf
def _columns(source: Any, step: int, n: int, E: int, out: int, width: int) -> None:
    """The same rows as columns, into ``out`` [E, width]; columns beyond the last are zero."""
    columns = _floats(out, 0)
    for first in range(0, width, LANES):
        for e in range(E):
            for i in range(first, first + LANES):
                columns[e * width + i] = load(source, i * step + e) if i < n else f4(0.0)


_wide, _narrow, _wide_one, _narrow_one = panel(4, 4), panel(4, 1), panel(1, 4), panel(1, 1)


@leaf
def _multiply(
    M: int, N: int, K: int, scale: Any, a: int, a_row: int, a_column: int, b: int, b_row: int, add: bool,
    out: int, out_row: int,
) -> None:  # fmt: skip
    """out [M, N] = scale * a [M, K] b [K, N], added where ``add``; N is a multiple of LANES."""
    whole = N - N % (4 * LANES)
    for r in range(0, M - M % 4, 4):
        line, place = a + 4 * r * a_row, out + 4 * r * out_row
        for c in range(0, whole, 4 * LANES):
            _wide(line, a_row, a_column, b + 4 * c, b_row, K, scale, add, place + 4 * c, out_row)
        for c in range(whole, N, LANES):
            _narrow(line, a_row, a_column, b + 4 * c, b_row, K, scale, add, place + 4 * c, out_row)
    for r in range(M - M % 4, M):
        line, place = a + 4 * r * a_row, out + 4 * r * out_row
        for c in range(0, whole, 4 * LANES):
            _wide_one(line, a_row, a_column, b + 4 * c, b_row, K, scale, add, place + 4 * c, out_row)
        for c in range(whole, N, LANES):
            _narrow_one(line, a_row, a_column, b + 4 * c, b_row, K, scale, add, place + 4 * c, out_row)


@exact
def _product(
    routine: int, left_t: bool, right_t: bool, M: int, N: int, K: int, scale: Any, left: int, left_row: int,
    right: int, right_row: int, add: bool, out: int, out_row: int,
) -> None:  # fmt: skip
    """out [M, N] = scale * left [M, K] right [K, N], added where ``add``; all by address.

    ``left_t``: left lies as [K, M].  ``right_t``: right lies as [N, K] for BLAS; for us :func:`_columns` has
    laid it out, and N is rounded up to whole vectors.
    """
    if routine:
        gemm(
            routine, left_t, right_t, M, N, K, scale, _floats(left, 0), left_row, _floats(right, 0),
            right_row, f4(1.0) if add else f4(0.0), _floats(out, 0), out_row,
        )  # fmt: skip
    else:
        row, column = (1, left_row) if left_t else (left_row, 1)
        whole = -(-N // LANES) * LANES
        _multiply(M, whole, K, scale, left, row, column, right, right_row, add, out, out_row)


@leaf
def _exponentials(scores: Any, first: int, n: int, m: Any) -> Any:
    total = f4(0.0)
    for i in range(first, first + n):
        e = exp(scores[i] - m)
        scores[i] = e
        total += e
    return total


@leaf
def _forward(packet: Any, like: Any, share: int, mine: int) -> None:
    """25 out [B, T, H, E], 26 sums [B, H, T]: the logarithm of every row's sum of exponentials."""
    routine, T, E, H, K = packet[4], packet[8], packet[9], packet[10], packet[11]
    scale = float_of(np.uint32(packet[12]))
    size, laid_out = 2 if packet[2] else 4, packet[2] != 0 or routine == 0
    width, block = -(-T // LANES) * LANES, BLOCK if routine else _OUR_BLOCK
    at_scores, at_o = mine, mine + 4 * BLOCK * width
    at_q32, at_k32 = at_o + 4 * BLOCK * E, at_o + 8 * BLOCK * E
    at_v32 = at_k32 + 4 * width * E
    scores, o, inverses = _floats(at_scores, 0), _floats(at_o, 0), _floats(at_q32, 0)
    out, sums = pointer(packet[25], like), pointer(packet[26], f4(0.0))
    start, stop = bounds(packet, share)
    for unit in range(start, stop):
        b, shared = unit // K, unit % K
        at_k = packet[14] + size * (b * packet[19] + shared * packet[21])
        at_v = packet[15] + size * (b * packet[22] + shared * packet[24])
        k_row, v_row = packet[20], packet[23]
        if routine == 0:
            _columns(pointer(at_k, like), k_row, T, E, at_k32, width)
            at_k, k_row = at_k32, width
        elif laid_out:
            _rows(pointer(at_k, like), k_row, T, E, at_k32)
            at_k, k_row = at_k32, E
        if laid_out:
            _rows(pointer(at_v, like), v_row, T, E, at_v32)
            at_v, v_row = at_v32, E
        for h in range(shared * (H // K), (shared + 1) * (H // K)):
            for s in range(0, T, block):
                R = min(block, T - s)
                S = s + R
                W = width if routine == 0 else S
                at_q = packet[13] + size * (b * packet[16] + s * packet[17] + h * packet[18])
                q_row = packet[17]
                if laid_out:
                    _rows(pointer(at_q, like), q_row, R, E, at_q32)
                    at_q, q_row = at_q32, E
                _product(routine, False, True, R, S, E, scale, at_q, q_row, at_k, k_row, False, at_scores, W)
                for r in range(R):
                    seen = s + r + 1
                    m = highest(scores, r * W, seen)
                    total = _exponentials(scores, r * W, seen, m)
                    for i in range(r * W + seen, r * W + S):
                        scores[i] = f4(0.0)
                    sums[(b * H + h) * T + s + r] = m + np.log(total)
                    inverses[r] = f4(1.0) / total  # q is no longer needed
                _product(routine, False, False, R, E, S, f4(1.0), at_scores, W, at_v, v_row, False, at_o, E)
                for r in range(R):
                    place, inverse = ((b * T + s + r) * H + h) * E, inverses[r]
                    for e in range(E):
                        store(out, place + e, o[r * E + e] * inverse)


@leaf
def _backward(packet: Any, like: Any, share: int, mine: int) -> None:
    """25 out, 26 sums, 27 d_out [B, T, H, E] -> 28 d_q [B, T, H, E], 29 d_k and 30 d_v [B, T, K, E]."""
    routine, T, E, H, K = packet[4], packet[8], packet[9], packet[10], packet[11]
    scale = float_of(np.uint32(packet[12]))
    size, laid_out = 2 if packet[2] else 4, packet[2] != 0 or routine == 0
    width, block = -(-T // LANES) * LANES, BLOCK if routine else _OUR_BLOCK
    at_p, at_d_p, place = mine, mine + 4 * BLOCK * width, mine + 8 * BLOCK * width
    at_k32, at_v32 = place, place + 4 * width * E  # of v the rows, or the columns where we multiply
    at_columns = place + 8 * width * E  # of k
    at_d_k, at_d_v = place + 12 * width * E, place + 16 * width * E
    place += 20 * width * E
    at_q32, at_d_o32 = place, place + 4 * BLOCK * E
    at_d_q32, at_correction = place + 8 * BLOCK * E, place + 12 * BLOCK * E
    p, d_p, d_k32, d_v32 = _floats(at_p, 0), _floats(at_d_p, 0), _floats(at_d_k, 0), _floats(at_d_v, 0)
    d_q32, correction = _floats(at_d_q32, 0), _floats(at_correction, 0)
    out, d_out, sums = pointer(packet[25], like), pointer(packet[27], like), pointer(packet[26], f4(0.0))
    d_q, d_k, d_v = pointer(packet[28], like), pointer(packet[29], like), pointer(packet[30], like)
    start, stop = bounds(packet, share)
    for unit in range(start, stop):
        b, shared = unit // K, unit % K
        at_k = packet[14] + size * (b * packet[19] + shared * packet[21])
        at_v = packet[15] + size * (b * packet[22] + shared * packet[24])
        k_row, v_row = packet[20], packet[23]
        side, side_row = at_k, k_row  # the keys once more, as the right side of the scores
        if laid_out:
            _rows(pointer(at_k, like), k_row, T, E, at_k32)
            side, side_row = at_k32, E
        if routine == 0:
            _columns(pointer(at_k, like), k_row, T, E, at_columns, width)
            _columns(pointer(at_v, like), v_row, T, E, at_v32, width)
            side, side_row, at_v, v_row = at_columns, width, at_v32, width
        elif laid_out:
            _rows(pointer(at_v, like), v_row, T, E, at_v32)
            at_v, v_row = at_v32, E
        if laid_out:
            at_k, k_row = at_k32, E
        for i in range(T * E):
            d_k32[i] = f4(0.0)
            d_v32[i] = f4(0.0)
        for h in range(shared * (H // K), (shared + 1) * (H // K)):
            for s in range(0, T, block):
                R = min(block, T - s)
                S = s + R
                W = width if routine == 0 else S
                at_q = packet[13] + size * (b * packet[16] + s * packet[17] + h * packet[18])
                at_d_o = packet[27] + size * ((b * T + s) * H + h) * E
                q_row, d_o_row = packet[17], H * E
                if laid_out:
                    _rows(pointer(at_q, like), q_row, R, E, at_q32)
                    _rows(pointer(at_d_o, like), H * E, R, E, at_d_o32)
                    at_q, q_row, at_d_o, d_o_row = at_q32, E, at_d_o32, E
                for r in range(R):  # sum_j p_ij d_p_ij = out_i . d_out_i
                    first, total = ((b * T + s + r) * H + h) * E, f4(0.0)
                    for e in range(first, first + E):
                        total += load(out, e) * load(d_out, e)
                    correction[r] = total
                _product(routine, False, True, R, S, E, scale, at_q, q_row, side, side_row, False, at_p, W)
                _product(
                    routine, False, True, R, S, E, f4(1.0), at_d_o, d_o_row, at_v, v_row, False, at_d_p, W
                )
                for r in range(R):
                    seen, total, less = s + r + 1, sums[(b * H + h) * T + s + r], correction[r]
                    for i in range(r * W, r * W + seen):
                        weight = exp(p[i] - total)
                        p[i] = weight
                        d_p[i] = weight * (d_p[i] - less)
                    for i in range(r * W + seen, r * W + S):
                        p[i] = f4(0.0)
                        d_p[i] = f4(0.0)
                _product(routine, True, False, S, E, R, f4(1.0), at_p, W, at_d_o, d_o_row, True, at_d_v, E)
                _product(routine, True, False, S, E, R, scale, at_d_p, W, at_q, q_row, True, at_d_k, E)
                _product(routine, False, False, R, E, S, scale, at_d_p, W, at_k, k_row, False, at_d_q32, E)
                for r in range(R):
                    first = ((b * T + s + r) * H + h) * E
                    for e in range(E):
                        store(d_q, first + e, d_q32[r * E + e])
        for t in range(T):
            first = ((b * T + t) * K + shared) * E
            for e in range(E):
                store(d_k, first + e, d_k32[t * E + e])
                store(d_v, first + e, d_v32[t * E + e])


# -- as the threads call them: shares are taken until none is left -----------------------------------------


@exact
def _scratch(packet: Any) -> int:
    """The address of this thread's scratch."""
    return packet[6] + 4 * packet[7] * ticket(pointer(packet[5], np.int64(0)))


def causal_attention(packet: Any) -> None:
    mine, share = _scratch(packet), ticket(packet)
    while share < packet[1]:
        if packet[2]:
            _forward(packet, np.uint16(0), share, mine)
        else:
            _forward(packet, f4(0), share, mine)
        share = ticket(packet)


def causal_attention_backward(packet: Any) -> None:
    mine, share = _scratch(packet), ticket(packet)
    while share < packet[1]:
        if packet[2]:
            _backward(packet, np.uint16(0), share, mine)
        else:
            _backward(packet, f4(0), share, mine)
        share = ticket(packet)


PROGRAMS = {program.__name__: program for program in (causal_attention, causal_attention_backward)}
