"""Description of a named data set and of its files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from wordloom.data.files.source import Columns, Fields, Format

UNPACKED = {".gz": "gzip", ".xz": "xz"}  # compression that is not part of what a file is


@dataclass(frozen=True, kw_only=True)
class DatasetFile:
    """One file of a data set.

    Attributes:
        path: its place below ``$WORDLOOM_DATA``, perhaps compressed.
        sha256: of its raw bytes (after gzip or xz; a ``.bz2`` dump or ``.zip`` counts as it is); ``None``
            where not known.
        bytes: its raw size; ``None`` where not known.
        url: where it is published, perhaps not compressed; ``None`` for a derived file.
        made_here: written on this machine when first asked for, from what Python carries.
    """

    path: str
    sha256: str | None
    bytes: int | None
    url: str | None = None
    made_here: bool = False

    @property
    def download_name(self) -> str:
        """The path of a download below the download folder."""
        stem, suffix = os.path.splitext(self.path)
        return stem if suffix in UNPACKED and not (self.url or "").endswith(suffix) else self.path


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """A named data set.

    Attributes:
        title, licence, origin, citation: in words.
        parts: names of parts, such as ``train``, and the files of each.
        task: what it is made for.
        format: how :func:`~wordloom.data.documents` reads it; ``None`` where it is no running text.
        field, separator: reader settings, where they differ from the defaults.
        layout: what the files hold, for those who parse them.
        columns: where a table of labelled or scored rows keeps what; ``None`` for anything else.
        about_bytes: an approximate size where exact ones are not known.
        notes: what a user must know; for a set that may not be distributed, what to do instead.
    """

    title: str
    task: str
    licence: str
    origin: str
    parts: Mapping[str, tuple[DatasetFile, ...]]
    format: Format | None
    layout: str
    columns: Columns | None = None
    field: Fields = "text"
    separator: str | None = None
    citation: str = ""
    about_bytes: int | None = None
    notes: str = ""

    @property
    def files(self) -> tuple[DatasetFile, ...]:
        """All files, of all parts."""
        return tuple(file for files in self.parts.values() for file in files)

    @property
    def bytes(self) -> int | None:
        """Raw size of all files, or the approximate one."""
        sizes = [file.bytes for file in self.files]
        if not sizes or None in sizes:
            return self.about_bytes
        return sum(size for size in sizes if size is not None)
