"""A folder of prepared tokens behind a URL."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from wordloom.data.cache import cache_folder
from wordloom.data.shards.arrays import ArrayFile, Fetch
from wordloom.data.shards.folders import Checks
from wordloom.data.shards.remote.block_cache import BlockCache
from wordloom.data.shards.remote.files import BlockReader, RemoteFile, file_info, version_of
from wordloom.data.shards.remote.requests import file_system, retried
from wordloom.errors import DataError
from wordloom.files import write_bytes

_REQUESTS = 16  # requests for the sizes of files at a time
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


class RemoteFolder:
    """A folder behind a URL, whose arrays are read by byte ranges.

    See :class:`~wordloom.data.shards.folders.ShardFolder`.

    Raises DataError if a package is missing.
    """

    def __init__(self, url: str) -> None:
        self.location = url.rstrip("/")
        self._system, self._path = file_system(url)
        self._reader = BlockReader(self._system, BlockCache())
        self._known: dict[str, dict[str, Any]] = {}  # what a listing said of files
        self._ranges_work = False

    @property
    def fetch(self) -> Fetch:
        return self._reader.fetch

    def _url(self, name: str) -> str:
        return f"{self.location}/{name}" if name else self.location

    def _in_system(self, name: str) -> str:
        return f"{self._path}/{name}" if name else self._path

    def read_bytes(self, name: str) -> bytes:
        try:
            content: bytes = retried(lambda: self._system.cat_file(self._in_system(name)), self._url(name))
        except FileNotFoundError:
            raise DataError(f"'{self._url(name)}' is missing") from None
        return content

    def exists(self, name: str) -> bool:
        if name in self._known:
            return True
        try:
            retried(lambda: self._system.info(self._in_system(name)), self._url(name))
        except FileNotFoundError:
            return False
        return True

    def size(self, name: str) -> int:
        if (size := self._info(name).get("size")) is None:
            raise DataError(f"'{self._url(name)}': the server does not say how many bytes the file has")
        return int(size)

    def local_copy(self, name: str) -> Path | None:
        if not self.exists(f"{name}/{_TOKENIZER[0]}"):
            return None
        found = {
            each: self.read_bytes(f"{name}/{each}") for each in _TOKENIZER if self.exists(f"{name}/{each}")
        }
        digest = hashlib.sha256(b"".join(found[each] for each in sorted(found))).hexdigest()
        folder = cache_folder() / "tokenizers" / digest[:32]
        folder.mkdir(parents=True, exist_ok=True)
        for each, content in found.items():
            write_bytes(folder / each, content)
        return folder

    def array(self, name: str, dtype: str, count: int, *, checks: Checks | None = None) -> RemoteFile:
        version = ""
        if checks is None:  # a listing says other things of a file than a request for the file
            version = version_of(file_info(self._system, self._in_system(name), self._url(name)))
        return RemoteFile(self._reader, self._in_system(name), self._url(name), dtype, count, checks, version)

    def _info(self, name: str) -> dict[str, Any]:
        if name not in self._known:
            self._known[name] = file_info(self._system, self._in_system(name), self._url(name))
        return self._known[name]

    def check(self, files: Iterable[ArrayFile]) -> None:
        remote = [file for file in files if isinstance(file, RemoteFile) and file.size]
        if remote and not self._ranges_work:
            self._check_ranges(remote[0])
        with ThreadPoolExecutor(_REQUESTS, thread_name_prefix="sizes") as threads:
            list(threads.map(self._check_size, remote))

    def _check_ranges(self, file: RemoteFile) -> None:
        """Raise DataError if the server sends a whole file when it is asked for a byte."""
        try:
            content = retried(lambda: self._system.cat_file(file.path, 0, 1), file.url)
        except FileNotFoundError:
            raise DataError(f"'{file.url}' is missing; copy it again, or merge the folder again") from None
        if len(content) != 1:
            raise DataError(
                f"'{file.url}': the server does not send byte ranges; serve the folder with one that does, "
                "such as nginx or an object store, or copy it to a disk"
            )
        self._ranges_work = True

    def _check_size(self, file: RemoteFile) -> None:
        size = file_info(self._system, file.path, file.url).get("size")
        if size is not None and size != file.size:
            raise DataError(
                f"'{file.url}' is damaged: {size} bytes where {file.size} belong; copy it again, or prepare "
                "it again"
            )

    def names(self, suffix: str) -> list[str]:
        try:
            found = retried(lambda: self._system.find(self._path, detail=True), self.location)
        except FileNotFoundError:
            return []
        names = {path.removeprefix(self._path).lstrip("/"): info for path, info in found.items()}
        self._known.update({name: info for name, info in names.items() if info.get("size") is not None})
        return sorted(name for name in names if name.endswith(suffix))
