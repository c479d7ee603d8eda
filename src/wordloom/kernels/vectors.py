"""Primitives that the kernels of word2vec and fastText share: random numbers, rows, products."""

from __future__ import annotations

from typing import Any

import numpy as np

from wordloom.kernels.machine_code import exact, exact_routine, leaf
from wordloom.kernels.memory import FLOAT, INT32, INT64, UINT32, pointer
from wordloom.kernels.products import tile

__all__ = [
    "PATIENCE", "products", "program", "random", "random_below", "random_negative", "rows_of_word",
    "thread_of_row",
]  # fmt: skip

PATIENCE = 20_000  # polls of a barrier, about 100 microseconds, which is about the time of a batch

program = exact_routine


# -- random numbers: SplitMix64 (Steele, Lea and Flood 2014) ----------------------------------------------


@exact
def random(state: Any) -> Any:
    """Return 64 random bits and advance ``state`` [1]."""
    z = state[0] + np.uint64(0x9E3779B97F4A7C15)
    state[0] = z
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@exact
def random_below(bits: Any, n: int) -> int:
    """Return a number of 0 .. n - 1 from the upper half of 64 random bits."""
    number: Any = ((bits >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32)
    return np.int64(number)  # type: ignore[return-value]


@exact
def random_negative(state: Any, words: Any, V: int) -> int:
    """Return a negative example, drawn from the alias table of ``words`` (Walker 1977)."""
    bits = random(state)
    word = random_below(bits, V)
    if np.uint32(bits & np.uint64(0xFFFFFFFF)) < pointer(words.share, UINT32)[word]:
        return word
    return np.int64(pointer(words.other, UINT32)[word])  # type: ignore[return-value]


# -- rows --------------------------------------------------------------------------------------------------


@exact
def rows_of_word(word: int, words: Any, method: Any, rows: Any, n: int) -> int:
    """Append the rows whose sum is ``word`` to the n in ``rows``; returns their new number."""
    if method.units == 0:
        rows[n] = word
        return n + 1
    starts, units = pointer(words.unit_starts, INT64), pointer(words.units, INT32)
    for i in range(starts[word], starts[word + 1]):
        rows[n] = units[i]
        n += 1
    return n


@exact
def thread_of_row(row: int, threads: int) -> int:
    """Return the thread that updates ``row``, without a division, which would cost as much as the update."""
    mixed = (np.uint64(row) * np.uint64(0x9E3779B9)) & np.uint64(0xFFFFFFFF)
    return np.int64((mixed * np.uint64(threads)) >> np.uint64(32))  # type: ignore[return-value]


# -- products ----------------------------------------------------------------------------------------------

_four_by_two, _two_by_four, _one_by_four = tile(4, 2), tile(2, 4), tile(1, 4)


@leaf
def products(g: int, x: int, m: int, t: int, n: int, S: int) -> None:
    """g [m, n] = x [m, S] t [n, S]^T; all are addresses."""
    r = 0
    while r + 4 <= m:
        for c in range(0, n, 2):
            place = g + 4 * (r * n + c)
            _four_by_two(FLOAT, t + 4 * c * S, S, min(2, n - c), x + 4 * r * S, S, place, n, 1, False)
        r += 4
    if r + 2 <= m:
        for c in range(0, n, 4):
            place = g + 4 * (r * n + c)
            _two_by_four(FLOAT, t + 4 * c * S, S, min(4, n - c), x + 4 * r * S, S, place, n, 1, False)
        r += 2
    if r < m:
        for c in range(0, n, 4):
            place = g + 4 * (r * n + c)
            _one_by_four(FLOAT, t + 4 * c * S, S, min(4, n - c), x + 4 * r * S, S, place, n, 1, False)
