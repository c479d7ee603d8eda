"""Shuffle records in bounded memory.

Records are sorted by the first bits of a hash of (i, j) and the seed; equal ones stay in the order of i and
j. So the order depends on the seed alone.  Records are distributed to files by the first bits of the hash
until each file fits into memory and can be sorted (the two passes of Rao 1961 and Sandelius 1962).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wordloom.threads import in_order
from wordloom.vectors.glove.kernels import sort_cells, split_cells

Cells: TypeAlias = NDArray[np.uint32]  # [n, 3]

CELL = 12  # bytes
_SORTING = 2 * CELL  # bytes that sorting needs for a record
_SPARE_BITS = 4  # bits of the hash beyond log2 of the number of records: 6% of records share theirs
_FEWEST_BITS = 24  # more than the first files need
_MOST_BITS = 8  # up to 256 files are open at a time


class Dealt(NamedTuple):
    """Records in piles, and the end of each pile (empty for a single pile)."""

    cells: Cells
    ends: list[int]


class Shuffle:
    """Takes batches of records, sorted by i and j, and writes them in random order.

    Attributes:
        records: the number of records.
        spilled: bytes written to temporary files.
    """

    def __init__(self, folder: Path, *, expected: int, memory: int, workers: int, seed: int) -> None:
        """
        Args:
            folder: the folder for temporary files.
            expected: an upper bound of the number of records.
            memory: bytes for sorting, a quarter of them before :meth:`write_to`.
            workers: threads that sort.
            seed: the seed of the order.
        """
        self.folder, self.workers = folder, workers
        self.seed = np.uint64(seed % 2**64)
        self.records = self.spilled = self._bits = 0
        self._most = max(1, memory // (_SORTING * (workers + 1)))  # records of a file that is sorted
        self._held: list[Cells] = []
        self._open = ExitStack()
        self._made = 0
        self._piles: _Piles | None = None
        if expected * CELL > memory // 4:
            self._piles = self._open.enter_context(self._dealt(expected, 0))

    def __enter__(self) -> Shuffle:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def deal(self, cells: Cells) -> Dealt:
        """Return the argument of :meth:`add` for records of new pairs, on any thread."""
        return Dealt(cells, []) if self._piles is None else self._piles.deal(cells)

    def add(self, dealt: Dealt) -> None:
        """Add the next records."""
        self.records += len(dealt.cells)
        if self._piles is None:
            self._held.append(dealt.cells)
        else:
            self._piles.add(dealt)

    def write_to(self, path: Path, progress: Callable[[int], None]) -> None:
        """Write the records, and call ``progress`` with the number written."""
        self._bits = max(self.records.bit_length() + _SPARE_BITS, _FEWEST_BITS)
        with path.open("wb") as file, ThreadPoolExecutor(self.workers, "wordloom-shuffle") as pool:
            written = 0
            for cells in in_order(pool, self._sorted, self._files(), self.workers):
                cells.tofile(file)
                written += len(cells)
                progress(written)
            file.flush()
            os.fsync(file.fileno())

    def _files(self) -> Iterator[tuple[Path | Cells, int]]:
        """Yield files that fit into memory, and the number of first bits that their hashes share."""
        if self._piles is None:
            held, self._held = self._held, []
            yield (np.concatenate(held) if held else np.empty((0, 3), dtype=np.uint32)), 0
            return
        self._open.close()
        for path in self._piles.paths:
            yield from self._small(path, self._piles.bits)

    def _small(self, path: Path, used: int) -> Iterator[tuple[Path, int]]:
        n = path.stat().st_size // CELL
        if n <= self._most or used + _MOST_BITS > self._bits:
            yield path, used
            return
        with self._dealt(n, used) as piles:
            for cells in _batches(path, self._most // 2 + 1):
                piles.add(piles.deal(cells))
        path.unlink()
        for pile in piles.paths:
            yield from self._small(pile, piles.bits + used)

    def _dealt(self, n: int, used: int) -> _Piles:
        bits = 1
        while bits < _MOST_BITS and n > (self._most << bits) * 0.8:
            bits += 1
        self._made += 1
        return _Piles(
            self, [self.folder / f"pile-{self._made}-{p}.tmp" for p in range(1 << bits)], used, bits
        )

    def _sorted(self, file: tuple[Path | Cells, int]) -> Cells:
        source, used = file
        if isinstance(source, Path):
            cells = np.fromfile(source, dtype=np.uint32).reshape(-1, 3)
            source.unlink()
        else:
            cells = source
        out = np.empty_like(cells)
        return out if sort_cells(cells, self.seed, used, self._bits, out) else cells


class _Piles:
    """Files of records, distributed by ``bits`` bits of their hashes after the first ``used``."""

    def __init__(self, shuffle: Shuffle, paths: list[Path], used: int, bits: int) -> None:
        self.shuffle, self.paths, self.used, self.bits = shuffle, paths, used, bits

    def __enter__(self) -> _Piles:
        with ExitStack() as opened:
            self._files: list[Any] = [opened.enter_context(path.open("wb")) for path in self.paths]
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def deal(self, cells: Cells) -> Dealt:
        out, ends = np.empty_like(cells), np.empty((1 << self.bits) + 1, dtype=np.int64)
        split_cells(cells, self.shuffle.seed, self.used, self.bits, ends, out)
        return Dealt(out, ends[:-1].tolist())

    def add(self, dealt: Dealt) -> None:
        start = 0
        for file, end in zip(self._files, dealt.ends, strict=True):
            dealt.cells[start:end].tofile(file)
            start = end
        self.shuffle.spilled += dealt.cells.nbytes


def _batches(path: Path, most: int) -> Iterable[Cells]:
    with path.open("rb") as file:
        while len(cells := np.fromfile(file, dtype=np.uint32, count=3 * most)):
            yield cells.reshape(-1, 3)
