"""Texts in plain text, JSON, Parquet or tables: those of documents, and texts with their places."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from wordloom.data.files.json import fields_or_words
from wordloom.data.files.source import FORMATS, Columns, PathLike, Source, suffixes
from wordloom.data.files.stream import EncodingErrors, Meter
from wordloom.data.rows import labelled
from wordloom.data.rows.labelled import (
    Column,
    ColumnChoice,
    columns_of,
    labelled_files,
    labelled_rows,
    table_rows,
)
from wordloom.data.sets.expand import expand, walk
from wordloom.data.sets.fetch import files_of, names_dataset
from wordloom.data.text.documents import documents, pieces
from wordloom.errors import DataError, position

TABLES = {".tsv", ".csv"}  # their columns have no usual name
_ROWS = ("jsonl", "json", "parquet")  # formats of rows whose text has a usual name
_UNITS: dict[str, Literal["line", "row"]] = {"text": "line", "parquet": "row"}


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
    if holds_rows(source):
        if separator is not None:
            raise DataError(
                f"'{source}' holds rows, which nothing separates; leave out the separator (--separator)"
            )
        rows = labelled_rows(source, text=field, encoding_errors=encoding_errors, labels=False)
        yield from (" ".join(row.texts) for row in rows)
        return
    _refuse_misfits(source, separator, field)
    if not names_dataset(source):
        separator = separator or "line"
    found = documents(
        source,
        field="text" if field is None else str(field),
        separator=separator,
        encoding_errors=encoding_errors,
    )
    yield from (str(document.text) for document in found)


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


def holds_rows(source: str) -> bool:
    """Return whether ``source`` is a .csv or .tsv, a folder of them, or a named set of rows."""
    if names_dataset(source):
        info = files_of(source)[0]
        return info.format is None and info.columns is not None
    path = os.path.expanduser(source)
    if os.path.isdir(path):  # a folder with nothing to read is refused later
        found = {suffixes(name)[0] for _, names in walk(path) for name in names}
        return bool(found & TABLES) and not found & set(FORMATS)
    return suffixes(source)[0] in TABLES


class PlacedText(NamedTuple):
    """A text, a pair of texts or a list of words, and its place; ``columns`` are those of a pair."""

    text: str | tuple[str, ...] | list[str]
    place: str
    columns: tuple[Column, ...] = ()

    def refuse_empty(self) -> None:
        """Raise DataError for an empty text, also in a pair."""
        places = [f"{self.place}, column {column!r}" for column in self.columns] or [self.place]
        texts = self.text if isinstance(self.text, tuple) else (self.text,)
        for text, place in zip(texts, places, strict=True):
            if isinstance(text, str) and not text.strip():
                raise DataError(f"{place}: the text is empty; give one, or leave the row out")


def placed_texts(
    sources: Sequence[str],
    *,
    columns: Sequence[Column] | None = None,
    header: bool | None = None,
    field: str | None = None,
    words: str | None = None,
    encoding_errors: Literal["strict", "replace"] = "strict",
    tables: bool = True,
    default: ColumnChoice | None = None,
) -> Iterator[PlacedText]:
    """Yield a text for each line, or for each row of .jsonl, .json and .parquet its ``field``.

    With ``columns``, by name or by number from 1, yield those of each row of a table; two columns are a pair.
    Without ``columns`` and ``field``, rows have the columns of ``default``, if any, as for
    :func:`~wordloom.data.labelled_rows`; ``header`` is also that function's.

    ``words`` names the field of .jsonl and .json objects that may hold a list of words instead of a text.

    ``tables`` is False for a command without ``columns``.  Raises DataError as
    :func:`~wordloom.data.documents` and :func:`~wordloom.data.labelled_rows`.
    """
    if columns is not None:
        choice = ColumnChoice(text=columns, header=header)
        for file, read in labelled_files(sources, choice, labels=False):
            yield from _rows(file, read, encoding_errors)
        return
    for source in sources:
        is_rows = tables and holds_rows(source)
        if is_rows and default is None and not names_dataset(source):
            raise DataError(f"'{source}' is a table; say which column holds its texts: --text-column")
        for file in labelled.tables([source], scored=True) if is_rows else expand([source]):
            if is_rows or (default is not None and field is None and file.format in _ROWS):
                known = columns_of(file, default)
                named = known.header if header is None else header
                yield from _rows(file, Columns(known.texts, None, named), encoding_errors)
            elif header is not None:
                raise DataError(f"'{file.name}': no table is read: leave out --header and --no-header")
            else:
                yield from _fields(file, field or "text", words, encoding_errors)


def single_texts(texts: Iterable[PlacedText]) -> Iterator[PlacedText]:
    """Yield ``texts``; raises DataError for a row of several texts."""
    for text in texts:
        if isinstance(text.text, tuple):
            columns = " and ".join(map(repr, text.columns))
            raise DataError(f"{text.place}: holds texts in the columns {columns}; name one: --text-column")
        yield text


def _rows(file: Source, columns: Columns, errors: EncodingErrors) -> Iterator[PlacedText]:
    for row in table_rows(file, columns, errors):
        if len(row.texts) == 1:
            yield PlacedText(row.texts[0], f"{row.place}, column {row.columns[0]!r}")
        else:
            yield PlacedText(row.texts, row.place, row.columns)


def _fields(
    file: Source, field: str, words: str | None, errors: Literal["strict", "replace"]
) -> Iterator[PlacedText]:
    file = replace(file, name="standard input") if file.is_stdin else file
    if file.format in ("jsonl", "json"):
        where = file.field if field == "text" else field
        for place, text in fields_or_words(file, where, words, errors, Meter()):
            yield PlacedText(text if isinstance(text, str) else list(text), place)
        return
    unit: Literal["line", "row", "text"] = _UNITS.get(file.format, "text")
    read = pieces([file], field=field, separator="line", encoding_errors=errors, bytes_allowed=False)
    for number, piece in enumerate(read, 1):  # each is whole: a line, or a row
        yield PlacedText(str(piece.text), position(file.name, number, unit=unit))
