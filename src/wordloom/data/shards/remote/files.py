"""Arrays in remote files, which are read in blocks."""

from __future__ import annotations

import hashlib
import json
import time
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from threading import RLock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wordloom.data.shards.arrays import FileRange, Ints, Side
from wordloom.data.shards.folders import Checks
from wordloom.data.shards.remote.block_cache import Block, BlockCache
from wordloom.data.shards.remote.requests import retried
from wordloom.data.shards.storage import BLOCK
from wordloom.errors import DataError

_AT_ONCE = 64  # blocks of one request, and blocks in memory: 16 MiB
_VERIFIED = 30.0  # seconds for which a file without checksums is trusted not to change
_VERSIONS = (
    "ETag",
    "etag",
    "generation",
    "LastModified",
    "Last-Modified",
    "last_modified",
    "mtime",
    "created",
)


class RemoteFile:
    """An array in a remote file; see :class:`~wordloom.data.shards.arrays.ArrayFile`.

    Args:
        reader: reads the blocks.
        path, url: the file for fsspec, and for messages.
        checks: the checksums of the blocks, or None.
        version: of a file without checksums: what changes with its content, as far as the file system says.
    """

    def __init__(
        self,
        reader: BlockReader,
        path: str,
        url: str,
        dtype: str,
        count: int,
        checks: Checks | None,
        version: str = "",
    ) -> None:
        self.reader, self.path, self.url = reader, path, url
        self.checks, self.version = checks, version
        self.dtype, self._count = np.dtype(dtype), count
        self.size = count * self.dtype.itemsize
        self._per_block = BLOCK // self.dtype.itemsize
        identity = [url, self.size, version if checks is None else checks.identity]
        self._key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
        self._firsts: dict[int, int] = {}  # the first item of blocks that were searched
        self._verified = time.monotonic()

    def __len__(self) -> int:
        return self._count

    def verify(self, system: Any) -> None:
        """Raise DataError if a file without checksums has changed since it was opened, as far as is known."""
        if self.checks is not None or time.monotonic() - self._verified < _VERIFIED:
            return
        if version_of(file_info(system, self.path, self.url)) != self.version:
            raise DataError(f"'{self.url}' was changed while it was read; start again with files that stay")
        self._verified = time.monotonic()

    def block(self, number: int) -> Block:
        """Return a block of the file."""
        return Block(self._key, number, min(BLOCK, self.size - number * BLOCK))

    def blocks(self, start: int, stop: int) -> range:
        """Return the numbers of the blocks that hold the items ``start`` to ``stop`` (excluded)."""
        return range(start // self._per_block, -(-stop // self._per_block)) if start < stop else range(0)

    def read(self, start: int, stop: int) -> Ints:
        parts = []
        for number in self.blocks(start, stop):
            begin = number * self._per_block
            first, after = max(start, begin) - begin, min(stop - begin, self._per_block)
            parts.append(self._items(number, first, after))
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty(0, self.dtype)

    def _items(self, number: int, first: int, after: int) -> Ints:
        size = self.dtype.itemsize
        return np.frombuffer(self.reader.read(self, number, first * size, after * size), self.dtype)

    def take(self, index: NDArray[np.int64]) -> Ints:
        items = np.empty(len(index), self.dtype)
        numbers = index // self._per_block
        for number in np.unique(numbers).tolist():
            chosen = numbers == number
            within = index[chosen] - number * self._per_block
            first, after = int(within.min()), int(within.max()) + 1
            items[chosen] = self._items(number, first, after)[within - first]
        return items

    def search(self, values: NDArray[np.int64], side: Side) -> NDArray[np.int64]:
        numbers = np.array([self._block_of(value, side) for value in values.tolist()], np.int64)
        places = np.zeros(len(values), np.int64)
        for number in np.unique(numbers).tolist():
            chosen = numbers == number
            begin = number * self._per_block
            items = self.read(begin, min(self._count, begin + self._per_block))
            places[chosen] = begin + items.searchsorted(values[chosen], side)
        return places

    def _block_of(self, value: int, side: Side) -> int:
        """Return the last block that begins below ``value``, or at it if ``side`` is "right"; at least 0."""
        low, high = 0, -(-self._count // self._per_block)
        while high - low > 1:
            middle = (low + high) // 2
            first = self._first(middle)
            if first < value or (side == "right" and first == value):
                low = middle
            else:
                high = middle
        return low

    def _first(self, number: int) -> int:
        if number not in self._firsts:
            self._firsts[number] = int(self._items(number, 0, 1)[0])
        return self._firsts[number]


class BlockReader:
    """Reads blocks of remote files from memory, the disk cache or the network, in this order."""

    def __init__(self, system: Any, cache: BlockCache) -> None:
        self._system, self._cache = system, cache
        self._memory: OrderedDict[Block, bytes] = OrderedDict()
        self._lock = RLock()

    def read(self, file: RemoteFile, number: int, start: int, stop: int) -> bytes:
        """Return the bytes ``start`` to ``stop`` of a block."""
        block = file.block(number)
        with self._lock:
            if (content := self._memory.get(block)) is not None:
                self._memory.move_to_end(block)
                return content[start:stop]
            if (part := self._cache.read(block, start, stop)) is not None:
                return part
            (content,) = self._download([(file, number)])
            return content[start:stop]

    def fetch(self, ranges: Sequence[FileRange]) -> None:
        """Read the blocks of ``ranges`` that are neither in memory nor on the disk, many at once."""
        wanted = {
            (each.file, number): None
            for each in ranges
            if isinstance(each.file, RemoteFile)
            for number in each.file.blocks(each.start, each.stop)
        }
        with self._lock:
            missing = [each for each in wanted if not self._is_here(each[0].block(each[1]))]
            for at in range(0, len(missing), _AT_ONCE):
                self._download(missing[at : at + _AT_ONCE])

    def _is_here(self, block: Block) -> bool:
        return block in self._memory or self._cache.has(block)

    def _download(self, wanted: Sequence[tuple[RemoteFile, int]]) -> list[bytes]:
        """Return blocks from the network, which are kept in memory and on the disk."""
        download = _Download(self._system, wanted)
        url = wanted[0][0].url
        try:
            retried(download.attempt, url)
        except FileNotFoundError:
            raise DataError(f"'{url}' is missing; check the folder, or merge it again") from None
        for file in {file for file, _ in wanted}:
            file.verify(self._system)
        contents = [download.found[n] for n in range(len(wanted))]
        blocks = [(file.block(n), content) for (file, n), content in zip(wanted, contents, strict=True)]
        self._memory.update(blocks)
        while len(self._memory) > _AT_ONCE:
            self._memory.popitem(last=False)
        self._cache.write(blocks)
        return contents


class _Download:
    """The download of blocks, which may take several attempts; ``found`` has those that have arrived."""

    def __init__(self, system: Any, wanted: Sequence[tuple[RemoteFile, int]]) -> None:
        self._system, self._wanted = system, wanted
        self._wrong: set[int] = set()  # blocks that arrived with another checksum
        self.found: dict[int, bytes] = {}

    def attempt(self) -> None:
        """Read the blocks that have not arrived; raise the first error."""
        left = [n for n in range(len(self._wanted)) if n not in self.found]
        paths = [self._wanted[n][0].path for n in left]
        starts = [self._wanted[n][1] * BLOCK for n in left]
        sizes = [self._wanted[n][0].block(self._wanted[n][1]).size for n in left]
        ends = [start + size for start, size in zip(starts, sizes, strict=True)]
        results = self._system.cat_ranges(paths, starts, ends, on_error="return")
        errors: list[BaseException] = []
        for n, size, result in zip(left, sizes, results, strict=True):
            if isinstance(result, BaseException):
                errors.append(result)
            elif len(result) != size:
                errors.append(OSError(f"{len(result)} bytes came where {size} belong"))
            elif (error := self._changed(n, result)) is not None:
                errors.append(error)
            else:
                self.found[n] = result
        if errors:
            raise errors[0]

    def _changed(self, n: int, content: bytes) -> BaseException | None:
        """Return an error for a wrong checksum, which ends the download if the second attempt has it too."""
        file, number = self._wanted[n]
        if file.checks is None or zlib.crc32(content) == file.checks.of_block(number):
            return None
        if n not in self._wrong:
            self._wrong.add(n)
            return OSError("a block came with another checksum")
        return DataError(
            f"'{file.url}' differs from the checksums of its folder: it was changed or damaged after it was "
            "prepared; copy it again, or merge the folder again"
        )


def version_of(info: dict[str, Any]) -> str:
    """Return what changes with the content of a file, as far as its file system says."""
    return json.dumps({name: str(info[name]) for name in _VERSIONS if info.get(name)}, sort_keys=True)


def file_info(system: Any, path: str, url: str) -> dict[str, Any]:
    """Return what the file system says of a file; raise DataError if it is missing."""
    try:
        info: dict[str, Any] = retried(lambda: system.info(path), url)
    except FileNotFoundError:
        raise DataError(f"'{url}' is missing; check the address, or merge the folder again") from None
    return info
