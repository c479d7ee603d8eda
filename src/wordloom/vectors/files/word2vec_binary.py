"""word2vec's binary format, memory-mapped: words are read into memory, and vectors when they are used.

A record is a word, a space and D little-endian float32; word2vec.c adds a line break.  Vectors begin at
irregular offsets, so the file is scanned once to find them.  The offsets of a large file are cached in
``$WORDLOOM_CACHE`` (default: the user's cache folder) until the file changes.
"""

from __future__ import annotations

import gzip
import hashlib
import mmap
import os
import re
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from wordloom.data.cache import cache_folder
from wordloom.errors import VectorError
from wordloom.files import whole_file
from wordloom.vectors.files.words import readable
from wordloom.vectors.store.keyed import KeyedVectors
from wordloom.vectors.store.word_store import Key, Vector, lengths, nonzero
from wordloom.vectors.whole_files import naming

Content: TypeAlias = "bytes | mmap.mmap"
Starts: TypeAlias = NDArray[np.int64]
Progress = Callable[[int, int | None], None]

_LONGEST_WORD = 1 << 16  # bytes; a longer word means that the file is damaged
_REPORTED = 10_000  # words between calls of progress
_AT_ONCE = 1 << 22  # bytes of vectors copied at a time
_INDEXED = 1 << 26  # bytes; scanning a smaller file takes a moment
_MIN_AGE = 2_000_000_000  # nanoseconds; a younger file may change without a new timestamp


class MappedVectors(KeyedVectors):
    """Vectors in a memory-mapped binary file, without counts.

    Attributes:
        vectors: [V, D] float32, copied into memory when a query first needs all of them.  Until then, the
            vectors of single words are read from the file.
    """

    def __init__(
        self, words: Iterable[str], content: Content, starts: Starts, dim: int, *, check: bool = True
    ) -> None:
        """
        Args:
            words: V words.
            content: all bytes of the file.
            starts: [V], the offset of each vector in bytes.
            dim: D.
            check: check all vectors for numbers that are not finite.

        Raises VectorError if a word occurs twice, or a vector is not finite.
        """
        self._content, self._starts, self._dim = content, starts, dim
        self._take_words(words, np.broadcast_to(np.float32(0), (len(starts), dim)), None)
        if check:
            self._refuse_non_finite()

    @property
    def vector_size(self) -> int:
        """The number of components D."""
        return self._dim

    @cached_property
    def vectors(self) -> Vector:  # type: ignore[override]
        return _gathered(self._content, self._starts, self._dim)

    def _refuse_non_finite(self) -> None:
        with np.errstate(invalid="ignore"):  # inf - inf
            portions = _portions(self._content, self._starts, self._dim)
            sums = [rows.sum(dtype=np.float64) for _, rows in portions]
        if not np.isfinite(sums).all():
            super()._refuse_non_finite()

    def get_vector(self, key: Key, norm: bool = False) -> Vector:
        """Return the read-only vector [D] of a word, scaled to length 1 if ``norm``."""
        if "vectors" in self.__dict__:
            return super().get_vector(key, norm)
        rows = self._several([key])
        if norm:
            rows /= nonzero(lengths(rows))
        vector: Vector = rows[0]
        vector.setflags(write=False)
        return vector

    def _several(self, keys: Iterable[Key]) -> Vector:
        if "vectors" in self.__dict__:
            return super()._several(keys)
        return _rows(self._content, self._starts[[self.get_index(key) for key in keys]], self._dim)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as KeyedVectors in memory."""
        state = {"vectors": self.vectors, **vars(self)}
        for name in ("_content", "_starts", "_dim"):
            del state[name]
        return KeyedVectors.__new__, (KeyedVectors,), state


def _rows(content: Content, starts: Starts, dim: int) -> Vector:
    """Return a copy [n, D] of the vectors that begin at ``starts`` [n]."""
    windows = sliding_window_view(np.frombuffer(content, dtype=np.uint8), 4 * dim)  # [bytes, 4 D]
    return windows[starts].view("<f4")


def _portions(content: Content, starts: Starts, dim: int) -> Iterator[tuple[slice, Vector]]:
    """Yield all vectors, a block of rows at a time."""
    step = max(1, _AT_ONCE // (4 * dim))
    for first in range(0, len(starts), step):
        some = slice(first, first + step)
        yield some, _rows(content, starts[some], dim)
        _release(content)


def _release(content: Content) -> None:
    """Release the memory of the pages of the file that were read."""
    if isinstance(content, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        content.madvise(mmap.MADV_DONTNEED)


def _gathered(content: Content, starts: Starts, dim: int) -> Vector:
    """Return all vectors [V, D] in memory."""
    out = np.empty((len(starts), dim), dtype=np.float32)
    for some, rows in _portions(content, starts, dim):
        out[some] = rows
    return out


# -- reading ---------------------------------------------------------------------------------------------


def read_binary(
    file: Any,
    path: Path,
    shape: tuple[int, int],
    limit: int | None,
    unicode_errors: str,
    progress: Progress | None,
) -> KeyedVectors:
    """Read a binary file of ``shape`` (words, components), memory-mapped unless it is gzipped.

    Raises:
        VectorError: the file is damaged, with the number of the word; or as :class:`MappedVectors`.
    """
    if isinstance(file, gzip.GzipFile):
        content = file.read()
        words, starts = _readable(*_scan(content, path, shape, limit, progress), unicode_errors, path)
        with naming(path):
            return KeyedVectors(words, _gathered(content, starts, shape[1]))
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # closed with its last array
    index = _Index(path, file) if limit is None and len(mapped) >= _INDEXED else None
    if index is not None and (kept := index.read()) is not None:
        words, starts = _readable(*kept, unicode_errors, path)
        with naming(path):
            return MappedVectors(words, mapped, starts, shape[1], check=False)
    all_words, all_starts = _scan(mapped, path, shape, limit, progress)
    words, starts = _readable(all_words, all_starts, unicode_errors, path)
    with naming(path):
        vectors = MappedVectors(words, mapped, starts, shape[1])
    if index is not None:
        index.write(all_words, all_starts)
    return vectors


def _readable(words: list[str], starts: Starts, errors: str, path: Path) -> tuple[list[str], Starts]:
    """Call :func:`readable`, and select the offsets of the words that remain."""
    words, kept = readable(words, errors, path)
    return words, starts if kept is None else starts[kept]


def _scan(
    content: Content, path: Path, shape: tuple[int, int], limit: int | None, progress: Progress | None
) -> tuple[list[str], Starts]:
    """Return the words and the offsets of their vectors."""
    promised, dim = shape
    wanted = min(promised, limit or promised)
    place = content.find(b"\n") + 1
    if len(content) - place < wanted * (4 * dim + 1):  # before memory is allocated
        raise VectorError(
            f"'{path}' is truncated: {wanted:,} vectors of {dim:,} components do not fit in "
            f"{len(content):,} bytes; download it again"
        )
    # Anything but a record matches to the end, so that the search never starts again.
    record = re.compile(rb"([^ ]{0,%d}) .{%d}|.+" % (_LONGEST_WORD, 4 * dim), re.DOTALL)
    records = record.finditer(content, place)
    raw: list[bytes] = []
    while len(raw) < wanted:
        count = min(_REPORTED, wanted - len(raw))
        portion = [match[1] for match in islice(records, count) if match[1] is not None]
        raw += portion
        _release(content)
        if len(portion) < count:
            raise VectorError(f"'{path}' is truncated or damaged at word {len(raw) + 1:,} of {promised:,}")
        if progress is not None and count == _REPORTED:
            progress(len(raw), wanted)
    ends = place + np.cumsum(np.fromiter(map(len, raw), np.int64, count=len(raw)) + 1 + 4 * dim)
    end = int(ends[-1])
    if limit is None and (left := len(content) - end) and content[end : end + 2] != b"\n":
        raise VectorError(
            f"'{path}' has {left:,} bytes after the {promised:,} words of {dim:,} components that its "
            "first line promises; correct the line, or read with a limit"
        )
    words = b" ".join(raw).decode("utf-8", "surrogateescape").split(" ")  # words hold no space
    # word2vec.c ends each vector with a line break, gensim does not
    return [word.lstrip("\n") for word in words], ends - 4 * dim


class _Index:
    """The cached words and offsets of a file that was scanned and checked completely."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]
        self._path = cache_folder() / "vectors" / f"{name}.npz"
        about = os.fstat(file.fileno())
        self._identity = [about.st_size, about.st_ino, about.st_mtime_ns, about.st_ctime_ns]
        self._old_enough = time.time_ns() - max(about.st_mtime_ns, about.st_ctime_ns) > _MIN_AGE

    def read(self) -> tuple[list[str], Starts] | None:
        """Return words and offsets, or None if there are none for the current file."""
        try:
            with np.load(self._path, allow_pickle=False) as kept:
                if kept["identity"].tolist() != self._identity:
                    return None
                words = kept["words"].tobytes().decode("utf-8", "surrogateescape").split(" ")
                return words, kept["starts"]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None

    def write(self, words: list[str], starts: Starts) -> None:
        """Write words and offsets.  If that fails, the file is scanned again next time."""
        if not self._old_enough:
            return
        names = np.frombuffer(" ".join(words).encode("utf-8", "surrogateescape"), dtype=np.uint8)
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(self._path) as file:
                np.savez(file, identity=np.array(self._identity), words=names, starts=starts)
