"""The programs behind :func:`wordloom.nn.fused.causal_attention`: block of queries by block of queries.

A block looks at the keys up to its own and at no others, which halves the work of a whole product, and its
scores stay in the processor's cache.  Products are the BLAS's ``sgemm``, in float32 whatever the tensors
are stored as; softmax lies between them.  Backward makes the scores again from the row sums that forward kept
(Dao et al. 2022, arXiv:2205.14135, appendix B.2).
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

__all__ = ["BLOCK", "PROGRAMS", "scratch_elements"]

BLOCK = 64  # queries at a time: scores of 64 x 512 are a quarter of a Zen 3 core's second-level cache


def scratch_elements(T: int, E: int) -> int:
    """Floats that a thread needs in either direction, a whole number of cache lines."""
    return -(-(2 * BLOCK * T + 4 * T * E + 4 * BLOCK * E) // 16) * 16


# A packet goes on after its third figure: B * K units, each a row's key head, then
#   4 sgemm, 5 a counter by which threads find scratch of their own, 6 scratch, 7 its floats by thread,
#   8 T, 9 E, 10 H, 11 K, 12 scale (the bits of a float32),
#   13-15 q, k, v; 16-24 their steps in elements for batch, time and head
# and each program's own from 25 on.  H / K query heads share a key head.


@exact
def _floats(address: int, elements: int) -> Any:
    return pointer(address + 4 * elements, f4(0.0))


@leaf
def _rows(source: Any, step: int, n: int, E: int, out: Any) -> None:
    """n rows of E elements, ``step`` apart in ``source``, as float32 into ``out`` [n, E]."""
    for i in range(n):
        for e in range(E):
            out[i * E + e] = load(source, i * step + e)


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
    size = 2 if packet[2] else 4
    scores, o = _floats(mine, 0), _floats(mine, BLOCK * T)
    q32, k32 = _floats(mine, BLOCK * T + BLOCK * E), _floats(mine, BLOCK * T + 2 * BLOCK * E)
    v32 = _floats(mine, BLOCK * T + 2 * BLOCK * E + T * E)
    out, sums = pointer(packet[25], like), pointer(packet[26], f4(0.0))
    start, stop = bounds(packet, share)
    for unit in range(start, stop):
        b, shared = unit // K, unit % K
        at_k = packet[14] + size * (b * packet[19] + shared * packet[21])
        at_v = packet[15] + size * (b * packet[22] + shared * packet[24])
        k, k_row, v, v_row = _floats(at_k, 0), packet[20], _floats(at_v, 0), packet[23]
        if packet[2]:
            _rows(pointer(at_k, like), k_row, T, E, k32)
            _rows(pointer(at_v, like), v_row, T, E, v32)
            k, k_row, v, v_row = k32, E, v32, E
        for h in range(shared * (H // K), (shared + 1) * (H // K)):
            for s in range(0, T, BLOCK):
                R = min(BLOCK, T - s)
                S = s + R
                at_q = packet[13] + size * (b * packet[16] + s * packet[17] + h * packet[18])
                q, q_row = _floats(at_q, 0), packet[17]
                if packet[2]:
                    _rows(pointer(at_q, like), q_row, R, E, q32)
                    q, q_row = q32, E
                gemm(routine, False, True, R, S, E, scale, q, q_row, k, k_row, f4(0.0), scores, S)
                for r in range(R):
                    seen = s + r + 1
                    m = highest(scores, r * S, seen)
                    total = _exponentials(scores, r * S, seen, m)
                    for i in range(r * S + seen, (r + 1) * S):
                        scores[i] = f4(0.0)
                    sums[(b * H + h) * T + s + r] = m + np.log(total)
                    q32[r] = f4(1.0) / total  # q is no longer needed
                gemm(routine, False, False, R, E, S, f4(1.0), scores, S, v, v_row, f4(0.0), o, E)
                for r in range(R):
                    place, inverse = ((b * T + s + r) * H + h) * E, q32[r]
                    for e in range(E):
                        store(out, place + e, o[r * E + e] * inverse)


@leaf
def _backward(packet: Any, like: Any, share: int, mine: int) -> None:
    """25 out, 26 sums, 27 d_out [B, T, H, E] -> 28 d_q [B, T, H, E], 29 d_k and 30 d_v [B, T, K, E]."""
    routine, T, E, H, K = packet[4], packet[8], packet[9], packet[10], packet[11]
    scale = float_of(np.uint32(packet[12]))
    size = 2 if packet[2] else 4
    p, d_p, place = _floats(mine, 0), _floats(mine, BLOCK * T), 2 * BLOCK * T
    k32, v32 = _floats(mine, place), _floats(mine, place + T * E)
    d_k32, d_v32 = _floats(mine, place + 2 * T * E), _floats(mine, place + 3 * T * E)
    place += 4 * T * E
    q32, d_o32 = _floats(mine, place), _floats(mine, place + BLOCK * E)
    d_q32, correction = _floats(mine, place + 2 * BLOCK * E), _floats(mine, place + 3 * BLOCK * E)
    out, d_out, sums = pointer(packet[25], like), pointer(packet[27], like), pointer(packet[26], f4(0.0))
    d_q, d_k, d_v = pointer(packet[28], like), pointer(packet[29], like), pointer(packet[30], like)
    start, stop = bounds(packet, share)
    for unit in range(start, stop):
        b, shared = unit // K, unit % K
        at_k = packet[14] + size * (b * packet[19] + shared * packet[21])
        at_v = packet[15] + size * (b * packet[22] + shared * packet[24])
        k, k_row, v, v_row = _floats(at_k, 0), packet[20], _floats(at_v, 0), packet[23]
        if packet[2]:
            _rows(pointer(at_k, like), k_row, T, E, k32)
            _rows(pointer(at_v, like), v_row, T, E, v32)
            k, k_row, v, v_row = k32, E, v32, E
        for i in range(T * E):
            d_k32[i] = f4(0.0)
            d_v32[i] = f4(0.0)
        for h in range(shared * (H // K), (shared + 1) * (H // K)):
            for s in range(0, T, BLOCK):
                R = min(BLOCK, T - s)
                S = s + R
                at_q = packet[13] + size * (b * packet[16] + s * packet[17] + h * packet[18])
                at_d_o = packet[27] + size * ((b * T + s) * H + h) * E
                q, q_row, d_o, d_o_row = _floats(at_q, 0), packet[17], _floats(at_d_o, 0), H * E
                if packet[2]:
                    _rows(pointer(at_q, like), q_row, R, E, q32)
                    _rows(pointer(at_d_o, like), H * E, R, E, d_o32)
                    q, q_row, d_o, d_o_row = q32, E, d_o32, E
                for r in range(R):  # sum_j p_ij d_p_ij = out_i . d_out_i
                    first, total = ((b * T + s + r) * H + h) * E, f4(0.0)
                    for e in range(first, first + E):
                        total += load(out, e) * load(d_out, e)
                    correction[r] = total
                gemm(routine, False, True, R, S, E, scale, q, q_row, k, k_row, f4(0.0), p, S)
                gemm(routine, False, True, R, S, E, f4(1.0), d_o, d_o_row, v, v_row, f4(0.0), d_p, S)
                for r in range(R):
                    seen, total, less = s + r + 1, sums[(b * H + h) * T + s + r], correction[r]
                    for i in range(r * S, r * S + seen):
                        weight = exp(p[i] - total)
                        p[i] = weight
                        d_p[i] = weight * (d_p[i] - less)
                    for i in range(r * S + seen, (r + 1) * S):
                        p[i] = f4(0.0)
                        d_p[i] = f4(0.0)
                gemm(routine, True, False, S, E, R, f4(1.0), p, S, d_o, d_o_row, f4(1.0), d_v32, E)
                gemm(routine, True, False, S, E, R, scale, d_p, S, q, q_row, f4(1.0), d_k32, E)
                gemm(routine, False, False, R, E, S, scale, d_p, S, k, k_row, f4(0.0), d_q32, E)
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
