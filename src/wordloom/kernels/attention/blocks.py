"""Blocks of rows in the scratch memory of a thread: the copies, products and exponentials of attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from wordloom.kernels.arithmetic import exp, f4, hashed
from wordloom.kernels.machine_code import exact, leaf
from wordloom.kernels.memory import FLOAT, load, pointer, store
from wordloom.kernels.products import gemm, panel
from wordloom.kernels.registers import LANES

BLOCK = 64  # queries at a time: scores of 64 x 512 are a quarter of a Zen 3 core's second-level cache
OUR_BLOCK = 32  # queries at a time with our own products: smaller blocks waste less beyond the diagonal


# Our own products read the right factor row by row.  So keys (and, backward, values) are copied with time
# along the row, and other factors as dense rows.  The BLAS copies its factors by itself.


@exact
def floats(address: int) -> Any:
    return pointer(address, FLOAT)


@leaf
def copy_rows(source: Any, step: int, n: int, E: int, out: int) -> None:
    """Copy n rows of E elements, ``step`` apart in ``source``, to ``out`` [n, E] as float32."""
    rows = floats(out)
    for i in range(n):
        for e in range(E):
            rows[i * E + e] = load(source, i * step + e)


@leaf
def copy_columns(source: Any, step: int, n: int, E: int, out: int, width: int) -> None:
    """Copy n rows of E elements to the columns of ``out`` [E, width]; further columns become zero."""
    columns = floats(out)
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
def product(
    routine: int, left_t: bool, right_t: bool, M: int, N: int, K: int, scale: Any, left: int, left_row: int,
    right: int, right_row: int, add: bool, out: int, out_row: int,
) -> None:  # fmt: skip
    """out [M, N] = scale * left [M, K] right [K, N], added where ``add``; all by address.

    ``left_t``: left lies as [K, M].  ``right_t``: right lies as [N, K] for BLAS; for us :func:`copy_columns`
    has laid it out, and N is rounded up to whole vectors.
    """
    if routine:
        gemm(
            routine, left_t, right_t, M, N, K, scale, floats(left), left_row, floats(right),
            right_row, f4(1.0) if add else f4(0.0), floats(out), out_row,
        )  # fmt: skip
    else:
        row, column = (1, left_row) if left_t else (left_row, 1)
        whole = -(-N // LANES) * LANES
        _multiply(M, whole, K, scale, left, row, column, right, right_row, add, out, out_row)


@leaf
def exponentials(scores: Any, first: int, n: int, m: Any) -> Any:
    total = f4(0.0)
    for i in range(first, first + n):
        e = exp(scores[i] - m)
        scores[i] = e
        total += e
    return total


@exact
def query_seed(seed: int, head: int, query: int) -> int:
    """Return the seed of dropout for one query of a row whose seed is ``seed``."""
    return seed ^ (((head << 32) + query) * -7046029254386353131)


@exact
def kept_factor(place: int, seed: int, chance: int, kept: Any) -> Any:
    """Return dropout's factor for the weight at ``place``: ``kept``, or 0 for a share ``chance`` / 2^32."""
    bits = hashed(np.uint32(place), np.uint32(seed), np.uint32(seed >> 32))
    return kept if bits >= np.uint32(chance) else f4(0.0)


@leaf
def put_rows(out: Any, place: int, step: int, rows: Any, R: int, E: int) -> None:
    """Store R rows of E floats in ``out``, ``step`` elements apart."""
    for r in range(R):
        for e in range(E):
            store(out, place + r * step + e, rows[r * E + e])


@leaf
def fill_with_zeros(x: Any, first: int, stop: int) -> None:
    for i in range(first, stop):
        x[i] = f4(0.0)


@leaf
def dense_rows(copies: bool, address: int, step: int, n: int, E: int, like: Any, out: int) -> Any:
    """Return the address of n rows in float32 and their step: of a copy in ``out``, if ``copies``."""
    if not copies:
        return address, step
    copy_rows(pointer(address, like), step, n, E, out)
    return out, E


@leaf
def row_products(out: Any, d_out: Any, first: int, step: int, R: int, E: int, products: Any) -> None:
    """products [R] = the product of each row of ``out`` with its gradient: sum_j p_ij d_p_ij."""
    for r in range(R):
        total = f4(0.0)
        for e in range(first + r * step, first + r * step + E):
            total += load(out, e) * load(d_out, e)
        products[r] = total
