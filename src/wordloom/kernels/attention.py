"""The programs behind :func:`wordloom.nn.fused.attention`: block of queries by block of queries.

A block's scores stay in the processor's cache.  Where attention is causal it looks at the keys up to its own
and at no others, which halves the work of a whole product; keys behind the last that may be seen are left out
likewise.  Products are our own, or the BLAS's ``sgemm``, in float32 whatever the tensors are stored as;
softmax lies between them.  Backward makes the scores again from the row sums that forward kept (Dao et al.
2022, arXiv:2205.14135, appendix B.2), and what was dropped from a hash of its place.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wordloom.kernels.arithmetic import exp, f4, hashed, highest
from wordloom.kernels.machine_code import exact, leaf
from wordloom.kernels.memory import float_of, load, pointer, store, ticket
from wordloom.kernels.packets import bounds
from wordloom.kernels.products import gemm, panel
from wordloom.kernels.registers import LANES

__all__ = ["BLOCK", "PROGRAMS", "scratch_elements"]

BLOCK = 64  # queries at a time: scores of 64 x 512 are a quarter of a Zen 3 core's second-level cache
_OUR_BLOCK = 32  # ... of our own products, which cost no call: less is multiplied beyond the diagonal


def scratch_elements(S: int, E: int) -> int:
    """Floats that a thread needs in either direction for S keys, a whole number of cache lines."""
    padded = -(-S // LANES) * LANES
    return -(-(2 * BLOCK * padded + 5 * padded * E + 4 * BLOCK * E) // 16) * 16


# A packet goes on after its third figure: B * K units, each a row's key head, then
#   4 the address of sgemm, or 0 for products of our own, which take E in whole vectors,
#   5 a counter by which threads find scratch of their own, 6 scratch, 7 its floats by thread,
#   8 T queries, 9 S keys, 10 E, 11 H, 12 K, 13 scale (the bits of a float32), 14 whether attention is causal,
#   15 which keys may be seen (bytes [B, S]), or 0 for all,
#   16 a seed, 17 the chance that a weight is dropped (of 2^32), 18 what the others are multiplied by (bits),
#   19-21 q, k, v; 22-30 their steps in elements for batch, time and head
# and each program's own from 31 on.  H / K query heads share a key head.
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
def _visible(scores: Any, first: int, n: int, seen: Any, at: int) -> None:
    """Make what may not be seen the lowest score, whose exponential is next to nothing."""
    for i in range(n):
        scores[first + i] = scores[first + i] if seen[at + i] != 0 else f4(-3.0e38)


@leaf
def _blanked(scores: Any, first: int, n: int, seen: Any, at: int) -> Any:
    """... and nothing; their sum without it."""
    total = f4(0.0)
    for i in range(n):
        e = scores[first + i] if seen[at + i] != 0 else f4(0.0)
        scores[first + i] = e
        total += e
    return total


@exact
def _dropped(scores: Any, first: int, n: int, place: int, packet: Any) -> None:
    """Drop of a row's weights those that the hash of their places says."""
    low, high = np.uint32(packet[16]), np.uint32(packet[16] >> 32)
    chance, kept = np.uint32(packet[17]), float_of(np.uint32(packet[18]))
    for i in range(n):
        factor = kept if hashed(np.uint32(place + i), low, high) >= chance else f4(0.0)
        scores[first + i] = scores[first + i] * factor


@exact
def _errors(p: Any, d_p: Any, first: int, n: int, total: Any, less: Any, place: int, packet: Any) -> None:
    """A row of scores ``p`` becomes the weights that values had, and ``d_p`` the gradient of the scores."""
    low, high = np.uint32(packet[16]), np.uint32(packet[16] >> 32)
    chance, kept = np.uint32(packet[17]), float_of(np.uint32(packet[18]))
    if chance == np.uint32(0):
        for i in range(first, first + n):
            weight = exp(p[i] - total)
            p[i] = weight
            d_p[i] = weight * (d_p[i] - less)
        return
    for i in range(n):
        factor = kept if hashed(np.uint32(place + i), low, high) >= chance else f4(0.0)
        weight = exp(p[first + i] - total)
        p[first + i] = weight * factor
        d_p[first + i] = weight * (d_p[first + i] * factor - less)


@leaf
def _put_row(out: Any, place: int, row: Any, first: int, n: int, factor: Any) -> None:
    for i in range(n):
        store(out, place + i, row[first + i] * factor)


@leaf
def _last_seen(seen: Any, at: int, S: int) -> int:
    """How many of S keys there are up to the last that may be seen."""
    last = S
    while last > 0 and seen[at + last - 1] == 0:
        last -= 1
    return last


@leaf
def _holes(seen: Any, at: int, n: int) -> bool:
    holes = False
    for i in range(n):
        holes = holes or seen[at + i] == 0
    return holes


@leaf
def _forward(packet: Any, like: Any, share: int, mine: int) -> None:
    """31 out [B, T, H, E], 32 sums [B, H, T]: the logarithm of every row's sum of exponentials."""
    routine, T, keys, E, H, K = packet[4], packet[8], packet[9], packet[10], packet[11], packet[12]
    scale, causal, dropping = float_of(np.uint32(packet[13])), packet[14] != 0, packet[17] != 0
    masked, seen_keys = packet[15] != 0, pointer(packet[15], np.uint8(0))
    size, laid_out = 2 if packet[2] else 4, packet[2] != 0 or routine == 0
    width, block = -(-keys // LANES) * LANES, BLOCK if routine else _OUR_BLOCK
    at_scores, at_o = mine, mine + 4 * BLOCK * width
    at_q32, at_k32 = at_o + 4 * BLOCK * E, at_o + 8 * BLOCK * E
    at_v32 = at_k32 + 4 * width * E
    scores, o, inverses = _floats(at_scores, 0), _floats(at_o, 0), _floats(at_q32, 0)
    out, sums = pointer(packet[31], like), pointer(packet[32], f4(0.0))
    start, stop = bounds(packet, share)
    for unit in range(start, stop):
        b, shared = unit // K, unit % K
        last = _last_seen(seen_keys, b * keys, keys) if masked else keys
        holes = masked and _holes(seen_keys, b * keys, last)
        at_k = packet[20] + size * (b * packet[25] + shared * packet[27])
        at_v = packet[21] + size * (b * packet[28] + shared * packet[30])
        k_row, v_row = packet[26], packet[29]
        if routine == 0:
            _columns(pointer(at_k, like), k_row, last, E, at_k32, width)
            at_k, k_row = at_k32, width
        elif laid_out:
            _rows(pointer(at_k, like), k_row, last, E, at_k32)
            at_k, k_row = at_k32, E
        if laid_out:
            _rows(pointer(at_v, like), v_row, last, E, at_v32)
            at_v, v_row = at_v32, E
        for h in range(shared * (H // K), (shared + 1) * (H // K)):
            for s in range(0, T, block):
                R = min(block, T - s)
                S = min(s + R, last) if causal else last
                W = width if routine == 0 else S
                at_q = packet[19] + size * (b * packet[22] + s * packet[23] + h * packet[24])
                q_row = packet[23]
                if S == 0:  # no key may be seen
                    for i in range(R * E):
                        o[i] = f4(0.0)
                    for r in range(R):
                        sums[(b * H + h) * T + s + r] = f4(0.0)
                        _put_row(out, ((b * T + s + r) * H + h) * E, o, r * E, E, f4(1.0))
                    continue
                if laid_out:
                    _rows(pointer(at_q, like), q_row, R, E, at_q32)
                    at_q, q_row = at_q32, E
                _product(routine, False, True, R, S, E, scale, at_q, q_row, at_k, k_row, False, at_scores, W)
                for r in range(R):
                    seen, row = min(s + r + 1, S) if causal else S, (b * H + h) * T + s + r
                    if holes:
                        _visible(scores, r * W, seen, seen_keys, b * keys)
                    m = highest(scores, r * W, seen)
                    total = _exponentials(scores, r * W, seen, m)
                    if holes:
                        total = _blanked(scores, r * W, seen, seen_keys, b * keys)
                    for i in range(r * W + seen, r * W + S):
                        scores[i] = f4(0.0)
                    sums[row] = m + np.log(total)
                    inverses[r] = f4(1.0) / total if total > f4(0.0) else f4(0.0)  # q is no longer needed
                    if dropping:
                        _dropped(scores, r * W, seen, row * keys, packet)
                _product(routine, False, False, R, E, S, f4(1.0), at_scores, W, at_v, v_row, False, at_o, E)
                for r in range(R):
                    _put_row(out, ((b * T + s + r) * H + h) * E, o, r * E, E, inverses[r])


@leaf
def _backward(packet: Any, like: Any, share: int, mine: int) -> None:
    """31 out, 32 sums, 33 d_out [B, T, H, E] -> 34 d_q [B, T, H, E], 35 d_k and 36 d_v [B, S, K, E]."""
    routine, T, keys, E, H, K = packet[4], packet[8], packet[9], packet[10], packet[11], packet[12]
    scale, causal = float_of(np.uint32(packet[13])), packet[14] != 0
    masked, seen_keys = packet[15] != 0, pointer(packet[15], np.uint8(0))
    size, laid_out = 2 if packet[2] else 4, packet[2] != 0 or routine == 0
    width, block = -(-keys // LANES) * LANES, BLOCK if routine else _OUR_BLOCK
    at_p, at_d_p, place = mine, mine + 4 * BLOCK * width, mine + 8 * BLOCK * width
    at_k32, at_v32 = place, place + 4 * width * E  # of v the rows, or the columns where we multiply
    at_columns = place + 8 * width * E  # of k
    at_d_k, at_d_v = place + 12 * width * E, place + 16 * width * E
    place += 20 * width * E
    at_q32, at_d_o32 = place, place + 4 * BLOCK * E
    at_d_q32, at_correction = place + 8 * BLOCK * E, place + 12 * BLOCK * E
    p, d_p, d_k32, d_v32 = _floats(at_p, 0), _floats(at_d_p, 0), _floats(at_d_k, 0), _floats(at_d_v, 0)
    d_q32, correction = _floats(at_d_q32, 0), _floats(at_correction, 0)
    out, d_out, sums = pointer(packet[31], like), pointer(packet[33], like), pointer(packet[32], f4(0.0))
    d_q, d_k, d_v = pointer(packet[34], like), pointer(packet[35], like), pointer(packet[36], like)
    start, stop = bounds(packet, share)
    for unit in range(start, stop):
        b, shared = unit // K, unit % K
        last = _last_seen(seen_keys, b * keys, keys) if masked else keys
        holes = masked and _holes(seen_keys, b * keys, last)
        at_k = packet[20] + size * (b * packet[25] + shared * packet[27])
        at_v = packet[21] + size * (b * packet[28] + shared * packet[30])
        k_row, v_row = packet[26], packet[29]
        side, side_row = at_k, k_row  # the keys once more, as the right side of the scores
        if laid_out:
            _rows(pointer(at_k, like), k_row, last, E, at_k32)
            side, side_row = at_k32, E
        if routine == 0:
            _columns(pointer(at_k, like), k_row, last, E, at_columns, width)
            _columns(pointer(at_v, like), v_row, last, E, at_v32, width)
            side, side_row, at_v, v_row = at_columns, width, at_v32, width
        elif laid_out:
            _rows(pointer(at_v, like), v_row, last, E, at_v32)
            at_v, v_row = at_v32, E
        if laid_out:
            at_k, k_row = at_k32, E
        for i in range(keys * E):
            d_k32[i] = f4(0.0)
            d_v32[i] = f4(0.0)
        for h in range(shared * (H // K), (shared + 1) * (H // K)):
            for s in range(0, T, block):
                R = min(block, T - s)
                S = min(s + R, last) if causal else last
                W = width if routine == 0 else S
                at_q = packet[19] + size * (b * packet[22] + s * packet[23] + h * packet[24])
                at_d_o = packet[33] + size * ((b * T + s) * H + h) * E
                q_row, d_o_row = packet[23], H * E
                if S == 0:
                    for i in range(R * E):
                        d_q32[i] = f4(0.0)
                    for r in range(R):
                        _put_row(d_q, ((b * T + s + r) * H + h) * E, d_q32, r * E, E, f4(1.0))
                    continue
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
                    seen, row = min(s + r + 1, S) if causal else S, (b * H + h) * T + s + r
                    _errors(p, d_p, r * W, seen, sums[row], correction[r], row * keys, packet)
                    if holes:
                        _blanked(p, r * W, seen, seen_keys, b * keys)
                        _blanked(d_p, r * W, seen, seen_keys, b * keys)
                    for i in range(r * W + seen, r * W + S):
                        p[i] = f4(0.0)
                        d_p[i] = f4(0.0)
                _product(routine, True, False, S, E, R, f4(1.0), at_p, W, at_d_o, d_o_row, True, at_d_v, E)
                _product(routine, True, False, S, E, R, scale, at_d_p, W, at_q, q_row, True, at_d_k, E)
                _product(routine, False, False, R, E, S, scale, at_d_p, W, at_k, k_row, False, at_d_q32, E)
                for r in range(R):
                    _put_row(d_q, ((b * T + s + r) * H + h) * E, d_q32, r * E, E, f4(1.0))
        for t in range(keys):
            first = ((b * keys + t) * K + shared) * E
            _put_row(d_k, first, d_k32, t * E, E, f4(1.0))
            _put_row(d_v, first, d_v32, t * E, E, f4(1.0))


# -- as the threads call them: shares are taken until none is left -----------------------------------------


@exact
def _scratch(packet: Any) -> int:
    """The address of this thread's scratch."""
    return packet[6] + 4 * packet[7] * ticket(pointer(packet[5], np.int64(0)))


def attention(packet: Any) -> None:
    mine, share = _scratch(packet), ticket(packet)
    while share < packet[1]:
        if packet[2]:
            _forward(packet, np.uint16(0), share, mine)
        else:
            _forward(packet, f4(0), share, mine)
        share = ticket(packet)


def attention_backward(packet: Any) -> None:
    mine, share = _scratch(packet), ticket(packet)
    while share < packet[1]:
        if packet[2]:
            _backward(packet, np.uint16(0), share, mine)
        else:
            _backward(packet, f4(0), share, mine)
        share = ticket(packet)


PROGRAMS = {program.__name__: program for program in (attention, attention_backward)}
