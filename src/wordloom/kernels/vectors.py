"""Primitives of the kernels of word vectors: random numbers, rows, products."""

from __future__ import annotations

from typing import Any

import numpy as np

from wordloom.kernels.arithmetic import f4
from wordloom.kernels.machine_code import exact, exact_routine, leaf
from wordloom.kernels.memory import pointer
from wordloom.kernels.products import tile

__all__ = [
    "F4", "F8", "I4", "I8", "PATIENCE", "U1", "U4", "U8", "below", "negative", "products",
    "program", "random", "rows_of", "whose",
]  # fmt: skip

PATIENCE = 20_000  # looks for the other threads, some 100 microseconds: a batch takes about as long

program = exact_routine

# what ``pointer`` is told the type of elements by
I4, I8, U1, U4, U8 = np.int32(0), np.int64(0), np.uint8(0), np.uint32(0), np.uint64(0)
F4, F8 = f4(0), np.float64(0)


# -- random numbers: SplitMix64 (Steele, Lea and Flood 2014) ----------------------------------------------


@exact
def random(state: Any) -> Any:
    """64 random bits; ``state`` [1] moves on."""
    z = state[0] + np.uint64(0x9E3779B97F4A7C15)
    state[0] = z
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@exact
def below(bits: Any, n: int) -> int:
    """A number of 0 .. n - 1 from the upper half of 64 random bits."""
    number: Any = ((bits >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32)
    return np.int64(number)  # type: ignore[return-value]


@exact
def negative(state: Any, words: Any, V: int) -> int:
    """A word, drawn by the table."""
    bits = random(state)
    word = below(bits, V)
    if np.uint32(bits & np.uint64(0xFFFFFFFF)) < pointer(words.share, U4)[word]:
        return word
    return np.int64(pointer(words.other, U4)[word])  # type: ignore[return-value]


# -- rows --------------------------------------------------------------------------------------------------


@exact
def rows_of(word: int, words: Any, method: Any, rows: Any, n: int) -> int:
    """Write the rows that make ``word`` behind the n that ``rows`` has; returns how many it has then."""
    if method.units == 0:
        rows[n] = word
        return n + 1
    starts, units = pointer(words.unit_starts, I8), pointer(words.units, I4)
    for i in range(starts[word], starts[word + 1]):
        rows[n] = units[i]
        n += 1
    return n


@exact
def whose(row: int, threads: int) -> int:
    """The thread that moves ``row``: a division would cost as much as moving it."""
    mixed = (np.uint64(row) * np.uint64(0x9E3779B9)) & np.uint64(0xFFFFFFFF)
    return np.int64((mixed * np.uint64(threads)) >> np.uint64(32))  # type: ignore[return-value]


# -- products ----------------------------------------------------------------------------------------------

_four_by_two, _two_by_four, _one_by_four = tile(4, 2), tile(2, 4), tile(1, 4)


@leaf
def products(g: int, x: int, m: int, t: int, n: int, S: int) -> None:
    """g [m, n] = x [m, S] t [n, S]^T, all by address."""
    r = 0
    while r + 4 <= m:
        for c in range(0, n, 2):
            place = g + 4 * (r * n + c)
            _four_by_two(F4, t + 4 * c * S, S, min(2, n - c), x + 4 * r * S, S, place, n, 1, False)
        r += 4
    if r + 2 <= m:
        for c in range(0, n, 4):
            place = g + 4 * (r * n + c)
            _two_by_four(F4, t + 4 * c * S, S, min(4, n - c), x + 4 * r * S, S, place, n, 1, False)
        r += 2
    if r < m:
        for c in range(0, n, 4):
            place = g + 4 * (r * n + c)
            _one_by_four(F4, t + 4 * c * S, S, min(4, n - c), x + 4 * r * S, S, place, n, 1, False)
