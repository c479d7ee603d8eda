"""Arrays of integers that lie in several files, read as one array.

A corpus that many tasks prepared has one file of tokens for each task.  :class:`JoinedArray` presents the
files as one array: it has the methods of a numpy array that batches use, and reads the parts of files that
they ask for.  A file is memory-mapped (:class:`MappedFiles`) or read by byte ranges
(:mod:`wordloom.data.shards.remote`).
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import DataError

Side: TypeAlias = Literal["left", "right"]
Ints: TypeAlias = NDArray[np.integer[Any]]

_OPEN = 192  # most files mapped at a time, below the usual limit of 1,024 open files of a process
_AHEAD = 1 << 14  # bytes of a read from which on the system reads all of its pages at once
_SPARSE = 4  # indices that span more than this many times their number are read one by one


class IntArray(Protocol):
    """The methods of an array of integers that batches use; numpy's arrays have them."""

    @property
    def size(self) -> int: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: Any, /) -> Any: ...
    def __array__(self) -> NDArray[Any]: ...
    def searchsorted(self, v: Any, /, side: Side = ...) -> Any: ...


class ArrayFile(Protocol):
    """An array in one file."""

    @property
    def dtype(self) -> np.dtype[Any]: ...
    def __len__(self) -> int: ...

    def read(self, start: int, stop: int) -> Ints:
        """Return the items ``start`` to ``stop`` (excluded)."""
        ...

    def take(self, index: NDArray[np.int64]) -> Ints:
        """Return the items at the positions ``index``, one-dimensional."""
        ...

    def search(self, values: NDArray[np.int64], side: Side) -> NDArray[np.int64]:
        """Return where ``values`` belong in the file, which is sorted; see :func:`numpy.searchsorted`."""
        ...


class FileRange(NamedTuple):
    """The items ``start`` to ``stop`` (excluded) of a file."""

    file: ArrayFile
    start: int
    stop: int


#: Read the ranges at once, before they are used one after another.
Fetch: TypeAlias = Callable[[Sequence[FileRange]], None]


class _Map(NamedTuple):
    array: Ints
    pages: mmap.mmap | None


class MappedFiles:
    """Memory maps of local files, of which a limited number is open at a time.

    Reads of windows are announced as random.  Without that, the system reads megabytes for each window.
    """

    def __init__(self) -> None:
        self.map = lru_cache(maxsize=_OPEN)(_map_for_windows)

    def open(self, path: Path, dtype: str, count: int) -> MappedFile:
        """Return the array in a file, whose size is checked now and which is mapped when it is read."""
        check_size(path, np.dtype(dtype), count)
        return MappedFile(self, path, dtype, count)


class MappedFile:
    """An array in a local file, mapped when it is read; see :class:`ArrayFile`."""

    def __init__(self, files: MappedFiles, path: Path, dtype: str, count: int) -> None:
        self._files, self._path, self._count = files, str(path), count
        self.dtype = np.dtype(dtype)

    def _array(self) -> Ints:
        return self._files.map(self._path, self.dtype.str, self._count).array

    def __len__(self) -> int:
        return self._count

    def read(self, start: int, stop: int) -> Ints:
        mapped, size = self._files.map(self._path, self.dtype.str, self._count), self.dtype.itemsize
        if mapped.pages is not None and (stop - start) * size > _AHEAD and hasattr(mmap, "MADV_WILLNEED"):
            first = start * size // mmap.PAGESIZE * mmap.PAGESIZE
            mapped.pages.madvise(mmap.MADV_WILLNEED, first, stop * size - first)  # in one go
        return mapped.array[start:stop]

    def take(self, index: NDArray[np.int64]) -> Ints:
        return self._array()[index]

    def search(self, values: NDArray[np.int64], side: Side) -> NDArray[np.int64]:
        return self._array().searchsorted(values, side)


def check_size(path: Path, dtype: np.dtype[Any], count: int) -> None:
    """Raise DataError if the file does not hold ``count`` numbers."""
    size = path.stat().st_size if path.exists() else -1
    if size != count * dtype.itemsize:
        raise DataError(
            f"'{path}' is damaged: {max(0, size)} bytes where {count * dtype.itemsize} belong; "
            "prepare it again"
        )


def map_array(path: str | Path, dtype: str, count: int) -> NDArray[Any]:
    """Return the memory map of a file of ``count`` numbers; raise DataError for a file of another size."""
    check_size(Path(path), np.dtype(dtype), count)
    if not count:
        return np.empty(0, dtype)  # the system maps no empty file
    # The plain ndarray view slices several times faster than np.memmap itself.
    return np.memmap(path, dtype=dtype, mode="r", shape=(count,)).view(np.ndarray)


def _map_for_windows(path: str, dtype: str, count: int) -> _Map:
    check_size(Path(path), np.dtype(dtype), count)
    if not count:
        return _Map(np.empty(0, dtype), None)
    with open(path, "rb") as file:
        pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if hasattr(mmap, "MADV_RANDOM"):
        pages.madvise(mmap.MADV_RANDOM)
    return _Map(np.frombuffer(pages, dtype), pages)


class JoinedArray:
    """The arrays of several files, end to end.

    It is indexed by an integer, a slice, or an array of positions with one or two dimensions.  Positions of a
    row that lie close together are read at once, so an index of one row for each window reads every window
    once.

    Args:
        files: the arrays, in order.
        dtype: the type of the numbers.
        added: for each file, the number that is added to its items; by default nothing.
        lasts: for each file, its last item, for :meth:`searchsorted`; by default it is read.
        fetch: called with the ranges of an index before they are read.
    """

    def __init__(
        self,
        files: Sequence[ArrayFile],
        dtype: str,
        *,
        added: Sequence[int] | None = None,
        lasts: Sequence[int] | None = None,
        fetch: Fetch | None = None,
    ) -> None:
        filled = [n for n, file in enumerate(files) if len(file)]
        self._files = [files[n] for n in filled]
        self._added = np.array([0 if added is None else added[n] for n in filled], np.int64)
        self._shifted = added is not None
        self._known_lasts = None if lasts is None else np.array([lasts[n] for n in filled], np.int64)
        self._starts = np.cumsum([0, *(len(file) for file in self._files)])  # [files + 1]
        self._fetch = fetch
        self.dtype = np.dtype(dtype)

    @property
    def size(self) -> int:
        """The number of items."""
        return int(self._starts[-1])

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"JoinedArray(size={self.size}, files={len(self._files)})"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return all items, in memory."""
        return np.asarray(self._read(0, self.size), dtype)

    def __getitem__(self, index: Any, /) -> Any:
        if isinstance(index, slice):
            start, stop, step = index.indices(self.size)
            return (
                self._read(start, max(start, stop))[::step] if step > 0 else self._read(0, self.size)[index]
            )
        positions = np.asarray(index)
        if positions.dtype == np.bool_:
            positions = np.flatnonzero(positions)
        positions = positions.astype(np.int64, copy=False)
        if positions.size and not (-self.size <= positions.min() and positions.max() < self.size):
            raise IndexError(f"a position lies outside 0..{self.size - 1}")
        positions = np.where(positions < 0, positions + self.size, positions)
        rows = positions.reshape(-1, positions.shape[-1]) if positions.ndim > 1 else positions.reshape(1, -1)
        items = np.empty(rows.shape, self.dtype)
        self._read_rows(rows, items)
        return items.reshape(positions.shape)[()]

    def _read_rows(self, rows: NDArray[np.int64], items: Ints) -> None:
        """Fill ``items`` with the items at the positions ``rows``, [R, N] both."""
        if not rows.size:
            return
        lows, highs = rows.min(axis=1), rows.max(axis=1) + 1  # [R]
        low, high = int(lows.min()), int(highs.max())
        if high - low <= _SPARSE * rows.size:  # neighbours, as in the order of the text
            items[:] = self._read(low, high)[rows - low]
            return
        dense = highs - lows <= _SPARSE * rows.shape[1]
        if self._fetch is not None:
            spans = list(zip(lows[dense].tolist(), highs[dense].tolist(), strict=True))
            spans += [(at, at + 1) for at in np.unique(rows[~dense]).tolist()]
            self._fetch([self._file_range(*each) for span in spans for each in self._ranges(*span)])
        numbers = self._starts.searchsorted(lows, "right") - 1  # [R], the file of the first item
        starts = self._starts[numbers]
        in_one_file = dense & (highs <= self._starts[numbers + 1])
        whole = (rows == lows[:, None] + np.arange(rows.shape[1])).all(axis=1)  # a window: no index is needed
        places = zip(numbers.tolist(), (lows - starts).tolist(), (highs - starts).tolist(), strict=True)
        for n, place in enumerate(places):
            if not dense[n]:
                items[n] = self._take(rows[n])
                continue
            found = self._read_file(*place) if in_one_file[n] else self._read(int(lows[n]), int(highs[n]))
            items[n] = found if whole[n] else found[rows[n] - lows[n]]

    def _take(self, positions: NDArray[np.int64]) -> Ints:
        """Return the items at ``positions`` [N], which may lie far apart."""
        items = np.empty(len(positions), self.dtype)
        numbers = self._starts.searchsorted(positions, "right") - 1
        for number in np.unique(numbers).tolist():
            chosen = numbers == number
            found = self._files[number].take(positions[chosen] - self._starts[number])
            items[chosen] = found + self._added[number] if self._shifted else found
        return items

    def _read(self, start: int, stop: int) -> Ints:
        """Return the items ``start`` to ``stop`` (excluded)."""
        ranges = list(self._ranges(start, stop))
        if self._fetch is not None:
            self._fetch([self._file_range(*each) for each in ranges])
        if len(ranges) == 1:
            return self._read_file(*ranges[0])
        items, at = np.empty(max(0, stop - start), self.dtype), 0
        for each in ranges:  # copied one by one: a view would keep its file open
            read = self._read_file(*each)
            items[at : at + len(read)] = read
            at += len(read)
        return items

    def _read_file(self, number: int, start: int, stop: int) -> Ints:
        items = self._files[number].read(start, stop)
        return items + self._added[number] if self._shifted else items

    def _file_range(self, number: int, start: int, stop: int) -> FileRange:
        return FileRange(self._files[number], start, stop)

    def _ranges(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield the number of each file between two positions, and its first and last item there."""
        number = int(self._starts.searchsorted(start, "right")) - 1
        while start < stop:
            first, after = int(self._starts[number]), int(self._starts[number + 1])
            yield number, start - first, min(stop, after) - first
            start, number = after, number + 1

    def searchsorted(self, v: Any, /, side: Side = "left") -> Any:
        """Return where the values ``v`` belong in the sorted array; see :func:`numpy.searchsorted`."""
        values = np.asarray(v)
        flat = values.reshape(-1).astype(np.int64, copy=False)
        places = np.empty(flat.shape, np.int64)
        numbers = self._lasts.searchsorted(flat, side)
        for number in np.unique(numbers).tolist():
            chosen = numbers == number
            if number == len(self._files):
                places[chosen] = self.size
                continue
            found = self._files[number].search(flat[chosen] - self._added[number], side)
            places[chosen] = found + self._starts[number]
        return places.reshape(values.shape)[()]

    @property
    def _lasts(self) -> NDArray[np.int64]:
        """The last item of each file, [files]."""
        if self._known_lasts is None:
            lasts = [file.read(len(file) - 1, len(file))[0] for file in self._files]
            self._known_lasts = np.array(lasts, np.int64) + self._added
        return self._known_lasts
