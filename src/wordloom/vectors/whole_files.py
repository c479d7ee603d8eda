"""Read and write files of vectors: atomic writes, optional gzip, and errors that name the file."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from wordloom.errors import VectorError
from wordloom.files import link_target, whole_file


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading and decompress it if it is gzipped."""
    with path.open("rb") as raw:
        gzipped = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        if not gzipped:
            yield raw
            return
        with gzip.GzipFile(fileobj=raw) as file:
            yield file  # type: ignore[misc]


@contextmanager
def reading(path: str | os.PathLike[str], advice: str) -> Iterator[None]:
    """Turn an error of reading a file in the block into VectorError.

    ``advice`` says which file to give if this one cannot be read.
    """
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise VectorError(f"'{path}' is truncated or damaged ({error}); download it again") from None
    except OSError as error:
        raise VectorError(f"cannot read '{path}': {error.strerror or error}; {advice}") from None


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the file's name to a VectorError raised in the block."""
    try:
        yield
    except VectorError as error:
        raise VectorError(f"'{path}': {error}") from None


def encoded(word: str, forbidden: str, name: str, errors: str = "strict") -> bytes:
    """Return the UTF-8 bytes of a word; ``errors="surrogateescape"`` restores bytes that are not UTF-8.

    Raises VectorError for an empty word and for the ``forbidden`` characters, which ``name`` cannot store.
    """
    if not word or any(letter in word for letter in forbidden):
        raise VectorError(
            f"the word {word!r} is empty or holds a space or line break: {name} cannot store it"
        )
    try:
        return word.encode("utf-8", errors)
    except UnicodeEncodeError:
        raise VectorError(f"the word {word!r} holds half a surrogate pair: {name} cannot store it") from None


@contextmanager
def written(folder: Path) -> Iterator[None]:
    """Create the folder, and turn an OSError in the block into VectorError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise VectorError(
            f"cannot write to '{folder}': {error.strerror or error}; choose another folder"
        ) from error


@contextmanager
def new_file(path: Path) -> Iterator[Any]:
    """Open a :func:`~wordloom.files.whole_file` for writing, gzipped if the name ends in .gz.

    A symbolic link stays, and the file that it leads to is written.

    Raises VectorError if the system cannot write it.
    """
    target = link_target(path)
    with written(target.parent), whole_file(target) as raw, ExitStack() as stack:
        if path.suffix == ".gz":
            yield stack.enter_context(gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0))
        else:
            yield raw
