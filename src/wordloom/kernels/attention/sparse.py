"""The kernels behind :func:`wordloom.nn.attention.sparse.sparse_attention`: queries visit only keys they see.

The keys of a query are ranges with a step, and single keys.  A block of queries visits each range in tiles of
at most ``KEYS`` keys and keeps a running maximum and sum for each query (Dao et al. 2022, arXiv:2205.14135,
algorithm 1), so that the scratch memory of a thread depends on no length.  Queries that see every D-th key
share their keys with every D-th query; a tile then has the rows and keys of one remainder.  A key that
several ranges contain counts in the first of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wordloom.kernels.arithmetic import exp, f4, highest
from wordloom.kernels.attention.blocks import (
    BLOCK,
    OUR_BLOCK,
    copy_columns,
    copy_rows,
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
from wordloom.kernels.memory import INT32, element_size, load, pointer, store
from wordloom.kernels.parallel import Element, Floats, Integers, Scratch, Stored, parallel
from wordloom.kernels.registers import LANES

KEYS = 512
"""The largest number of keys of a tile: 64 x 512 scores are a quarter of a second-level cache of 512 kB."""

_LOWEST = f4(-3.0e38)


def scratch_elements(E: int) -> int:
    """Return the floats that a thread needs in either direction, a multiple of a cache line."""
    return -(-(2 * BLOCK * KEYS + 3 * KEYS * E + 4 * BLOCK * E + 4 * BLOCK) // 16) * 16


@exact
def _slot(key: int, key0: int, step: int, n: int) -> int:
    """Return the first of n slots, of keys key0, key0 + step, ..., whose key is not below ``key``."""
    if key <= key0:
        return 0
    return min((key - key0 + step - 1) // step, n)


@exact
def _fill_earlier(
    values: Any, at: int, a: int, b: int, key0: int, step: int, q: int, T: int, kind: int, first: Any,
    end: Any, steps: Any, value: Any,
) -> None:  # fmt: skip
    """Write ``value`` to slots a .. b - 1 of a row where an earlier kind's range contains the key."""
    for p in range(kind):
        low, high, every = np.int64(first[p * T + q]), np.int64(end[p * T + q]), steps[p]
        if every == 1:
            for i in range(max(a, _slot(low, key0, step, b)), _slot(high, key0, step, b)):
                values[at + i] = value
        else:
            for i in range(a, b):
                key = key0 + i * step
                if key >= low and key < high and (key - low) % every == 0:
                    values[at + i] = value


@leaf
def _add_to_row(scores: Any, at: int, n: int, r: int, E: int, most: Any, sums: Any, o: Any) -> None:
    """Turn n scores into weights, and scale what row r has summed up so far to the new maximum."""
    top = highest(scores, at, n)
    new = top if top > most[r] else most[r]
    factor = exp(most[r] - new)
    total = exponentials(scores, at, n, new)
    sums[r] = sums[r] * factor + total
    most[r] = new
    for e in range(r * E, r * E + E):
        o[e] = o[e] * factor


@exact
def _drop_row(scores: Any, at: int, n: int, key0: int, step: int, seed: int, chance: int, kept: Any) -> None:
    """Apply dropout to n weights of the keys key0, key0 + step, ..."""
    for i in range(n):
        factor = kept_factor(key0 + i * step, seed, chance, kept)
        scores[at + i] = scores[at + i] * factor


@leaf
def _dot(a: Any, at: int, b: Any, place: int, E: int) -> Any:
    total = f4(0.0)
    for e in range(E):
        total += a[at + e] * load(b, place + e)
    return total


@leaf
def _add_scaled(out: Any, at: int, factor: Any, x: Any, place: int, E: int) -> None:
    for e in range(E):
        out[at + e] += factor * load(x, place + e)


@exact
def _range_of_rows(first: Any, end: Any, at: int, rows: int, step: int, n: int) -> Any:
    """Return the lowest first key and the highest end of every ``step``-th of ``rows`` queries."""
    low, high = np.int64(n), np.int64(0)
    for r in range(0, rows, step):
        low = min(low, np.int64(first[at + r]))
        high = max(high, min(np.int64(end[at + r]), np.int64(n)))
    return low, high


@parallel
@leaf
def sparse_attention(
    start: int, stop: int, like: Element, scratch: Scratch, routine: int, segments: Integers, T: int, E: int,
    H: int, K: int, scale: float, kinds: int, longest: int, first_keys: int, ends: int, steps: Integers,
    draws: int, drawn_keys: int, seeds: Integers, chance: int, kept: float, q: int, k: int, v: int,
    q_batch: int, q_time: int, q_head: int, k_batch: int, k_time: int, k_head: int, v_batch: int,
    v_time: int, v_head: int,
    out: Stored, sums: Floats,
) -> None:  # fmt: skip
    """out [B, T, H, E] = attention; sums [B, H, T] = the logarithm of each row's sum of exponentials.

    The work is N * K units, each one segment's key head with the H / K query heads that share it.

    Args:
        routine: the address of ``sgemm``, or 0 for our own products, which need E to be a multiple of LANES.
        segments: [N, 4]: the row, first token and length of a text, and its first row of ``drawn_keys``.
        kinds, longest, first_keys, ends, steps: P, and [P, longest] int32 twice: the ranges of a text of
            ``longest`` tokens, cut off at the end of a shorter one.  The keys of a range are a step apart.
        draws, drawn_keys: R, and [*, R] int32, single keys of each query outside its ranges; -1 for none.
        seeds, chance, kept: of dropout: a weight is dropped with a chance of ``chance`` / 2^32, and the
            others are multiplied by ``kept``.  Each row of the batch has a seed [B]; null without dropout.
        q, k, v: addresses of [B, T, H, E] and twice [B, T, K, E], with steps in elements from one row of the
            batch, time and head to the next.
    """
    size = element_size(like)
    copies = size != 4 or routine == 0  # of rows in float32, for the products
    block = BLOCK if routine else OUR_BLOCK
    at_scores, at_o = scratch, scratch + 4 * BLOCK * KEYS
    at_q32 = at_o + 4 * BLOCK * E
    at_k32 = at_q32 + 4 * BLOCK * E
    at_v32 = at_k32 + 4 * KEYS * E
    at_most = at_v32 + 4 * KEYS * E
    scores, o, q32 = floats(at_scores), floats(at_o), floats(at_q32)
    most, totals = floats(at_most), floats(at_most + 4 * BLOCK)
    first, end, drawn = pointer(first_keys, INT32), pointer(ends, INT32), pointer(drawn_keys, INT32)
    stored_k, stored_v = pointer(k, like), pointer(v, like)
    for unit in range(start, stop):
        segment, shared = unit // K, unit % K
        b, t0 = segments[4 * segment], segments[4 * segment + 1]
        seed = seeds[b] if chance else 0
        n, draw0 = segments[4 * segment + 2], segments[4 * segment + 3]
        k0 = b * k_batch + t0 * k_time + shared * k_head
        v0 = b * v_batch + t0 * v_time + shared * v_head
        for h in range(shared * (H // K), (shared + 1) * (H // K)):
            for s in range(0, n, block):
                R = min(block, n - s)
                at_row, at_out = (b * H + h) * T + t0 + s, ((b * T + t0 + s) * H + h) * E
                copy_rows(
                    pointer(q + size * (b * q_batch + (t0 + s) * q_time + h * q_head), like), q_time, R, E,
                    at_q32,
                )  # fmt: skip
                fill_with_zeros(o, 0, R * E)
                fill_with_zeros(totals, 0, R)
                for r in range(R):
                    most[r] = _LOWEST
                for p in range(kinds):
                    step = steps[p]
                    for c in range(min(step, R)):
                        M = (R - c + step - 1) // step
                        low, high = _range_of_rows(first, end, p * longest + s + c, R - c, step, n)
                        for key0 in range(low, high, KEYS * step):
                            N = min(KEYS, (high - key0 + step - 1) // step)
                            W = N if routine else -(-N // LANES) * LANES
                            at_k, k_row = k + size * (k0 + key0 * k_time), step * k_time
                            at_v, v_row = v + size * (v0 + key0 * v_time), step * v_time
                            if routine == 0:
                                copy_columns(pointer(at_k, like), k_row, N, E, at_k32, W)
                                at_k, k_row = at_k32, W
                            else:
                                at_k, k_row = dense_rows(copies, at_k, k_row, N, E, like, at_k32)
                            at_v, v_row = dense_rows(copies, at_v, v_row, N, E, like, at_v32)
                            product(
                                routine, False, True, M, N, E, scale, at_q32 + 4 * c * E, step * E, at_k,
                                k_row, False, at_scores, W,
                            )  # fmt: skip
                            for i in range(M):
                                r, at = c + i * step, i * W
                                place = p * longest + s + r
                                a = _slot(np.int64(first[place]), key0, step, N)
                                z = _slot(min(np.int64(end[place]), n), key0, step, N)
                                if a < z:
                                    _fill_earlier(
                                        scores, at, a, z, key0, step, s + r, longest, p, first, end, steps,
                                        _LOWEST,
                                    )  # fmt: skip
                                    _add_to_row(scores, at + a, z - a, r, E, most, totals, o)
                                    _fill_earlier(
                                        scores, at, a, z, key0, step, s + r, longest, p, first, end, steps,
                                        f4(0.0),
                                    )  # fmt: skip
                                    if chance:
                                        _drop_row(
                                            scores, at + a, z - a, key0 + a * step, step,
                                            query_seed(seed, h, t0 + s + r), chance, kept,
                                        )  # fmt: skip
                                fill_with_zeros(scores, at, at + min(a, z))
                                fill_with_zeros(scores, at + max(a, z), at + N)
                            product(
                                routine, False, False, M, E, N, f4(1.0), at_scores, W, at_v, v_row, True,
                                at_o + 4 * c * E, step * E,
                            )  # fmt: skip
                for r in range(R):
                    at = (draw0 + s + r) * draws
                    for j0 in range(0, draws, KEYS):
                        many = 0
                        for j in range(j0, min(j0 + KEYS, draws)):
                            key = np.int64(drawn[at + j])
                            if key >= 0:
                                scores[many] = scale * _dot(q32, r * E, stored_k, k0 + key * k_time, E)
                                many += 1
                        if many == 0:
                            continue
                        _add_to_row(scores, 0, many, r, E, most, totals, o)
                        many = 0
                        for j in range(j0, min(j0 + KEYS, draws)):
                            key = np.int64(drawn[at + j])
                            if key >= 0:
                                weight = scores[many]
                                if chance:
                                    weight *= kept_factor(key, query_seed(seed, h, t0 + s + r), chance, kept)
                                _add_scaled(o, r * E, weight, stored_v, v0 + key * v_time, E)
                                many += 1
                for r in range(R):
                    sums[at_row + r] = most[r] + np.log(totals[r])
                    inverse = f4(1.0) / totals[r] if totals[r] > f4(0.0) else f4(0.0)
                    for e in range(E):
                        store(out, at_out + r * H * E + e, o[r * E + e] * inverse)


@exact
def _errors(
    p: Any, d_p: Any, at: int, n: int, total: Any, less: Any, key0: int, step: int, seed: int, chance: int,
    kept: Any,
) -> None:  # fmt: skip
    """Turn a row of scores ``p`` into the weights of values, and ``d_p`` into the gradient of the scores."""
    if chance == 0:
        for i in range(at, at + n):
            weight = exp(p[i] - total)
            p[i] = weight
            d_p[i] = weight * (d_p[i] - less)
        return
    for i in range(n):
        factor = kept_factor(key0 + i * step, seed, chance, kept)
        weight = exp(p[at + i] - total)
        p[at + i] = weight * factor
        d_p[at + i] = weight * (d_p[at + i] * factor - less)


@parallel
@leaf
def sparse_attention_backward(
    start: int, stop: int, like: Element, scratch: Scratch, routine: int, segments: Integers, T: int, E: int,
    H: int, K: int, scale: float, kinds: int, longest: int, first_keys: int, ends: int, steps: Integers,
    draws: int, drawn_keys: int, seeds: Integers, chance: int, kept: float, q: int, k: int, v: int,
    q_batch: int, q_time: int, q_head: int, k_batch: int, k_time: int, k_head: int, v_batch: int,
    v_time: int, v_head: int,
    out: Stored, sums: Floats, d_out: int, d_q: Stored, d_k: int, d_v: int,
) -> None:  # fmt: skip
    """d_q [B, T, H, E]; d_k and d_v [B, T, K, E] float32, zero before, from d_out [B, T, H, E].

    d_out, d_k and d_v are addresses; see :func:`sparse_attention` for the rest.
    """
    size = element_size(like)
    copies = size != 4 or routine == 0  # of rows in float32, for the products
    block = BLOCK if routine else OUR_BLOCK
    at_p, at_d_p, place = scratch, scratch + 4 * BLOCK * KEYS, scratch + 8 * BLOCK * KEYS
    at_k32, at_v32, at_columns = place, place + 4 * KEYS * E, place + 8 * KEYS * E
    place += 12 * KEYS * E
    at_q32, at_d_o32, at_d_q32 = place, place + 4 * BLOCK * E, place + 8 * BLOCK * E
    at_corrections = place + 12 * BLOCK * E
    p_row, d_p_row, q32, d_o32 = floats(at_p), floats(at_d_p), floats(at_q32), floats(at_d_o32)
    d_q32, corrections = floats(at_d_q32), floats(at_corrections)
    first, end, drawn = pointer(first_keys, INT32), pointer(ends, INT32), pointer(drawn_keys, INT32)
    stored_k, stored_v, d_rows = pointer(k, like), pointer(v, like), pointer(d_out, like)
    d_k32, d_v32 = floats(d_k), floats(d_v)
    for unit in range(start, stop):
        segment, shared = unit // K, unit % K
        b, t0 = segments[4 * segment], segments[4 * segment + 1]
        seed = seeds[b] if chance else 0
        n, draw0 = segments[4 * segment + 2], segments[4 * segment + 3]
        k0 = b * k_batch + t0 * k_time + shared * k_head
        v0 = b * v_batch + t0 * v_time + shared * v_head
        at_d = ((b * T + t0) * K + shared) * E  # of the first key's gradients, K * E apart in time
        for h in range(shared * (H // K), (shared + 1) * (H // K)):
            for s in range(0, n, block):
                R = min(block, n - s)
                at_row, at_out = (b * H + h) * T + t0 + s, ((b * T + t0 + s) * H + h) * E
                copy_rows(
                    pointer(q + size * (b * q_batch + (t0 + s) * q_time + h * q_head), like), q_time, R, E,
                    at_q32,
                )  # fmt: skip
                copy_rows(pointer(d_out + size * at_out, like), H * E, R, E, at_d_o32)
                row_products(out, d_rows, at_out, H * E, R, E, corrections)
                fill_with_zeros(d_q32, 0, R * E)
                for p in range(kinds):
                    step = steps[p]
                    for c in range(min(step, R)):
                        M = (R - c + step - 1) // step
                        low, high = _range_of_rows(first, end, p * longest + s + c, R - c, step, n)
                        for key0 in range(low, high, KEYS * step):
                            N = min(KEYS, (high - key0 + step - 1) // step)
                            W = N if routine else -(-N // LANES) * LANES
                            at_k, k_row = k + size * (k0 + key0 * k_time), step * k_time
                            at_v, v_row = v + size * (v0 + key0 * v_time), step * v_time
                            at_right, right_row = at_k, k_row  # of the scores
                            if routine == 0:
                                copy_columns(pointer(at_k, like), k_row, N, E, at_columns, W)
                                copy_columns(pointer(at_v, like), v_row, N, E, at_v32, W)
                                at_right, right_row, at_v, v_row = at_columns, W, at_v32, W
                            else:
                                at_v, v_row = dense_rows(copies, at_v, v_row, N, E, like, at_v32)
                            at_k, k_row = dense_rows(copies, at_k, k_row, N, E, like, at_k32)
                            if routine:
                                at_right, right_row = at_k, k_row
                            at_q, at_d_o, row = at_q32 + 4 * c * E, at_d_o32 + 4 * c * E, step * E
                            product(
                                routine, False, True, M, N, E, scale, at_q, row, at_right, right_row, False,
                                at_p, W,
                            )  # fmt: skip
                            product(
                                routine, False, True, M, N, E, f4(1.0), at_d_o, row, at_v, v_row, False,
                                at_d_p, W,
                            )  # fmt: skip
                            for i in range(M):
                                r, at = c + i * step, i * W
                                place = p * longest + s + r
                                a = _slot(np.int64(first[place]), key0, step, N)
                                z = _slot(min(np.int64(end[place]), n), key0, step, N)
                                if a < z:
                                    _errors(
                                        p_row, d_p_row, at + a, z - a, sums[at_row + r], corrections[r],
                                        key0 + a * step, step, query_seed(seed, h, t0 + s + r), chance, kept,
                                    )  # fmt: skip
                                    for values in (p_row, d_p_row):
                                        _fill_earlier(
                                            values, at, a, z, key0, step, s + r, longest, p, first, end,
                                            steps, f4(0.0),
                                        )  # fmt: skip
                                for values in (p_row, d_p_row):
                                    fill_with_zeros(values, at, at + min(a, z))
                                    fill_with_zeros(values, at + max(a, z), at + N)
                            at_keys, key_row = 4 * (at_d + key0 * K * E), step * K * E
                            product(
                                routine, True, False, N, E, M, f4(1.0), at_p, W, at_d_o, row, True,
                                d_v + at_keys, key_row,
                            )  # fmt: skip
                            product(
                                routine, True, False, N, E, M, scale, at_d_p, W, at_q, row, True,
                                d_k + at_keys, key_row,
                            )  # fmt: skip
                            product(
                                routine, False, False, M, E, N, scale, at_d_p, W, at_k, k_row, True,
                                at_d_q32 + 4 * c * E, row,
                            )  # fmt: skip
                for r in range(R):
                    at = (draw0 + s + r) * draws
                    for j in range(draws):
                        key = np.int64(drawn[at + j])
                        if key >= 0:
                            key_at = k0 + key * k_time
                            score = scale * _dot(q32, r * E, stored_k, key_at, E)
                            weight, factor = exp(score - sums[at_row + r]), f4(1.0)
                            if chance:
                                factor = kept_factor(key, query_seed(seed, h, t0 + s + r), chance, kept)
                            d_weight = _dot(d_o32, r * E, stored_v, v0 + key * v_time, E)
                            error = scale * weight * (d_weight * factor - corrections[r])
                            at_key = at_d + key * K * E
                            _add_scaled(d_v32, at_key, weight * factor, d_o32, r * E, E)
                            _add_scaled(d_k32, at_key, error, q32, r * E, E)
                            _add_scaled(d_q32, r * E, error, stored_k, key_at, E)
                put_rows(d_q, at_out, H * E, d_q32, R, E)
