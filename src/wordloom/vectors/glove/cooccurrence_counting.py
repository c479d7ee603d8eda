"""Count co-occurrences portion by portion, for :func:`wordloom.vectors.count_cooccurrences`."""

from __future__ import annotations

import bisect
import math
import mmap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from wordloom.data.shards.storage import TokenShards
from wordloom.errors import VectorError
from wordloom.threads import in_order
from wordloom.vectors.glove.cooccurrence_order import Shuffle
from wordloom.vectors.glove.kernels import as_cells, count_rows, index_places, merge_rows

_SUM = 12  # bytes of a column and its sum
_PLACE = 9  # bytes for a token: its id, its place, and a flag while documents are separated
_MOST_PLACES = 1 << 31
_MAPPED_AROUND = 1 << 20  # bytes that the system may map before the requested ones

ReportProgress: TypeAlias = Callable[[str, int, int], None]
T = TypeVar("T")


class _Rows(NamedTuple):
    """Rows of X from ``first`` on: their sums, sorted by column."""

    first: int
    lengths: NDArray[np.int64]
    j: NDArray[np.uint32]
    x: NDArray[np.uint64]


class _Portion(NamedTuple):
    """A part of the corpus, indexed by word; see :func:`index_places`."""

    begin: int
    tokens: NDArray[np.uint32]
    places: NDArray[np.uint32]
    starts: NDArray[np.int64]


class Counting:
    """One count of a corpus.

    Attributes:
        n_tokens: tokens of the corpus.
        n_runs: portions, each counted separately.
        spilled: bytes written to temporary files.
    """

    def __init__(
        self,
        shards: TokenShards,
        folder: Path,
        *,
        window: int,
        both: bool,
        weigh: bool,
        memory: float,
        workers: int,
        seed: int,
        report_progress: ReportProgress,
    ) -> None:
        self.shards, self.folder, self.memory, self.seed = shards, folder, memory, seed
        self.window, self.both, self.report_progress = window, both, report_progress
        self.V, self.n_tokens = shards.vocab_size, len(shards)
        self.n_runs = self.spilled = 0
        self._share_memory(workers)
        self.unit, self.units = _units(window, self.n_tokens, weigh=weigh)

    def _share_memory(self, workers: int) -> None:
        """Choose the size of portions, and lower the number of threads if memory is short."""
        for self.workers in range(workers, 0, -1):
            fixed = (13 * self.V + 256) * self.workers + 32 * self.V
            each = 4 * _SUM * (2 * self.workers + 2)  # a quarter of memory: sums and their records
            if self.memory >= fixed + each * self.V:
                break
        else:
            raise VectorError(
                f"memory_mb {self.memory / 2**20:g} cannot hold a row of counts for {self.V:,} words; "
                f"give {math.ceil((fixed + each * self.V) / 2**20 * 100) / 100:g} or more"
            )
        free = int(self.memory) - fixed
        self.most_sums = free // each
        self.most_places = min(max(free // (2 * _PLACE), 2 * self.window), _MOST_PLACES)

    def run(self, out: Path) -> int:
        """Write the records to ``out`` and return their number."""
        with ThreadPoolExecutor(self.workers, "wordloom-count") as pool:
            expected, rows = self._rows(pool)
            with Shuffle(
                self.folder, expected=expected, memory=int(self.memory), workers=self.workers, seed=self.seed
            ) as shuffle:
                for dealt in rows(lambda part: shuffle.deal(self._records(part))):
                    shuffle.add(dealt)
                total = shuffle.records
                if not total:
                    raise VectorError(
                        "no two words of the corpus co-occur: each document has at most one word of the "
                        "vocabulary; give longer documents, or lower min_count"
                    )
                shuffle.write_to(out, lambda done: self.report_progress("shuffle", done, total))
        self.spilled += shuffle.spilled
        return total

    # -- portions ----------------------------------------------------------------------------------------

    def _rows(self, pool: ThreadPoolExecutor) -> tuple[int, Callable[[Callable[[_Rows], T]], Iterator[T]]]:
        """Return an upper bound of the number of sums, and a function that yields all rows of X.

        It takes a function that the counting thread applies to the rows.
        """
        ends = self._cut()
        self.n_runs = len(ends)
        if len(ends) == 1:
            portion = self._indexed(0, self.n_tokens)
            return int(self._bounds(portion).sum()), partial(self._counted, pool, portion)
        runs = _Runs(self.folder, self.V)
        begin = 0
        for end in ends:
            runs.add(self._counted(pool, self._indexed(begin, end), lambda part: part))
            begin = end
        self.spilled += runs.nbytes
        return self._merged(pool, runs)

    def _cut(self) -> list[int]:
        """Return the ends of portions that fit into memory, including the gaps between documents."""
        ends, begin = [], 0

        def places(stop: int) -> int:
            between = np.searchsorted(self.shards.ends, (begin, stop))
            return stop - begin + int(between[1] - between[0])

        while begin < self.n_tokens:
            fit = bisect.bisect_right(range(begin, self.n_tokens + 1), self.most_places, key=places)
            begin = max(begin + fit - 1, begin + 1)
            ends.append(begin)
        return ends

    def _indexed(self, begin: int, end: int) -> _Portion:
        """Index tokens ``begin`` to ``end``, and the tokens beyond that their windows reach, by word."""
        low, high = max(begin - self.window, 0), min(end + self.window, self.n_tokens)
        first, last = np.searchsorted(self.shards.ends, (low + 1, high))
        inner = self.shards.ends[first:last] - low  # ends of documents, without the last
        gaps = np.concatenate(([0], inner + np.arange(1, len(inner) + 1), [high - low + len(inner) + 1]))
        tokens = np.full(high - low + len(gaps), self.V, dtype=np.uint32)
        inside = np.ones(len(tokens), dtype=np.bool_)
        inside[gaps] = False
        ids = self.shards.tokens(low, high)
        if (highest := int(ids.max())) >= self.V:  # a kernel would write out of bounds
            raise VectorError(
                f"'{self.shards.folder}' is damaged: it holds the id {highest:,} of {self.V:,} words; "
                "prepare it again"
            )
        tokens[inside] = ids
        del inside

        def place(token: int) -> int:
            return 1 + token - low + int(np.searchsorted(inner, token - low, side="right"))

        span = place(begin), place(end - 1) + 1
        places = np.empty(span[1] - span[0], dtype=np.uint32)
        starts = np.empty(self.V + 3, dtype=np.int64)
        index_places(tokens, *span, starts, places)
        return _Portion(begin, tokens, places, starts)

    def _bounds(self, portion: _Portion) -> NDArray[np.int64]:
        """Return an upper bound of the sums of each row, [V]."""
        seen = np.diff(portion.starts[: self.V + 1]) * (self.window * (2 if self.both else 1))
        return np.minimum(seen, self.V)

    def _counted(
        self, pool: ThreadPoolExecutor, portion: _Portion, then: Callable[[_Rows], T]
    ) -> Iterator[T]:
        bounds = self._bounds(portion)
        seen = np.diff(portion.starts[: self.V + 1]) * self.window // 4

        def count(rows: tuple[int, int]) -> tuple[int, T]:
            part = self._summed(
                rows, int(bounds[rows[0] : rows[1]].sum()), count_rows,
                (portion.tokens, portion.places, portion.starts), (self.units, self.both),
            )  # fmt: skip
            return rows[1], then(part)

        stretches = _stretches(np.maximum(bounds, seen), self.most_sums, self.workers)
        for last, result in in_order(pool, count, stretches, self.workers + 1):
            yield result
            self.report_progress("count", portion.begin + int(portion.starts[last]), self.n_tokens)

    def _merged(
        self, pool: ThreadPoolExecutor, runs: _Runs
    ) -> tuple[int, Callable[[Callable[[_Rows], T]], Iterator[T]]]:
        table, j, x = runs.read()
        sizes = np.zeros(self.V, dtype=np.int64)
        for run in table:
            sizes += np.diff(run)
        bounds = np.minimum(sizes, self.V)

        def merged(then: Callable[[_Rows], T]) -> Iterator[T]:
            def merge(rows: tuple[int, int]) -> tuple[tuple[int, int], T]:
                most = int(bounds[rows[0] : rows[1]].sum())
                part = self._summed(rows, most, merge_rows, (table, j, x), ())
                return rows, then(part)

            stretches = _stretches(np.maximum(bounds, sizes), self.most_sums, self.workers)
            for rows, result in in_order(pool, merge, stretches, self.workers + 1):
                yield result
                runs.forget(*rows)
                self.report_progress("merge", rows[1], self.V)

        return int(bounds.sum()), merged

    def _summed(
        self, rows: tuple[int, int], most: int, kernel: Any, sources: tuple[Any, ...], how: tuple[Any, ...]
    ) -> _Rows:
        sums, met = np.zeros(self.V, dtype=np.uint64), np.empty(self.V + 1, dtype=np.uint32)
        marks = np.zeros((self.V >> 6) + 1, dtype=np.uint64)
        tops = np.zeros((self.V >> 12) + 1, dtype=np.uint64)
        lengths = np.empty(rows[1] - rows[0], dtype=np.int64)
        j, x = np.empty(most, dtype=np.uint32), np.empty(most, dtype=np.uint64)
        n = kernel(*sources, *rows, *how, sums, met, marks, tops, lengths, j, x)
        return _Rows(rows[0], lengths, j[:n], x[:n])

    def _records(self, part: _Rows) -> NDArray[np.uint32]:
        cells = np.empty((len(part.j), 3), dtype=np.uint32)
        as_cells(part.first, part.lengths, part.j, part.x, self.unit, cells)
        return cells


def _units(window: int, n_tokens: int, *, weigh: bool) -> tuple[float, NDArray[np.uint64]]:
    """Return the value of the integer 1 in sums, and [window + 1] the integers that each distance adds.

    The value is a power of two, as small as possible while the sum over the corpus stays below 2^62.
    """
    weights = np.concatenate(([0.0], 1 / np.arange(1, window + 1) if weigh else np.ones(window)))
    bits = min(40, math.floor(62 - math.log2(2 * weights.sum() * n_tokens)))
    return 2.0**-bits, np.rint(weights * 2.0**bits).astype(np.uint64)


def _stretches(sizes: NDArray[np.int64], most: int, workers: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows with up to ``most`` sums, or fewer so that every thread has work."""
    sums = np.cumsum(sizes)
    most = min(most, max(int(sums[-1]) // (16 * workers), 1 << 16))
    first = before = 0
    while first < len(sizes):
        last = max(int(np.searchsorted(sums, before + most, side="right")), first + 1)
        yield first, last
        first, before = last, int(sums[last - 1])


class _Runs:
    """Sorted counts of portions, appended to files.

    Attributes:
        nbytes: bytes written.
    """

    def __init__(self, folder: Path, V: int) -> None:
        self.V, self.nbytes, self._sums = V, 0, 0
        self._table, self._j, self._x = (folder / f"runs-{name}.tmp" for name in ("table", "j", "x"))

    def add(self, run: Iterator[_Rows]) -> None:
        """Write all rows of a portion."""
        starts = np.empty(self.V + 1, dtype=np.int64)
        starts[0] = self._sums
        with self._j.open("ab") as j, self._x.open("ab") as x, self._table.open("ab") as table:
            for part in run:
                part.j.tofile(j)
                part.x.tofile(x)
                last = part.first + len(part.lengths)
                starts[part.first + 1 : last + 1] = self._sums + np.cumsum(part.lengths)
                self._sums += len(part.j)
            starts.tofile(table)
        self.nbytes += starts.nbytes + int(starts[-1] - starts[0]) * _SUM

    def read(self) -> tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.uint64]]:
        """Return ([runs, V + 1] starts of rows, columns, sums), memory-mapped."""
        maps = [_mapped(path) for path in (self._table, self._j, self._x)]
        table = np.frombuffer(maps[0], dtype=np.int64).reshape(-1, self.V + 1)
        self._read = table, [(maps[1], 4), (maps[2], 8)]
        return table, np.frombuffer(maps[1], dtype=np.uint32), np.frombuffer(maps[2], dtype=np.uint64)

    def forget(self, first: int, last: int) -> None:
        """Release the memory of rows ``first`` to ``last``, which are not read again."""
        table, maps = self._read
        for mapped, width in maps:
            if not isinstance(mapped, mmap.mmap) or not hasattr(mapped, "madvise"):  # empty, or not supported
                continue
            for begin, end in (table[:, [first, last]] * width).tolist():
                begin = max(0, begin - begin % mmap.PAGESIZE - _MAPPED_AROUND)
                if end > begin:
                    mapped.madvise(mmap.MADV_DONTNEED, begin, end - begin)


def _mapped(path: Path) -> mmap.mmap | bytearray:
    """Map a file, which may be empty, as writable, because the kernels are compiled for writable arrays."""
    if not path.stat().st_size:
        return bytearray()
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)
