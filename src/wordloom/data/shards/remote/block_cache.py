"""A bounded cache of blocks of remote files on the local disk, shared by all processes of a machine.

::

    remote/<file>/<block>.bin       the bytes of a block, and their CRC-32
    remote/used                     the bytes of all blocks, an upper bound
    remote/.lock                    held while blocks are counted and dropped

Blocks are written under another name and renamed.  When the cache is full, the blocks that were not used for
the longest time are dropped.  A block whose checksum is wrong, as after a loss of power, is read from the
network again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock

from wordloom.data.cache import cache_folder
from wordloom.errors import DataError

SIZE = "WORDLOOM_REMOTE_CACHE_GB"
_DEFAULT_GB = 32.0
_LEAST_GB = 0.001
_KEPT = 0.9  # share of the size that is kept when blocks are dropped
_TOUCH = 60.0  # seconds after which the time of a block that is used is set again
_CHECK = 4  # bytes of the checksum after a block

_log = logging.getLogger(__name__)


class Block(NamedTuple):
    """A block of a remote file, which is known by a key that changes with its content."""

    key: str
    number: int
    size: int


class BlockCache:
    """Blocks on the local disk, at most ``limit`` bytes; ``folder`` is made when the first one is written."""

    def __init__(self, folder: Path | None = None, limit: int | None = None) -> None:
        self._folder = cache_folder() / "remote" if folder is None else folder
        self.limit = cache_limit() if limit is None else limit
        self._sound: dict[tuple[str, int], float] = {}  # checked blocks, and when they were touched
        self._broken = False

    def _path(self, block: Block) -> Path:
        return self._folder / block.key / f"{block.number}.bin"

    def has(self, block: Block) -> bool:
        """Return whether a block is on the disk."""
        return self._path(block).exists()

    def read(self, block: Block, start: int, stop: int) -> bytes | None:
        """Return the bytes ``start`` to ``stop`` of a block, or None if it is not on the disk or damaged."""
        path, known = self._path(block), (block.key, block.number)
        try:
            with path.open("rb", buffering=0) as file:
                if known not in self._sound:
                    content = file.read()
                    if not _is_sound(content, block.size):
                        path.unlink(missing_ok=True)
                        return None
                    self._touch(path, known)
                    return content[start:stop]
                file.seek(start)
                part = file.read(stop - start)
        except OSError:
            return None
        self._touch(path, known)
        return part if len(part) == stop - start else None

    def _touch(self, path: Path, known: tuple[str, int]) -> None:
        now = time.monotonic()
        if now - self._sound.get(known, -_TOUCH) >= _TOUCH:
            self._sound[known] = now
            with contextlib.suppress(OSError):  # another process dropped the block
                os.utime(path)

    def write(self, blocks: Sequence[tuple[Block, bytes]]) -> None:
        """Keep blocks; if the disk does not take them, log it once and go on without."""
        if self._broken:
            return
        try:
            new = [(block, content) for block, content in blocks if not self.has(block)]
            self._reserve(sum(len(content) + _CHECK for _, content in new))
            for block, content in new:
                self._write(block, content)
        except OSError as error:
            self._broken = True
            _log.warning(
                "the cache '%s' takes no blocks (%s); reading on without it",
                self._folder,
                error.strerror or error,
            )

    def _write(self, block: Block, content: bytes) -> None:
        path = self._path(block)
        path.parent.mkdir(exist_ok=True)
        beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        beside.write_bytes(content + zlib.crc32(content).to_bytes(_CHECK, "little"))
        os.replace(beside, path)
        self._sound[block.key, block.number] = time.monotonic()

    def _reserve(self, size: int) -> None:
        """Count ``size`` bytes, and drop the oldest blocks if they do not fit."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self._folder / ".lock"):
            counter = self._folder / "used"
            try:
                used = int(counter.read_text())
            except (OSError, ValueError):
                used = self.limit  # not counted yet
            if used + size > self.limit:
                used = self._drop(max(0, int(self.limit * _KEPT) - size))
            beside = counter.with_name(f".used.{os.getpid()}.tmp")
            beside.write_text(str(used + size))
            os.replace(beside, counter)

    def _drop(self, kept: int) -> int:
        """Drop the blocks that were not used for the longest time, and return the bytes of the others."""
        found = []
        for path in self._folder.glob("*/*"):
            with contextlib.suppress(OSError):
                status = path.stat()
                found.append((status.st_mtime, status.st_size, path))
        used = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if used <= kept:
                break
            path.unlink(missing_ok=True)
            used -= size
        return used


def _is_sound(content: bytes, size: int) -> bool:
    return len(content) == size + _CHECK and zlib.crc32(content[:size]) == int.from_bytes(
        content[size:], "little"
    )


def cache_limit() -> int:
    """Return the most bytes of the cache, from the environment."""
    given = os.environ.get(SIZE)
    if given is None:
        return int(_DEFAULT_GB * 1e9)
    try:
        size = float(given)
    except ValueError:
        size = -1.0
    if not _LEAST_GB <= size < float("inf"):
        raise DataError(
            f"{SIZE}={given!r} is not allowed; give gigabytes, at least {_LEAST_GB:g}, such as 100"
        )
    return int(size * 1e9)
