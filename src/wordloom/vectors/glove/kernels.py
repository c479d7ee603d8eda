"""The compiled kernels of GloVe: AdaGrad and sorting of records into blocks; counting and shuffling of
co-occurrences.

A row of AdaGrad is [2, P] float32.  The first half has the D components, the bias, a constant 1 that
multiplies the other side's bias, and zeros up to P, a multiple of the vector register.  A word's row holds
w, b, 1, and a context's row w~, 1, b~.  The second half has AdaGrad's sums of squares.  So one loop over
vector registers computes the product with both biases, and another updates everything.

X is counted row by row.  The places of a word are known, so only the sums of its row are in the cache, no
lookups are needed, and threads count different rows without locks.  Sums are integers, so their order does
not matter.  ``cells`` are records as on disk, [n, 3] uint32: row i, column j, and the bits of the float32 x.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from wordloom.kernels.machine_code import program
from wordloom.kernels.memory import bits_of, float_of, lowest_bit, prefetch
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


_PLACES_AHEAD = 8  # places prefetched ahead
_ONE = np.uint64(1)
_BITS = 10  # bits of a hash sorted at a time: as many piles as fit into the caches


# -- rows ------------------------------------------------------------------------------------------------


@program
def index_places(tokens: Any, first: int, last: int, starts: Any, places: Any) -> None:
    """Index tokens[first:last]: word w is at ``places[starts[w]:starts[w + 1]]``, in rising order.

    ``starts`` is [V + 3] int64, ``places`` uint32.  V, which separates documents, is indexed as well.
    """
    starts[:] = 0
    for place in range(first, last):
        starts[tokens[place] + 2] += 1
    for word in range(2, starts.shape[0]):
        starts[word] += starts[word - 1]
    for place in range(first, last):  # starts[w + 1] moves from the start to the end of w
        word = tokens[place]
        places[starts[word + 1]] = place
        starts[word + 1] += 1


@_leaf
def _emit(sums: Any, met: Any, n_met: int, marks: Any, tops: Any, out_j: Any, out_x: Any, n: int) -> int:
    """Append the sums of the columns in ``met``, sorted by column, and reset everything to 0.

    Columns are sorted with bitmaps: ``marks`` has a bit for each column, and ``tops`` a bit for 64 marks.
    """
    for k in range(n_met):
        column = np.int64(met[k])
        marks[column >> 6] |= _ONE << np.uint64(column & 63)
        tops[column >> 12] |= _ONE << np.uint64((column >> 6) & 63)
    for t in range(tops.shape[0]):
        upper = tops[t]
        tops[t] = 0
        while upper:
            mark = 64 * t + lowest_bit(upper)
            upper &= upper - _ONE
            lower = marks[mark]
            marks[mark] = 0
            while lower:
                column = 64 * mark + lowest_bit(lower)
                lower &= lower - _ONE
                out_j[n], out_x[n] = column, sums[column]
                sums[column] = 0
                n += 1
    return n


@program
def count_rows(
    tokens: Any, places: Any, starts: Any, first: int, last: int, units: Any, both: bool,
    sums: Any, met: Any, marks: Any, tops: Any, lengths: Any, out_j: Any, out_x: Any,
) -> int:  # fmt: skip
    """Count the rows ``first`` to ``last`` of X and return the number of sums.

    Args:
        tokens: uint32, V before, between and after documents.
        units: [window + 1] uint64, the count of a word at distance d.
        both: also count words on the right.
        sums [V] uint64, met [V + 1] uint32, marks and tops uint64: scratch memory, 0 except ``met``.
        lengths: [last - first] int64, the sums of each row.
        out_j, out_x: uint32 and uint64, columns and sums, row by row, columns rising.
    """
    outside, window, n = np.uint32(sums.shape[0]), units.shape[0] - 1, 0
    at_tokens = np.int64(tokens.ctypes.data)
    final = places.shape[0] - 1
    for row in range(first, last):
        n_met = 0
        for k in range(starts[row], starts[row + 1]):
            place = np.int64(places[k])
            prefetch(at_tokens + 4 * (np.int64(places[min(k + _PLACES_AHEAD, final)]) - window))
            prefetch(at_tokens + 4 * np.int64(places[min(k + _PLACES_AHEAD, final)]))
            for side in range(1 + both):  # before the word, then behind it
                for d in range(1, window + 1):
                    column = tokens[place + (2 * side - 1) * d]
                    if column == outside:
                        break
                    before = sums[column]
                    sums[column] = before + units[d]
                    met[n_met] = column
                    n_met += before == 0
        n = _emit(sums, met, n_met, marks, tops, out_j, out_x, n)
        lengths[row - first] = n_met
    return n


@program
def merge_rows(
    runs: Any, run_j: Any, run_x: Any, first: int, last: int,
    sums: Any, met: Any, marks: Any, tops: Any, lengths: Any, out_j: Any, out_x: Any,
) -> int:  # fmt: skip
    """Add up the rows ``first`` to ``last`` of runs, with the other arguments of :func:`count_rows`.

    Row w of run r has the columns ``run_j[runs[r, w]:runs[r, w + 1]]`` and their sums in ``run_x``.
    """
    n = 0
    for row in range(first, last):
        n_met = 0
        for r in range(runs.shape[0]):
            for k in range(runs[r, row], runs[r, row + 1]):
                column = run_j[k]
                before = sums[column]
                sums[column] = before + run_x[k]
                met[n_met] = column
                n_met += before == 0
        n = _emit(sums, met, n_met, marks, tops, out_j, out_x, n)
        lengths[row - first] = n_met
    return n


@program
def as_cells(first: int, lengths: Any, j: Any, x: Any, unit: float, cells: Any) -> None:
    """Write the records of rows from ``first`` on; x is ``unit`` times the sum, rounded once."""
    n = 0
    for row in range(lengths.shape[0]):
        for _ in range(lengths[row]):
            cells[n, 0], cells[n, 1] = first + row, j[n]
            cells[n, 2] = bits_of(np.float32(np.float64(x[n]) * unit))
            n += 1


# -- order -----------------------------------------------------------------------------------------------


@_leaf
def _key(cells: Any, n: int, seed: np.uint64) -> Any:
    """Return a unique hash of 64 bits of the pair (i, j), by SplitMix64 (Steele et al. 2014)."""
    pair = (np.uint64(cells[n, 0]) << np.uint64(32)) | np.uint64(cells[n, 1])
    z = pair * np.uint64(0x9E3779B97F4A7C15) + seed
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@_leaf
def _deal(cells: Any, seed: np.uint64, used: int, bits: int, ends: Any, out: Any) -> None:
    """Copy cells to piles by ``bits`` bits of their hashes after the first ``used``."""
    left, right = np.uint64(used), np.uint64(64 - bits)
    ends[:] = 0
    for n in range(cells.shape[0]):
        ends[((_key(cells, n, seed) << left) >> right) + _ONE] += 1
    for pile in range(1, ends.shape[0]):
        ends[pile] += ends[pile - 1]
    for n in range(cells.shape[0]):
        pile = (_key(cells, n, seed) << left) >> right
        place = ends[pile]
        ends[pile] = place + 1
        out[place, 0], out[place, 1], out[place, 2] = cells[n, 0], cells[n, 1], cells[n, 2]


@program
def split_cells(cells: Any, seed: np.uint64, used: int, bits: int, ends: Any, out: Any) -> None:
    """Copy ``cells`` to piles in ``out`` by ``bits`` bits of their hashes, after ``used`` equal ones.

    Pile p is ``out[ends[p - 1]:ends[p]]``, and the first starts at 0.  ``ends`` is [2**bits + 1] int64.
    """
    _deal(cells, seed, used, bits, ends, out)


@program
def sort_cells(cells: Any, seed: np.uint64, used: int, until: int, out: Any) -> bool:
    """Sort stably by the bits ``used`` to ``until`` of the hashes, with a radix sort from the last bits.

    It uses both arrays, and returns whether the result is in ``out`` and not in ``cells``.
    """
    passes = -((used - until) // _BITS)
    ends = np.empty((1 << _BITS) + 1, dtype=np.int64)
    there = False
    for number in range(passes - 1, -1, -1):
        first, last = used + _BITS * number, min(used + _BITS * (number + 1), until)
        if there:
            _deal(out, seed, first, last - first, ends, cells)
        else:
            _deal(cells, seed, first, last - first, ends, out)
        there = not there
    return there
