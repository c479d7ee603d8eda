"""The compiled kernels of GloVe: AdaGrad, and sorting of records into blocks.

A row is [2, P] float32.  The first half has the D components, the bias, a constant 1 that multiplies the
other side's bias, and zeros up to P, a multiple of the vector register.  A word's row holds w, b, 1, and a
context's row w~, 1, b~.  The second half has AdaGrad's sums of squares.  So one loop over vector registers
computes the product with both biases, and another updates everything.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from wordloom.kernels.machine_code import program
from wordloom.kernels.memory import float_of, prefetch
from wordloom.kernels.registers import LANES, VectorWriter, vector_kernel

# numba's decorators have no types
_leaf: Any = njit(error_model="numpy", forceinline=True)
_intrinsic: Any = intrinsic

_AHEAD = 4
_LINE = 64  # bytes that are fetched at once


@_intrinsic
def _product(_typing: Any, u: Any, v: Any, P: Any) -> Any:
    """Return the dot product of P float32 at two addresses; P is a multiple of LANES."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        w = VectorWriter(builder)
        rows, (total,) = [w.pointer(address) for address in args[:2]], w.variables(1)
        w.zeroed([total])
        with w.steps(w.number(0), args[2], LANES) as (k, _):
            a, b = (w.load(row, k) for row in rows)
            builder.store(w.multiply_add(a, b, builder.load(total)), total)
        return w.total(builder.load(total))

    return types.float32(types.int64, types.int64, types.int64), generate


@vector_kernel
def _update(w: VectorWriter, u: int, v: int, P: int, step: float) -> None:
    """Take a step of AdaGrad on the rows at two addresses, with gradients of ``step`` times the other row."""
    rows, factor, b = [w.pointer(address) for address in (u, v)], w.repeated(step), w.builder
    with w.steps(w.number(0), P, LANES) as (k, _):
        above = b.add(k, P)
        old, sums = [w.load(row, k) for row in rows], [w.load(row, above) for row in rows]
        for side, row in enumerate(rows):
            move = b.fmul(factor, old[1 - side])
            w.store(b.fsub(old[side], b.fdiv(move, w.square_root(sums[side]))), row, k)
            w.store(w.multiply_add(move, move, sums[side]), row, above)


@_leaf
def _fetch(address: int, size: int) -> None:
    for line in range(0, size, _LINE):
        prefetch(address + line)


@program
def descend(
    cells: Any, stretches: Any, words: Any, contexts: Any, x_max: float, alpha: float, rate: float,
    losses: Any,
) -> None:  # fmt: skip
    """Take one step of AdaGrad for each record in order.

    Args:
        cells: records, [n, 3] uint32: i, j, and the bits of x.
        stretches: [m, 2] int64, the starts and ends of ranges of records.
        words, contexts: rows of parameters, [V, 2, P] float32.
        losses: [m] float64, the sums of f(x) (w w~ + b + b~ - log x)^2 / 2 over each range.
    """
    P = np.int64(words.shape[2])
    size = 8 * P
    at_words, at_contexts = np.int64(words.ctypes.data), np.int64(contexts.ctypes.data)
    log_max = math.log(x_max)
    for s in range(stretches.shape[0]):
        total, final = 0.0, stretches[s, 1] - 1
        for n in range(stretches[s, 0], stretches[s, 1]):
            ahead = min(n + _AHEAD, final)
            _fetch(at_words + size * np.int64(cells[ahead, 0]), size)
            _fetch(at_contexts + size * np.int64(cells[ahead, 1]), size)
            word = at_words + size * np.int64(cells[n, 0])
            context = at_contexts + size * np.int64(cells[n, 1])
            log_x = math.log(np.float64(float_of(cells[n, 2])))
            weight = math.exp(alpha * min(log_x - log_max, 0.0))
            difference = _product(word, context, P) - np.float32(log_x)
            weighted = np.float32(weight) * difference
            total += 0.5 * np.float64(weighted) * np.float64(difference)
            _update(word, context, P, np.float32(rate) * weighted)
        losses[s] = total


@_leaf
def _block(cells: Any, n: int, parts: int) -> Any:
    """Return the block of a record; blocks are numbered by diagonal and then by part of the word."""
    i, j = np.int64(cells[n, 0]) & (parts - 1), np.int64(cells[n, 1]) & (parts - 1)
    return ((j - i) & (parts - 1)) * parts + i


@program
def count_blocks(cells: Any, parts: int, counts: Any) -> None:
    """Count the records of each block: [parts * parts] int64, where parts is a power of two."""
    counts[:] = 0
    for n in range(cells.shape[0]):
        counts[_block(cells, n, parts)] += 1


@program
def fill_blocks(cells: Any, parts: int, places: Any, out: Any) -> None:
    """Copy each record, in order, to the next place of its block, and advance ``places``."""
    for n in range(cells.shape[0]):
        block = _block(cells, n, parts)
        place = places[block]
        places[block] = place + 1
        out[place, 0], out[place, 1], out[place, 2] = cells[n, 0], cells[n, 1], cells[n, 2]
