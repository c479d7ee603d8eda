"""The description of a named data set and of its files: path, size and sha256 of the raw content, URL."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files as resources

from wordloom.data.files.source import Columns, Fields, Format

SOURCES = "sources/"  # the folder of files that only serve to write derived files
UNPACKED = {".gz": "gzip", ".xz": "xz"}  # sizes and hashes are those of the decompressed content


@dataclass(frozen=True, kw_only=True)
class DatasetFile:
    """One file of a data set.

    Attributes:
        path: its path below ``$WORDLOOM_DATA``, perhaps compressed.
        sha256, bytes: hash and size of the raw content, without gzip or xz; None if unknown.
        url: the URL of its publication, perhaps not compressed; None for a derived file.
        sources: the files that a derived file is written from (:mod:`~wordloom.data.sets.derived`).
        made_here: True if it is written on this machine, from Python's own documentation.
    """

    path: str
    sha256: str | None
    bytes: int | None
    url: str | None = None
    sources: tuple[DatasetFile, ...] = ()
    made_here: bool = False

    @property
    def download_name(self) -> str:
        """The path in the download folder."""
        stem, suffix = os.path.splitext(self.path)
        return stem if suffix in UNPACKED and not (self.url or "").endswith(suffix) else self.path


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """A named data set.

    Attributes:
        parts: the files of each part, such as ``train``.
        task: the task that it was made for.
        layout: a description of the files, for parsers.
        format: the format for :func:`~wordloom.data.documents`; None if it is not running text.
        field, separator: the reader settings, if they differ from the defaults.
        columns: the columns of a table of labelled or scored rows; None for other sets.
        about_bytes: an approximate size, if the exact size is unknown.
        notes: advice for the user.
    """

    title: str
    task: str
    licence: str
    origin: str
    parts: Mapping[str, tuple[DatasetFile, ...]]
    layout: str
    format: Format | None = None
    columns: Columns | None = None
    field: Fields = "text"
    separator: str | None = None
    citation: str = ""
    about_bytes: int | None = None
    notes: str = ""

    @property
    def files(self) -> tuple[DatasetFile, ...]:
        """The files of all parts."""
        return tuple(file for files in self.parts.values() for file in files)

    @property
    def bytes(self) -> int | None:
        """The raw size of all files, or the approximate size."""
        sizes = [file.bytes for file in self.files]
        if not sizes or None in sizes:
            return self.about_bytes
        return sum(size for size in sizes if size is not None)


_GITHUB = "https://github.com/"

_KNOWN: dict[str, tuple[int | None, str | None]] = {}
for _line in (resources("wordloom.data") / "identities.tsv").read_text(encoding="utf-8").splitlines()[1:]:
    _path, _bytes, _sha256 = _line.split("\t")
    _KNOWN[_path] = int(_bytes) if _bytes else None, _sha256


def file(path: str, origin: str) -> DatasetFile:
    """Return the file at ``path``, with its known size and sha256; ``origin`` is a URL, or below GitHub."""
    size, sha256 = _KNOWN.get(path, (None, None))
    url = origin if "://" in origin else _GITHUB + origin
    return DatasetFile(path=path, bytes=size, sha256=sha256, url=url)


def source(name: str, origin: str) -> DatasetFile:
    """Return a file that only serves to write derived files."""
    return file(SOURCES + name, origin)


def derived(path: str, *sources: DatasetFile) -> DatasetFile:
    """Return the file at ``path``, which is written from ``sources``."""
    size, sha256 = _KNOWN[path]
    return DatasetFile(path=path, bytes=size, sha256=sha256, sources=sources)


def parts(path: str, origin: str, *names: str) -> dict[str, tuple[DatasetFile, ...]]:
    """Return the parts of a set with a file each; ``{}`` in ``path`` and ``origin`` is the name of the part.

    Without ``names`` there is one part, ``all``.
    """
    return {name: (file(path.format(name), origin.format(name)),) for name in names or ("all",)}
