"""Kernels on rows and the products in vector registers, on guarded memory, against numpy."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray
from tests.kernels.cases import Drawn, size
from tests.kernels.guarded import Guarded

from wordloom.kernels import rows
from wordloom.kernels.products import panel, tile
from wordloom.kernels.registers import LANES

FLOATS, BITS = np.zeros(1, np.float32), np.zeros(1, np.uint16)
_tiles = {shape: tile(*shape) for shape in ((1, 1), (2, 3, 8))}
_panels = {shape: panel(*shape) for shape in ((4, 1), (1, 4))}
_one, _several = _tiles[1, 1], _tiles[2, 3, 8]
_high, _wide = _panels[4, 1], _panels[1, 4]


@njit
def add_rows(like, out, table, n, step, factors, by, D):
    rows.add_rows(like, out, table, n, step, factors, by, D)


@njit
def on_rows(which, out, table, indices, n, D):
    if which == 0:
        rows.sum_rows(out, table, indices, n, D)
    elif which == 1:
        rows.spread(table, indices, n, out, D)
    elif which == 2:
        rows.copy_rows(out, table, indices, n, D)
    else:
        rows.fetch_rows(table, indices, n, D)


@njit
def at_places(which, out, places, n, offset, x, D):
    if which == 0:
        rows.dot_at(out, places, n, offset, x, D)
    else:
        rows.mix_at(out, places, n, offset, x, D)


@njit
def tiled(which, like, weight, row, there, x, K, out, out_row, out_column, add):
    if which == 0:
        _one(like, weight, row, there, x, K, out, out_row, out_column, add)
    else:
        _several(like, weight, row, there, x, K, out, out_row, out_column, add)


@njit
def panelled(which, a, a_row, a_column, b, b_row, K, scale, add, out, out_row):
    if which == 0:
        _high(a, a_row, a_column, b, b_row, K, scale, add, out, out_row)
    else:
        _wide(a, a_row, a_column, b, b_row, K, scale, add, out, out_row)


class Memory:
    """Arrays of random numbers, each in guarded memory of its own."""

    def __init__(self, rng: random.Random, *, at_end: bool) -> None:
        self.numbers, self.at_end = np.random.default_rng(rng.getrandbits(60)), at_end
        self.kept: list[Guarded] = []

    def put(self, values: NDArray[Any]) -> tuple[NDArray[Any], int]:
        """A guarded copy and its address."""
        memory = Guarded(values.nbytes, at_end=self.at_end)
        self.kept.append(memory)
        array = memory.array(values.dtype, *values.shape)
        array[...] = values
        return array, memory.address

    def draw(self, *shape: int) -> tuple[NDArray[np.float32], int]:
        return self.put(self.numbers.standard_normal(shape).astype(np.float32))


def close(found: NDArray[Any], wanted: NDArray[Any]) -> None:
    np.testing.assert_allclose(found, wanted, atol=1e-4, rtol=1e-4)


def on_table(rng: random.Random, drawn: Drawn, memory: Memory) -> None:
    D, V, n = LANES * size(rng, 9), size(rng, 9), rng.choice([0, size(rng, 9)])
    drawn |= {"D": D, "V": V, "n": n}
    table, at_table = memory.draw(V, D)
    indices, at_indices = memory.put(memory.numbers.integers(0, V, n))
    before = table.copy()
    out, at_out = memory.draw(D)
    on_rows(0, at_out, at_table, at_indices, n, D)
    close(out, before[indices].sum(0))
    on_rows(1, at_out, at_table, at_indices, n, D)
    np.add.at(before, indices, out)
    close(table, before)
    copied, at_copied = memory.draw(n, D)
    on_rows(2, at_copied, at_table, at_indices, n, D)
    close(copied, table[indices])
    on_rows(3, at_out, at_table, at_indices, n, D)
    _, at_addresses = memory.put(at_table + 4 * D * indices)
    offset = 4 * LANES * rng.randrange(D // LANES)
    left = D - offset // 4
    x, at_x = memory.draw(left)
    dots, at_dots = memory.draw(n)
    at_places(0, at_dots, at_addresses, n, offset, at_x, left)
    close(dots, table[indices, offset // 4 :] @ x)
    factors, at_factors = memory.draw(n)
    mixed, at_mixed = memory.draw(left)
    at_places(1, at_mixed, at_addresses, n, offset, at_factors, left)
    close(mixed, factors @ table[indices, offset // 4 :])


def added(rng: random.Random, drawn: Drawn, memory: Memory) -> None:
    D, n, gap, by, low = LANES * size(rng, 9), size(rng, 9), size(rng, 5), size(rng, 3), rng.random() < 0.5
    drawn |= {"D": D, "n": n, "gap": gap, "factor step": by, "bfloat16": low}
    step = D + gap - 1
    flat = memory.numbers.standard_normal((n - 1) * step + D).astype(np.float32)
    flat = (flat.view(np.uint32) >> 16 << 16).view(np.float32) if low else flat
    _, at_rows = memory.put((flat.view(np.uint32) >> 16).astype(np.uint16) if low else flat)
    factors, at_factors = memory.draw((n - 1) * by + 1)
    out, at_out = memory.draw(D)
    wanted = out + sum(factors[i * by] * flat[i * step : i * step + D] for i in range(n))
    add_rows(BITS if low else FLOATS, at_out, at_rows, n, step, at_factors, by, D)
    close(out, wanted)


def tiles(rng: random.Random, drawn: Drawn, memory: Memory) -> None:
    which, K, gap, low, add = (
        rng.randrange(2),
        size(rng, 70),
        size(rng, 4),
        rng.random() < 0.5,
        rng.random() < 0.5,
    )
    tokens, across = ((1, 1), (2, 3))[which]
    there = rng.randint(1, across)
    drawn |= {"tile": (tokens, across), "K": K, "gap": gap, "bfloat16": low, "add": add, "there": there}
    step = K + gap - 1
    flat = memory.numbers.standard_normal((there - 1) * step + K).astype(np.float32)
    flat = (flat.view(np.uint32) >> 16 << 16).view(np.float32) if low else flat
    _, at_weight = memory.put((flat.view(np.uint32) >> 16).astype(np.uint16) if low else flat)
    x, at_x = memory.draw(tokens, K)
    out, at_out = memory.draw(tokens, there)
    weight = np.stack([flat[j * step : j * step + K] for j in range(there)])
    wanted = x @ weight.T + (out if add else 0)
    tiled(which, BITS if low else FLOATS, at_weight, step, there, at_x, K, at_out, there, 1, add)
    close(out, wanted)


def panels(rng: random.Random, drawn: Drawn, memory: Memory) -> None:
    which, K, add, turned = rng.randrange(2), size(rng, 70), rng.random() < 0.5, rng.random() < 0.5
    down, across = ((4, LANES), (1, 4 * LANES))[which]
    drawn |= {"panel": (down, across), "K": K, "add": add, "a transposed": turned}
    a, at_a = memory.draw(*((K, down) if turned else (down, K)))
    b, at_b = memory.draw(K, across)
    out, at_out = memory.draw(down, across)
    wanted = 0.5 * (a.T if turned else a) @ b + (out if add else 0)
    steps = (1, down) if turned else (K, 1)
    panelled(which, at_a, *steps, at_b, across, K, np.float32(0.5), add, at_out, across)
    close(out, wanted)


CASES = (on_table, added, tiles, panels)


def run(seed: int, *, at_end: bool) -> None:
    """Draw and compare once; a failure names the seed and all that was drawn."""
    for case in CASES:
        drawn: Drawn = {}
        rng = random.Random(seed)
        try:
            case(rng, drawn, Memory(rng, at_end=at_end))
        except Exception as error:
            raise AssertionError(f"{case.__name__}, seed {seed}, drew {drawn}: {error}") from error
