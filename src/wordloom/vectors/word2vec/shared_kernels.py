"""Functions that the compiled kernels of word2vec and fastText share: negatives, rows of words, threads."""

from __future__ import annotations

from typing import Any

import numpy as np

from wordloom.kernels.arithmetic import random, random_below
from wordloom.kernels.machine_code import exact
from wordloom.kernels.memory import INT32, INT64, UINT32, pointer

PATIENCE = 20_000  # polls of a barrier: about 100 microseconds, the time of a batch


@exact
def random_negative(state: Any, words: Any, V: int) -> int:
    """Return a negative example, drawn from the alias table of ``words`` (Walker 1977)."""
    bits = random(state)
    word = random_below(bits, V)
    if np.uint32(bits & np.uint64(0xFFFFFFFF)) < pointer(words.share, UINT32)[word]:
        return word
    return np.int64(pointer(words.other, UINT32)[word])  # type: ignore[return-value]


@exact
def rows_of_word(word: int, words: Any, method: Any, rows: Any, n: int) -> int:
    """Append the rows whose sum is ``word`` to the n in ``rows``, and return their new number."""
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
