"""The compiled kernels of GloVe: AdaGrad, and sorting of records into blocks.

A row is [2, P] float32.  The first half has the D components, the bias, a constant 1 that multiplies the
other side's bias, and zeros up to P, a multiple of the vector register: a word has w, b, 1 and a context w~,
1, b~. The second half has AdaGrad's sums of squares.  So one loop over vector registers computes the product
with both biases, and another updates everything.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from wordloom.kernels.machine_code import compiled
from wordloom.kernels.memory import float_of, prefetch
from wordloom.kernels.registers import LANES

__all__ = ["count_blocks", "descend", "fill_blocks"]

# (types end where numba's begin: what these decorate is Any)
_kernel: Any = compiled(nogil=True, error_model="numpy")
_leaf: Any = njit(error_model="numpy", forceinline=True)
_intrinsic: Any = intrinsic

_AHEAD = 4
_LINE = 64  # bytes that are fetched at once

_vector = ir.VectorType(ir.FloatType(), LANES)


def _function(builder: Any, name: str, result: Any, *given: Any) -> Any:
    get: Any = cgutils.get_or_insert_function
    return get(builder.module, ir.FunctionType(result, given), name)


def _places(builder: Any, address: Any, elements: Any) -> Any:
    """Return the address of a vector register of float32, ``elements`` after ``address``."""
    place = builder.gep(builder.inttoptr(address, ir.FloatType().as_pointer()), [elements])
    return builder.bitcast(place, _vector.as_pointer())


def _registers(builder: Any, P: Any) -> Any:
    number = partial(ir.Constant, ir.IntType(64))
    return cgutils.for_range_slice(builder, number(0), P, number(LANES), ir.IntType(64))


@_intrinsic
def _product(_typing: Any, u: Any, v: Any, P: Any) -> Any:
    """Return the dot product of P float32 at two addresses; P is a multiple of LANES."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        at_u, at_v, n = args
        multiply_add = _function(builder, f"llvm.fmuladd.v{LANES}f32", _vector, *[_vector] * 3)
        add_up = _function(
            builder, f"llvm.vector.reduce.fadd.v{LANES}f32", ir.FloatType(), ir.FloatType(), _vector
        )
        slot: Any = cgutils.alloca_once
        total = slot(builder, _vector)
        builder.store(ir.Constant(_vector, [0.0] * LANES), total)
        with _registers(builder, n) as (k, _):
            a, b = (builder.load(_places(builder, at, k), align=4) for at in (at_u, at_v))
            builder.store(builder.call(multiply_add, [a, b, builder.load(total)]), total)
        zero = ir.Constant(ir.FloatType(), -0.0)
        return builder.call(add_up, [zero, builder.load(total)], fastmath=["reassoc"])

    return types.float32(types.int64, types.int64, types.int64), generate


@_intrinsic
def _update(_typing: Any, u: Any, v: Any, P: Any, step: Any) -> Any:
    """Take a step of AdaGrad on the rows at two addresses, with gradients of ``step`` times the other row."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        at_u, at_v, n, factor = args
        multiply_add = _function(builder, f"llvm.fmuladd.v{LANES}f32", _vector, *[_vector] * 3)
        root = _function(builder, f"llvm.sqrt.v{LANES}f32", _vector, _vector)
        undefined, first = ir.Constant(_vector, ir.Undefined), ir.Constant(ir.IntType(32), 0)
        mask = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        step_vector = builder.shuffle_vector(
            builder.insert_element(undefined, factor, first), undefined, mask
        )
        with _registers(builder, n) as (k, _):
            above = builder.add(k, n)
            places = [_places(builder, at, k) for at in (at_u, at_v)]
            squares = [_places(builder, at, above) for at in (at_u, at_v)]
            old = [builder.load(place, align=4) for place in places]
            sums = [builder.load(place, align=4) for place in squares]
            for side in (0, 1):
                move = builder.fmul(step_vector, old[1 - side])
                scaled = builder.fdiv(move, builder.call(root, [sums[side]]))
                builder.store(builder.fsub(old[side], scaled), places[side], align=4)
                builder.store(builder.call(multiply_add, [move, move, sums[side]]), squares[side], align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.float32), generate


@_leaf
def _fetch(address: int, size: int) -> None:
    for line in range(0, size, _LINE):
        prefetch(address + line)


@_kernel
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


@_kernel
def count_blocks(cells: Any, parts: int, counts: Any) -> None:
    """Count the records of each block: [parts * parts] int64, where parts is a power of two."""
    counts[:] = 0
    for n in range(cells.shape[0]):
        counts[_block(cells, n, parts)] += 1


@_kernel
def fill_blocks(cells: Any, parts: int, places: Any, out: Any) -> None:
    """Copy each record, in order, to the next place of its block, and advance ``places``."""
    for n in range(cells.shape[0]):
        block = _block(cells, n, parts)
        place = places[block]
        places[block] = place + 1
        out[place, 0], out[place, 1], out[place, 2] = cells[n, 0], cells[n, 1], cells[n, 2]
