"""Files of vectors are written whole or not at all, and read whether packed by gzip or not; what is wrong
with one is said with its name."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from wordloom.errors import VectorError
from wordloom.files import whole_file

__all__ = ["encoded", "naming", "new_file", "opened", "written"]


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """A file to read, unpacked where it is packed."""
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        if not packed:
            yield raw
            return
        with gzip.GzipFile(fileobj=raw) as file:
            yield file  # type: ignore[misc]


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Says of which file an error is."""
    try:
        yield
    except VectorError as error:
        raise VectorError(f"'{path}': {error}") from None


def encoded(word: str, forbidden: str, name: str, errors: str = "strict") -> bytes:
    """The bytes of a word that the file ``name`` can keep, as it cannot those with ``forbidden`` letters.

    ``errors="surrogateescape"`` restores bytes that are not UTF-8.
    """
    if not word or any(letter in word for letter in forbidden):
        raise VectorError(f"the word {word!r} is empty or holds a space or line break: {name} cannot keep it")
    try:
        return word.encode("utf-8", errors)
    except UnicodeEncodeError:
        raise VectorError(f"the word {word!r} is half a character: {name} cannot keep it") from None


@contextmanager
def written(folder: Path) -> Iterator[None]:
    """Makes the folder; what the system refuses is one clear error."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise VectorError(
            f"cannot write to '{folder}': {error.strerror or error}; choose another place"
        ) from error


@contextmanager
def new_file(path: Path) -> Iterator[Any]:
    """A :func:`~wordloom.files.whole_file`, compressed by gzip where the name ends in .gz.

    Raises VectorError for what the system refuses.
    """
    with written(path.parent), whole_file(path) as raw, ExitStack() as packing:
        if path.suffix == ".gz":
            yield packing.enter_context(gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0))
        else:
            yield raw
