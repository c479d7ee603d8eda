"""The texts of documents, whether they stand in plain text, in rows, or in a table."""

from __future__ import annotations

import os
from collections.abc import Iterator

from wordloom.data.datasets import files_of, names_dataset
from wordloom.data.labels import labelled_rows
from wordloom.data.readers import documents
from wordloom.data.sources import PathLike, _suffixes
from wordloom.data.streams import EncodingErrors
from wordloom.errors import DataError

__all__ = ["FILE", "texts_of"]

FILE = "file"  # the separator that stands between files alone


def texts_of(
    source: PathLike,
    *,
    separator: str | None = None,
    field: str | int | None = None,
    encoding_errors: EncodingErrors = "strict",
) -> Iterator[str]:
    """The text of each document of ``source``, in order, empty ones included.

    Args:
        source: a file, folder, glob, ``"-"`` or data set as :func:`documents` takes them, or a table or set
            of labelled rows (.tsv, .csv), whose labels are not read.
        separator: what ends a document in plain text: ``"line"``, ``"blank-line"``, the text of one line, or
            ``"file"``: a file is one document.  None: ``"line"``, and of a data set what it says itself.
        field: where rows keep their text: a name, or in a .tsv or .csv a number from 1.  None: what a data
            set says, else ``"text"``.  Several texts of one row are joined by a space.
        encoding_errors: as :func:`documents`.

    Raises:
        DataError: as :func:`documents` and :func:`labelled_rows`, or a separator for a table.
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
    if not names_dataset(source):
        separator = separator or "line"
    elif separator == FILE:
        raise DataError(
            f"'{source}' says itself what its documents are; leave out the separator 'file' (--separator)"
        )
    found = documents(
        source,
        field="text" if field is None else str(field),
        separator=None if separator == FILE else separator,
        encoding_errors=encoding_errors,
    )
    yield from (str(document.text) for document in found)


def _is_table(source: str) -> bool:
    if names_dataset(source):
        info = files_of(source)[0]
        return info.format is None and info.columns is not None
    return _suffixes(source)[0] in (".tsv", ".csv")
