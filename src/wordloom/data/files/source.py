"""What a user names -- a file, folder, glob, ``-`` or a named data set -- as a list of files to read."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from wordloom.errors import DataError, did_you_mean

# csv and tsv are tables of labelled rows (:mod:`wordloom.data.rows.labelled`), never a corpus of running text
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
# Suffixes that are surely not plain text.  A file named outright with any other suffix is read as text.
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


@dataclass(frozen=True, kw_only=True)
class Source:
    """One file to read: where it lies, what to call it, and how it is written."""

    path: str
    name: str
    format: Format
    compression: str | None = None
    field: Fields = "text"
    separator: str | None = None

    @property
    def is_stdin(self) -> bool:
        return self.path == "-"


def is_stdin(item: PathLike) -> bool:
    """Whether ``item`` stands for standard input: ``-``, or ``-.jsonl`` and so on, which says its format."""
    return os.fspath(item) == "-" or os.fspath(item).startswith("-.")


def expand(sources: Sources, *, skipped: list[str] | None = None) -> list[Source]:
    """The files that ``sources`` stand for, in the order given; a folder's or glob's files sorted by name.

    A source is a file, a folder (its files with a known suffix, at any depth; others are appended to
    ``skipped``), a glob, ``-`` for plain text on standard input (``-.jsonl``, ``-.jsonl.zst`` ... for the
    other formats), or a named data set such as ``tiny-shakespeare`` or ``gutenberg/train``.

    Raises:
        DataError: nothing given, a missing file, a glob without a match, a folder without readable files,
            or a file that is no text.
    """
    given = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
    if not given:
        raise DataError("no source given; name at least one file, folder, glob, data set, or '-' for stdin")
    found = [source for item in given for source in _expand_one(os.fspath(item), skipped)]
    if sum(source.is_stdin for source in found) > 1:
        raise DataError("'-' is given twice; standard input can be read once")
    return found


def _expand_one(given: str, skipped: list[str] | None) -> list[Source]:
    from wordloom.data.sets.info import names_dataset, resolve

    if is_stdin(given):
        return [replace(describe(given), path="-")]
    path = os.path.expanduser(given)
    if names_dataset(given):
        if os.path.exists(path):
            raise DataError(
                f"'{given}' is a named data set and also a path here; write './{given}' for the path, "
                "or work in another folder for the data set"
            )
        return resolve(given)
    if os.path.isdir(path):
        return _folder(path, skipped)
    if os.path.exists(path):
        return [describe(path)]
    if glob.has_magic(path):
        if not (found := _matches(path, skipped)):
            raise DataError(
                f"no file matches '{given}'; check the pattern (quote it, so the shell leaves it)"
            )
        return found
    raise DataError(_missing(given))


def _matches(pattern: str, skipped: list[str] | None) -> list[Source]:
    """The files of a glob, each once: ``**`` matches a folder and what lies in it, and follows links."""
    found: dict[str, Source] = {}
    visited = set()
    for match in sorted(glob.glob(pattern, recursive=True)):
        if (real := os.path.realpath(match)) not in visited:
            visited.add(real)
            for source in _folder(match, skipped) if os.path.isdir(match) else [describe(match)]:
                found.setdefault(os.path.realpath(source.path), source)
    return list(found.values())


def _folder(folder: str, skipped: list[str] | None) -> list[Source]:
    found = []
    visited = set()  # a link may lead back to where it lies, or to what is visited anyway
    for directory, folders, files in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(directory)) in visited:
            folders.clear()
            continue
        visited.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(name for name in files if not name.startswith(".")):
            path = os.path.join(directory, name)
            if _suffixes(name)[0] in FORMATS:
                found.append(describe(path))
            elif skipped is not None:
                skipped.append(path)
    if not found:
        raise DataError(
            f"folder '{folder}' holds no file to read; allowed: {', '.join(FORMATS)}, "
            f"each also compressed ({', '.join(COMPRESSIONS)})"
        )
    return found


def describe(path: str) -> Source:
    """Format and compression of the file at ``path``, from its name."""
    suffix, compression = _suffixes(path)
    if suffix in _REFUSED:
        raise DataError(f"'{path}' is {_REFUSED[suffix]}")
    return Source(path=path, name=path, format=FORMATS.get(suffix, "text"), compression=compression)


def _suffixes(path: str) -> tuple[str, str | None]:
    """``("...", compression)`` of a name: ``a.jsonl.gz`` is ``(".jsonl", "gzip")``."""
    name = os.path.basename(path).lower()
    stem, last = os.path.splitext(name)
    if last in COMPRESSIONS:
        return os.path.splitext(stem)[1], COMPRESSIONS[last]
    return last, None


def _missing(given: str) -> str:
    from wordloom.data.sets.catalogue import DATASETS

    name = given.partition("/")[0]
    hint = did_you_mean(name, DATASETS)
    near = hint if hint.startswith("did you mean") else "see `wordloom data list` for the named data sets"
    if os.sep not in given:
        return f"no file, folder or named data set '{given}'; {near}"
    parent = Path(given).parent
    here = sorted(p.name for p in parent.iterdir()) if parent.is_dir() else None
    if here is None:
        return f"no file '{given}': the folder '{parent}' does not exist; {near}"
    hint = did_you_mean(Path(given).name, here) if here else ""
    return f"no file '{given}'" + (f"; {hint}" if hint.startswith("did you mean") else f"; {near}")
