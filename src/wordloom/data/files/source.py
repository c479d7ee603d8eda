"""One file to read: its path, format and compression; and the documents that files hold."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from wordloom.errors import DataError

# csv and tsv are tables of rows, never running text
Format: TypeAlias = Literal["text", "jsonl", "json", "parquet", "wikipedia", "brown", "csv", "tsv"]
PathLike: TypeAlias = str | os.PathLike[str]
Sources: TypeAlias = PathLike | Iterable[PathLike]
Fields: TypeAlias = str | Sequence[str]

FORMATS: dict[str, Format] = {
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".xml": "wikipedia",
}
COMPRESSIONS = {".gz": "gzip", ".xz": "xz", ".bz2": "bz2", ".zst": "zstd"}
# Suffixes that are not plain text.  A file that the user names with any other suffix is read as text.
_REFUSED = {
    ".csv": "a table; write it as .jsonl, one object per line",
    ".tsv": "a table; write it as .jsonl, one object per line",
    ".zip": "an archive; unpack it and name the folder",
    ".tar": "an archive; unpack it and name the folder",
    ".tgz": "an archive; unpack it and name the folder",
    ".7z": "an archive; unpack it and name the folder",
    ".pdf": "a PDF; extract its text first",
    ".docx": "a word-processor file; save it as .txt first",
    ".epub": "an e-book; save it as .txt first",
    ".html": "a web page; extract its text first",
    ".pkl": "a pickle, which is never loaded; write .jsonl instead",
    ".npy": "an array, not text",
    ".bin": "binary; to take raw bytes copy it to a name ending in .txt and say "
    'encoding_errors="bytes" (--encoding-errors bytes, in a recipe data.encoding_errors)',
}


class Columns(NamedTuple):
    """The columns of a table that hold texts, labels and scores, by name or by number from 1.

    Attributes:
        texts: one column, or two for pairs of sentences.
        label: the column of the label, or None.
        header: True if the first line of a .csv or .tsv names its columns.  None means that it does if a
            column is given by name.
        score: the column of a number to predict, or None.
    """

    texts: tuple[str | int, ...]
    label: str | int | None
    header: bool | None = None
    score: str | int | None = None


@dataclass(frozen=True, kw_only=True)
class Source:
    """One file to read.

    Attributes:
        path: the path of its bytes: a temporary file for a pipe, ``"-"`` for standard input.
        name: the name in messages, as the user gave it.
        field, separator, columns: the reader settings of a named data set.
        span: the bytes of an uncompressed file whose lines are read, first and last (excluded); None for the
            whole file.  A line belongs to the span in which it begins.
    """

    path: str
    name: str
    format: Format
    compression: str | None = None
    field: Fields = "text"
    separator: str | None = None
    columns: Columns | None = None
    span: tuple[int, int] | None = None

    @property
    def is_stdin(self) -> bool:
        return self.path == "-"


def is_stdin(item: PathLike) -> bool:
    """Return True for standard input: ``-``, or a name with a format such as ``-.jsonl``."""
    return os.fspath(item) == "-" or os.fspath(item).startswith("-.")


def describe(path: str) -> Source:
    """Return a file of running text with the format and compression of its name.

    Raises DataError for a suffix that is not plain text.
    """
    suffix, compression = suffixes(path)
    if suffix in _REFUSED:
        raise DataError(f"'{path}' is {_REFUSED[suffix]}")
    return Source(path=path, name=path, format=FORMATS.get(suffix, "text"), compression=compression)


def suffixes(path: str) -> tuple[str, str | None]:
    """Return the suffix and the compression of a name: (".jsonl", "gzip") for ``a.jsonl.gz``."""
    stem, last = os.path.splitext(os.path.basename(path).lower())
    return (os.path.splitext(stem)[1], COMPRESSIONS[last]) if last in COMPRESSIONS else (last, None)


class Document(NamedTuple):
    """A document: its text (``bytes`` under ``encoding_errors="bytes"``), its file, and its number from 0."""

    text: str | bytes
    source: str
    index: int  # type: ignore[assignment]  # hides tuple.index


def hash_position(text: str | bytes) -> float:
    """Map a text to a number in [0, 1) by its hash, which divides documents and rows into parts."""
    raw = text.encode() if isinstance(text, str) else text
    return int.from_bytes(hashlib.sha256(raw).digest()[:8], "big") / 2**64
