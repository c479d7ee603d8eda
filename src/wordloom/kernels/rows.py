"""Kernels on rows of a table, of D floats each, a multiple of :data:`~wordloom.kernels.registers.LANES`.

Tensors are given by address, as float32 unless ``like`` says otherwise (:mod:`wordloom.kernels.memory`);
``indices`` and ``places`` are int64.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]

from wordloom.kernels.memory import write_prefetch
from wordloom.kernels.registers import VectorWriter, vector_kernel


def _weighted_sum(w: VectorWriter, out: Any, k: Any, held: list[Any], n: Any, row_and_factor: Any) -> None:
    """Write code for out [k ..] = ``held`` + the sum over i < n of factor i times the stretch of row i."""
    b = w.builder
    with w.times(n) as loop:
        row, at, factor = row_and_factor(loop.index)
        for u, variable in enumerate(held):
            value, sum_before = w.load(row, at, u), b.load(variable)
            added = b.fadd(sum_before, value) if factor is None else w.multiply_add(factor, value, sum_before)
            b.store(added, variable)
    for u, variable in enumerate(held):
        w.store(b.load(variable), out, k, u)


@vector_kernel
def add_rows(
    w: VectorWriter, like: Any, out: int, rows: int, n: int, step: int, factors: int, factor_step: int, D: int
) -> None:
    """out [D] += sum over i < n of factors[i * factor_step] * rows[i * step : i * step + D].

    ``rows`` are stored as ``like`` says.
    """
    to, table, weights, b = w.pointer(out), w.pointer(rows, like), w.pointer(factors), w.builder
    held = w.variables(w.HELD)

    def stretch(k: Any, count: int) -> None:
        for u in range(count):
            b.store(w.load(to, k, u), held[u])

        def row_and_factor(i: Any) -> Any:
            factor = w.repeated(w.one(weights, b.mul(i, factor_step)))
            return table, b.add(b.mul(i, step), k), factor

        _weighted_sum(w, to, k, held[:count], n, row_and_factor)

    w.stretches(D, stretch)


@vector_kernel
def mix_at(w: VectorWriter, out: int, places: int, n: int, offset: int, factors: int, D: int) -> None:
    """out [D] = the sum of factors[i] times the D floats ``offset`` bytes after each of the n addresses."""
    to, addresses = w.pointer(out), w.pointer(places, ir.IntType(64))
    weights, b = w.pointer(factors), w.builder
    held = w.variables(w.HELD)

    def stretch(k: Any, count: int) -> None:
        w.zeroed(held[:count])

        def row_and_factor(i: Any) -> Any:
            factor = w.repeated(w.one(weights, i))
            return w.pointer(b.add(w.one(addresses, i), offset)), k, factor

        _weighted_sum(w, to, k, held[:count], n, row_and_factor)

    w.stretches(D, stretch)


@vector_kernel
def sum_rows(w: VectorWriter, out: int, table: int, indices: int, n: int, D: int) -> None:
    """out [D] = the sum of rows ``indices`` [n] of ``table``."""
    to, rows, held = w.pointer(out), w.pointer(table), w.variables(w.HELD)

    def stretch(k: Any, count: int) -> None:
        w.zeroed(held[:count])
        _weighted_sum(w, to, k, held[:count], n, lambda i: (w.row(rows, indices, i, D), k, None))

    w.stretches(D, stretch)


@vector_kernel
def dot_at(w: VectorWriter, out: int, places: int, n: int, offset: int, x: int, D: int) -> None:
    """out [n] = the products of x [D] with the D floats ``offset`` bytes after each of the n addresses."""
    to, addresses, side, b = w.pointer(out), w.pointer(places, ir.IntType(64)), w.pointer(x), w.builder
    (total,) = w.variables(1)
    with w.times(n) as loop:
        row = w.pointer(b.add(w.one(addresses, loop.index), offset))
        w.zeroed([total])

        def stretch(k: Any, count: int) -> None:
            for u in range(count):
                b.store(w.multiply_add(w.load(side, k, u), w.load(row, k, u), b.load(total)), total)

        w.stretches(D, stretch)
        b.store(w.total(b.load(total)), w.at(to, loop.index))


@vector_kernel
def spread(w: VectorWriter, table: int, indices: int, n: int, change: int, D: int) -> None:
    """Add ``change`` [D] to rows ``indices`` [n] of ``table``."""
    rows, more, b = w.pointer(table), w.pointer(change), w.builder

    def stretch(k: Any, count: int) -> None:
        changes = [w.load(more, k, u) for u in range(count)]
        with w.times(n) as loop:
            row = w.row(rows, indices, loop.index, D)
            for u in range(count):
                w.store(b.fadd(w.load(row, k, u), changes[u]), row, k, u)

    w.stretches(D, stretch)


@vector_kernel
def copy_rows(w: VectorWriter, out: int, table: int, indices: int, n: int, D: int) -> None:
    """out [n, D] = rows ``indices`` [n] of ``table``."""
    to, rows = w.pointer(out), w.pointer(table)
    with w.times(n) as loop:
        row, place = w.row(rows, indices, loop.index, D), w.at(to, w.builder.mul(loop.index, D))

        def stretch(k: Any, count: int) -> None:
            for u in range(count):
                w.store(w.load(row, k, u), place, k, u)

        w.stretches(D, stretch)


@vector_kernel
def fetch_rows(w: VectorWriter, table: int, indices: int, n: int, D: int) -> None:
    """Prefetch rows ``indices`` [n] of ``table``, which will be written to soon."""
    rows = w.pointer(table)
    with w.times(n) as loop:
        row = w.row(rows, indices, loop.index, D)
        with w.steps(w.number(0), D, 16) as (k, _):  # a cache line has 16 floats
            write_prefetch(w.builder, w.at(row, k), to_write=True)
