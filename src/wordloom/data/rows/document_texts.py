"""The texts of documents in plain text, JSON, Parquet or tables."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from wordloom.data.files.source import FORMATS, PathLike, suffixes
from wordloom.data.files.stream import EncodingErrors
from wordloom.data.rows.labelled import labelled_rows
from wordloom.data.sets.expand import expand, walk
from wordloom.data.sets.fetch import files_of, names_dataset
from wordloom.data.text.reading import documents
from wordloom.errors import DataError

TABLES = {".tsv", ".csv"}
FILE = "file"  # the separator that makes each file one document


def texts_of(
    source: PathLike,
    *,
    separator: str | None = None,
    field: str | int | None = None,
    encoding_errors: EncodingErrors = "strict",
) -> Iterator[str]:
    """Yield the text of each document of ``source``, in order, also of empty ones.

    Args:
        source: a source of :func:`documents`, or a table or named set of labelled rows.
        separator: the end of a document in plain text: ``"line"`` (the default), ``"blank-line"``, the text
            of a line, or ``"file"``: each file is a document.  A named set has its own default.
        field: the name of the field or column of the text, or in a .tsv or .csv its number from 1.  Default:
            that of a named set, else ``"text"``.  Several texts of a row are joined by a space.
        encoding_errors: that of :func:`documents`.

    Raises DataError as :func:`documents` and :func:`labelled_rows`; also for a separator without plain text,
    a field with plain text alone, and a folder or glob with tables and other files.
    """
    source = os.fspath(source)
    if _is_table(source):
        if separator is not None:
            raise DataError(
                f"'{source}' holds rows, which nothing separates; leave out the separator (--separator)"
            )
        rows = labelled_rows(source, text=field, encoding_errors=encoding_errors, labels=False)
        yield from (" ".join(row.texts) for row in rows)
        return
    if separator == FILE:
        refuse_file_separator(source)
    if not names_dataset(source):
        _refuse_misfits(source, separator, field)
        separator = separator or "line"
    found = documents(
        source,
        field="text" if field is None else str(field),
        separator=None if separator == FILE else separator,
        encoding_errors=encoding_errors,
    )
    yield from (str(document.text) for document in found)


def refuse_file_separator(sources: PathLike | Sequence[PathLike]) -> None:
    """Raise DataError for a named set among ``sources``, which has its own separator."""
    for source in [sources] if isinstance(sources, str | os.PathLike) else sources:
        if names_dataset(os.fspath(source)):
            raise DataError(
                f"'{source}' says itself what its documents are; leave out the separator 'file' (--separator)"
            )


def _refuse_misfits(source: str, separator: str | None, field: str | int | None) -> None:
    """Raise DataError for tables among other files, and for a separator or field without effect."""
    skipped: list[str] = []
    formats = {file.format for file in expand(source, skipped=skipped)}
    if tables := [name for name in skipped if suffixes(name)[0] in TABLES]:
        raise DataError(
            f"'{source}' holds tables such as '{tables[0]}' beside other files; name the one or the others"
        )
    if field is not None and formats == {"text"}:
        raise DataError(f"'{source}' is plain text, which has no fields; leave out the field (--field)")
    if separator is not None and "text" not in formats:
        raise DataError(
            f"'{source}' holds rows, which nothing separates; leave out the separator (--separator)"
        )


def _is_table(source: str) -> bool:
    if names_dataset(source):
        info = files_of(source)[0]
        return info.format is None and info.columns is not None
    path = os.path.expanduser(source)
    if os.path.isdir(path):  # a folder with nothing to read is refused later
        found = {suffixes(name)[0] for _, names in walk(path) for name in names}
        return bool(found & TABLES) and not found & set(FORMATS)
    return suffixes(source)[0] in TABLES
