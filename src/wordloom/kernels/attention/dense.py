"""The kernels behind :func:`wordloom.nn.fused.attention`, one block of queries at a time.

The scores of a block stay in the processor's cache.  Causal attention computes only the scores of keys up to
the block's last query, which halves the work; keys after the last visible one are skipped too.  Products are
our own, or ``sgemm`` of the BLAS, in float32 whatever the tensors are stored as.  Backward recomputes the
scores from the row sums that forward kept (Dao et al. 2022, arXiv:2205.14135, appendix B.2), and
which weights were dropped from a hash of their places.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wordloom.kernels.arithmetic import exp, f4, highest
from wordloom.kernels.attention.blocks import (
    BLOCK,
    OUR_BLOCK,
    copy_columns,
    dense_rows,
    exponentials,
    fill_with_zeros,
    floats,
    kept_factor,
    product,
    put_rows,
    query_seed,
    row_products,
)
from wordloom.kernels.machine_code import exact, leaf
from wordloom.kernels.memory import element_size, is_null, pointer, store
from wordloom.kernels.parallel import Bytes, Element, Floats, Integers, Scratch, Stored, parallel
from wordloom.kernels.registers import LANES


def scratch_elements(S: int, E: int) -> int:
    """Return the floats that a thread needs in either direction for S keys, a multiple of a cache line."""
    padded = -(-S // LANES) * LANES
    return -(-(2 * BLOCK * padded + 5 * padded * E + 4 * BLOCK * E) // 16) * 16


@leaf
def _visible(scores: Any, first: int, n: int, seen: Any, at: int) -> None:
    """Give masked keys the lowest score, whose exponential is nearly 0."""
    for i in range(n):
        scores[first + i] = scores[first + i] if seen[at + i] != 0 else f4(-3.0e38)


@leaf
def _blanked(scores: Any, first: int, n: int, seen: Any, at: int) -> Any:
    """Set the weights of masked keys to 0 and return the sum of the others."""
    total = f4(0.0)
    for i in range(n):
        e = scores[first + i] if seen[at + i] != 0 else f4(0.0)
        scores[first + i] = e
        total += e
    return total


@exact
def _dropped(scores: Any, first: int, n: int, seed: int, chance: int, kept: Any) -> None:
    """Apply dropout to the weights of a query."""
    for i in range(n):
        factor = kept_factor(i, seed, chance, kept)
        scores[first + i] = scores[first + i] * factor


@exact
def _errors(
    p: Any, d_p: Any, first: int, n: int, total: Any, less: Any, seed: int, chance: int, kept: Any
) -> None:
    """Turn a row of scores ``p`` into the weights of values, and ``d_p`` into the gradient of the scores."""
    if chance == 0:
        for i in range(first, first + n):
            weight = exp(p[i] - total)
            p[i] = weight
            d_p[i] = weight * (d_p[i] - less)
        return
    for i in range(n):
        factor = kept_factor(i, seed, chance, kept)
        weight = exp(p[first + i] - total)
        p[first + i] = weight * factor
        d_p[first + i] = weight * (d_p[first + i] * factor - less)


@leaf
def _last_seen(seen: Any, at: int, S: int) -> int:
    """Return the number of S keys up to the last visible one."""
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
def _softmax(
    scores: Any, W: int, R: int, S: int, s: int, causal: bool, holes: bool, seen_keys: Any, at_keys: int,
    sums: Any, first_row: int, inverses: Any, seed: int, head: int, chance: int, kept: Any,
) -> None:  # fmt: skip
    """Turn the scores [R, W] of queries s, s + 1, ... into weights times the sums of their exponentials.

    ``inverses`` [R] are 1 / these sums, and ``sums`` from ``first_row`` on their logarithms.
    """
    for r in range(R):
        seen, row = min(s + r + 1, S) if causal else S, first_row + r
        if holes:
            _visible(scores, r * W, seen, seen_keys, at_keys)
        m = highest(scores, r * W, seen)
        total = exponentials(scores, r * W, seen, m)
        if holes:
            total = _blanked(scores, r * W, seen, seen_keys, at_keys)
        fill_with_zeros(scores, r * W + seen, r * W + S)
        sums[row] = m + np.log(total)
        inverses[r] = f4(1.0) / total if total > f4(0.0) else f4(0.0)
        if chance:
            _dropped(scores, r * W, seen, query_seed(seed, head, s + r), chance, kept)


@leaf
def _softmax_backward(
    p: Any, d_p: Any, W: int, R: int, S: int, s: int, causal: bool, holes: bool, seen_keys: Any,
    at_keys: int, sums: Any, first_row: int, corrections: Any, seed: int, head: int, chance: int, kept: Any,
) -> None:  # fmt: skip
    """Turn the scores ``p`` [R, W] into weights and the gradient ``d_p`` of weights into that of scores."""
    for r in range(R):
        seen, row = min(s + r + 1, S) if causal else S, first_row + r
        own = query_seed(seed, head, s + r)
        _errors(p, d_p, r * W, seen, sums[row], corrections[r], own, chance, kept)
        if holes:
            _blanked(p, r * W, seen, seen_keys, at_keys)
            _blanked(d_p, r * W, seen, seen_keys, at_keys)
        fill_with_zeros(p, r * W + seen, r * W + S)
        fill_with_zeros(d_p, r * W + seen, r * W + S)


@parallel
@leaf
def attention(
    start: int, stop: int, like: Element, scratch: Scratch, routine: int, T: int, keys: int, E: int, H: int,
    K: int, scale: float, causal: bool, seen_keys: Bytes, seeds: Integers, chance: int, kept: float, q: int,
    k: int, v: int, q_batch: int, q_time: int, q_head: int, k_batch: int, k_time: int, k_head: int,
    v_batch: int, v_time: int, v_head: int, out: Stored, sums: Floats,
) -> None:  # fmt: skip
    """out [B, T, H, E] = attention; sums [B, H, T] = the logarithm of each row's sum of exponentials.

    The work is B * K units, each one row's key head with the H / K query heads that share it.

    Args:
        routine: the address of ``sgemm``, or 0 for our own products, which need E to be a multiple of LANES.
        keys: S, the number of keys.
        seen_keys: [B, S], which keys may be seen; null for all.
        seeds, chance, kept: of dropout: a weight is dropped with a chance of ``chance`` / 2^32, and the
            others are multiplied by ``kept``.  Each row of the batch has a seed [B]; null without dropout.
        q, k, v: addresses of [B, T, H, E] and twice [B, S, K, E], with steps in elements from one row of the
            batch, time and head to the next.
    """
    masked = not is_null(seen_keys)
    size = element_size(like)
    copies = size != 4 or routine == 0  # of rows in float32, for the products
    width, block = -(-keys // LANES) * LANES, BLOCK if routine else OUR_BLOCK
    at_scores, at_o = scratch, scratch + 4 * BLOCK * width
    at_q32, at_k32 = at_o + 4 * BLOCK * E, at_o + 8 * BLOCK * E
    at_v32 = at_k32 + 4 * width * E
    scores, o, inverses = floats(at_scores), floats(at_o), floats(at_q32)
    for unit in range(start, stop):
        b, shared = unit // K, unit % K
        seed = seeds[b] if chance else 0
        last = _last_seen(seen_keys, b * keys, keys) if masked else keys
        holes = masked and _holes(seen_keys, b * keys, last)
        at_k = k + size * (b * k_batch + shared * k_head)
        if routine == 0:
            copy_columns(pointer(at_k, like), k_time, last, E, at_k32, width)
            at_k, k_row = at_k32, width
        else:
            at_k, k_row = dense_rows(copies, at_k, k_time, last, E, like, at_k32)
        at_v = v + size * (b * v_batch + shared * v_head)
        at_v, v_row = dense_rows(copies, at_v, v_time, last, E, like, at_v32)
        for h in range(shared * (H // K), (shared + 1) * (H // K)):
            for s in range(0, T, block):
                R = min(block, T - s)
                S = min(s + R, last) if causal else last
                W = width if routine == 0 else S
                at_row, at_out = (b * H + h) * T + s, ((b * T + s) * H + h) * E
                if S == 0:  # no key may be seen
                    fill_with_zeros(o, 0, R * E)
                    fill_with_zeros(sums, at_row, at_row + R)
                    put_rows(out, at_out, H * E, o, R, E)
                    continue
                at_q = q + size * (b * q_batch + s * q_time + h * q_head)
                at_q, q_row = dense_rows(copies, at_q, q_time, R, E, like, at_q32)
                product(routine, False, True, R, S, E, scale, at_q, q_row, at_k, k_row, False, at_scores, W)
                _softmax(
                    scores, W, R, S, s, causal, holes, seen_keys, b * keys, sums, at_row, inverses, seed, h,
                    chance, kept,
                )  # fmt: skip
                product(routine, False, False, R, E, S, f4(1.0), at_scores, W, at_v, v_row, False, at_o, E)
                for r in range(R):
                    for e in range(E):
                        store(out, at_out + r * H * E + e, o[r * E + e] * inverses[r])


@parallel
@leaf
def attention_backward(
    start: int, stop: int, like: Element, scratch: Scratch, routine: int, T: int, keys: int, E: int, H: int,
    K: int, scale: float, causal: bool, seen_keys: Bytes, seeds: Integers, chance: int, kept: float, q: int,
    k: int, v: int, q_batch: int, q_time: int, q_head: int, k_batch: int, k_time: int, k_head: int,
    v_batch: int, v_time: int, v_head: int, out: Stored, sums: Floats, d_out: int, d_q: Stored, d_k: Stored,
    d_v: Stored,
) -> None:  # fmt: skip
    """d_q [B, T, H, E], d_k and d_v [B, S, K, E] from the address of d_out [B, T, H, E]; see attention."""
    masked = not is_null(seen_keys)
    size = element_size(like)
    copies = size != 4 or routine == 0  # of rows in float32, for the products
    width, block = -(-keys // LANES) * LANES, BLOCK if routine else OUR_BLOCK
    at_p, at_d_p, place = scratch, scratch + 4 * BLOCK * width, scratch + 8 * BLOCK * width
    at_k32, at_v32 = place, place + 4 * width * E  # v as rows, or as columns for our own products
    at_columns = place + 8 * width * E  # of k
    at_d_k, at_d_v = place + 12 * width * E, place + 16 * width * E
    place += 20 * width * E
    at_q32, at_d_o32 = place, place + 4 * BLOCK * E
    at_d_q32, at_corrections = place + 8 * BLOCK * E, place + 12 * BLOCK * E
    p, d_p, d_k32, d_v32 = floats(at_p), floats(at_d_p), floats(at_d_k), floats(at_d_v)
    d_q32, corrections = floats(at_d_q32), floats(at_corrections)
    d_rows = pointer(d_out, like)
    for unit in range(start, stop):
        b, shared = unit // K, unit % K
        seed = seeds[b] if chance else 0
        last = _last_seen(seen_keys, b * keys, keys) if masked else keys
        holes = masked and _holes(seen_keys, b * keys, last)
        at_k = k + size * (b * k_batch + shared * k_head)
        at_v = v + size * (b * v_batch + shared * v_head)
        if routine == 0:
            copy_columns(pointer(at_k, like), k_time, last, E, at_columns, width)
            copy_columns(pointer(at_v, like), v_time, last, E, at_v32, width)
            at_v, v_row = at_v32, width
        else:
            at_v, v_row = dense_rows(copies, at_v, v_time, last, E, like, at_v32)
        at_k, k_row = dense_rows(copies, at_k, k_time, last, E, like, at_k32)
        at_right, right_row = (at_columns, width) if routine == 0 else (at_k, k_row)  # of the scores
        fill_with_zeros(d_k32, 0, keys * E)
        fill_with_zeros(d_v32, 0, keys * E)
        for h in range(shared * (H // K), (shared + 1) * (H // K)):
            for s in range(0, T, block):
                R = min(block, T - s)
                S = min(s + R, last) if causal else last
                W = width if routine == 0 else S
                at_row, at_out = (b * H + h) * T + s, ((b * T + s) * H + h) * E
                if S == 0:  # no key may be seen
                    fill_with_zeros(d_q32, 0, R * E)
                    put_rows(d_q, at_out, H * E, d_q32, R, E)
                    continue
                at_q = q + size * (b * q_batch + s * q_time + h * q_head)
                at_q, q_row = dense_rows(copies, at_q, q_time, R, E, like, at_q32)
                at_d_o, d_o_row = dense_rows(copies, d_out + size * at_out, H * E, R, E, like, at_d_o32)
                row_products(out, d_rows, at_out, H * E, R, E, corrections)
                product(
                    routine, False, True, R, S, E, scale, at_q, q_row, at_right, right_row, False, at_p, W
                )
                product(
                    routine, False, True, R, S, E, f4(1.0), at_d_o, d_o_row, at_v, v_row, False, at_d_p, W
                )
                _softmax_backward(
                    p, d_p, W, R, S, s, causal, holes, seen_keys, b * keys, sums, at_row, corrections,
                    seed, h, chance, kept,
                )  # fmt: skip
                product(routine, True, False, S, E, R, f4(1.0), at_p, W, at_d_o, d_o_row, True, at_d_v, E)
                product(routine, True, False, S, E, R, scale, at_d_p, W, at_q, q_row, True, at_d_k, E)
                product(routine, False, False, R, E, S, scale, at_d_p, W, at_k, k_row, False, at_d_q32, E)
                put_rows(d_q, at_out, H * E, d_q32, R, E)
        at_keys = (b * keys * K + shared) * E
        put_rows(d_k, at_keys, K * E, d_k32, keys, E)
        put_rows(d_v, at_keys, K * E, d_v32, keys, E)
