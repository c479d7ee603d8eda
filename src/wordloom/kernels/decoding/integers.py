"""Products with weights in 8 bits: a layer of the decoding programs, as those of :mod:`.leaves`."""

from __future__ import annotations

from typing import Any

from wordloom.kernels import GROUP
from wordloom.kernels.decoding.leaves import share
from wordloom.kernels.integer_products import (
    PANEL,
    integer_panel,
    integer_tile,
    narrow,
    narrowed_bytes,
    pack_panel,
    panel_bytes,
)
from wordloom.kernels.machine_code import exact_routine, routine
from wordloom.kernels.memory import FLOAT, load, pointer, store

_fours, _twos, _ones = (integer_tile(n) for n in (4, 2, 1))
_panel_threes, _panel_twos, _panel_ones = (integer_panel(n) for n in (3, 2, 1))

MANY_ROWS = 12
"""From so many rows on, packing panels of the weight pays off."""


@exact_routine
def integers_room(R: int, K: int) -> int:
    """Return the bytes of room that :func:`project_integers` needs for R rows of K numbers."""
    return R * narrowed_bytes(K) + 64 + (panel_bytes(K) + 4 * R * PANEL if R >= MANY_ROWS else 0)


@routine
def project_integers(
    out: Any, x: Any, address: int, bias: Any, add: bool, room: Any, thread: int, threads: int
) -> None:
    """As :func:`wordloom.kernels.decoding.leaves.project` with a weight in 8 bits.

    ``room`` is :func:`integers_room` bytes.  The weight is [N, K'] int8, K' being K rounded up to a multiple
    of 64, and behind it [N, K' / 64] bfloat16 scales, and room for a vector of them.
    """
    R, K = x.shape
    N = out.shape[1]
    row_of_x = narrowed_bytes(K)
    at_x, at_out = (room.ctypes.data + 63) // 64 * 64, out.ctypes.data
    for r in range(R):
        narrow(x[r], at_x + r * row_of_x)
    first, last = share(N, thread, threads)
    K = (K + GROUP - 1) // GROUP * GROUP
    scales = address + N * K
    if R >= MANY_ROWS:
        _project_many(at_out, N, at_x, row_of_x, R, K, address, scales, first, last, add)
    else:
        quarter = (last - first + 3) // 4
        apart, to_scales = quarter * K, GROUP // 2  # a group has 64 bytes and 2 bytes of scale
        for n in range(first, first + quarter):
            there = (last - n + quarter - 1) // quarter
            weight, scale = address + n * K, scales + n * K // to_scales
            r = 0
            while r < R:
                token, place = at_x + r * row_of_x, at_out + 4 * (r * N + n)
                if R - r >= 4:
                    _fours(weight, apart, scale, there, token, row_of_x, K, place, N, quarter, add)
                    r += 4
                elif R - r >= 2:
                    _twos(weight, apart, scale, there, token, row_of_x, K, place, N, quarter, add)
                    r += 2
                else:
                    _ones(weight, apart, scale, there, token, row_of_x, K, place, N, quarter, add)
                    r += 1
    if bias.shape[0]:
        for r in range(R):
            for n in range(first, last):
                out[r, n] += bias[n]


@exact_routine
def _project_many(
    out: int, N: int, x: int, row_of_x: int, R: int, K: int, weight: int, scales: int, first: int, last: int,
    add: bool,
) -> None:  # fmt: skip
    """out [R, N] (+)= x times rows ``first`` to ``last`` of the weight, a panel of them at a time.

    Behind x there is room for a panel and for its products, where fewer than PANEL rows are left.
    """
    panel = x + R * row_of_x
    products = panel + panel_bytes(K)
    for n in range(first, last, PANEL):
        there = min(PANEL, last - n)
        pack_panel(weight + n * K, scales + n * K // (GROUP // 2), there, PANEL * K, K, panel)
        whole = there == PANEL
        to, row = (out + 4 * n, N) if whole else (products, PANEL)
        r = 0
        while r < R:
            token, place = x + r * row_of_x, to + 4 * r * row
            if R - r >= 3:
                _panel_threes(panel, token, row_of_x, K, add and whole, place, row)
                r += 3
            elif R - r == 2:
                _panel_twos(panel, token, row_of_x, K, add and whole, place, row)
                r += 2
            else:
                _panel_ones(panel, token, row_of_x, K, add and whole, place, row)
                r += 1
        if not whole:
            written, found = pointer(out, FLOAT), pointer(products, FLOAT)
            for r in range(R):
                for j in range(there):
                    at, value = r * N + n + j, load(found, r * PANEL + j)
                    store(written, at, load(written, at) + value if add else value)
