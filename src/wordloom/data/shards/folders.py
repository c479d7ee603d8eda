"""Folders of prepared shards, on a local disk or behind a URL."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, TypeAlias

from wordloom.data.shards.arrays import ArrayFile, Fetch, MappedFile, MappedFiles
from wordloom.errors import DataError

Location: TypeAlias = str | os.PathLike[str]


class ShardFolder(Protocol):
    """A folder from which shards are read."""

    location: str

    @property
    def fetch(self) -> Fetch | None:
        """Read ranges of several arrays at once; None if that is not faster."""
        ...

    def read_bytes(self, name: str) -> bytes:
        """Return the content of a file, by its path in the folder; raise DataError if it cannot be read."""
        ...

    def exists(self, name: str) -> bool:
        """Return whether there is a file or folder of this name."""
        ...

    def size(self, name: str) -> int:
        """Return the bytes of a file; raise DataError if it is missing."""
        ...

    def local_copy(self, name: str) -> Path | None:
        """Return the local path of a small folder, or None without it; one behind a URL is copied."""
        ...

    def array(self, name: str, dtype: str, count: int, *, checks: Checks | None = None) -> ArrayFile:
        """Return the array in a file, whose size :meth:`check` may check.

        ``checks`` are the checks of the file, for readers over a network.
        """
        ...

    def check(self, files: Iterable[ArrayFile]) -> None:
        """Raise DataError if a file has another size than was given; local files were checked before."""
        ...

    def names(self, suffix: str) -> list[str]:
        """Return the sorted paths of the files with a suffix, at any depth."""
        ...


class Checks(Protocol):
    """The CRC-32 of each block of a file, which are known from its folder."""

    identity: str  # the hash of the checks

    def of_block(self, block: int) -> int: ...


class LocalFolder:
    """A folder on a local disk, whose arrays are memory-mapped; see :class:`ShardFolder`."""

    fetch: Fetch | None = None

    def __init__(self, folder: Location) -> None:
        self.location = os.fspath(folder)
        self._folder = Path(folder).expanduser()
        self._files = MappedFiles()

    def read_bytes(self, name: str) -> bytes:
        path = self._folder / name
        try:
            return path.read_bytes()
        except OSError as error:
            raise DataError(f"'{path}' cannot be read ({error})") from error

    def exists(self, name: str) -> bool:
        return (self._folder / name).exists()

    def size(self, name: str) -> int:
        try:
            return (self._folder / name).stat().st_size
        except OSError as error:
            raise DataError(f"'{self._folder / name}' cannot be read ({error.strerror})") from None

    def local_copy(self, name: str) -> Path | None:
        return self._folder / name if self.exists(name) else None

    def array(self, name: str, dtype: str, count: int, *, checks: Checks | None = None) -> MappedFile:
        return self._files.open(self._folder / name, dtype, count)

    def check(self, files: Iterable[ArrayFile]) -> None:
        pass

    def names(self, suffix: str) -> list[str]:
        found = (path for path in self._folder.rglob(f"*{suffix}") if path.is_file())
        return sorted(path.relative_to(self._folder).as_posix() for path in found)


def is_url(location: Location) -> bool:
    """Return whether a location is a URL, such as ``s3://bucket/folder``."""
    scheme, found, _ = os.fspath(location).partition("://")
    return bool(found) and scheme.replace("+", "").replace("-", "").isalnum()
