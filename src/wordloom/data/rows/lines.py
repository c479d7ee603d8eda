"""Texts to predict, each with its place for messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from wordloom.data.files.json import fields_or_words
from wordloom.data.files.source import COMPRESSIONS
from wordloom.data.files.stream import Meter
from wordloom.data.rows.labelled import Column, labelled_rows
from wordloom.data.sets.expand import expand
from wordloom.data.text.documents import read_pieces
from wordloom.errors import DataError, position

_TABLES = (".csv", ".tsv")  # whose columns have no usual name
_UNITS: dict[str, Literal["line", "row"]] = {"text": "line", "parquet": "row"}


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
    field: str = "text",
    words: str | None = None,
    encoding_errors: Literal["strict", "replace"] = "strict",
    tables: bool = True,
) -> Iterator[PlacedText]:
    """Yield a text for each line, or for each row of .jsonl, .json and .parquet its ``field``.

    With ``columns``, by name or by number from 1, yield those of each row of a table; two columns are a pair.
    ``header`` is that of :func:`~wordloom.data.labelled_rows`.

    ``words`` names the field of .jsonl and .json objects that may hold a list of words in place of a text.

    ``tables`` is False for a command without ``columns``.  Raises DataError as
    :func:`~wordloom.data.documents` and :func:`~wordloom.data.labelled_rows`.
    """
    if columns is None:
        yield from _by_field(sources, field, words, encoding_errors, tables)
        return
    for row in labelled_rows(
        sources, text=columns, header=header, labels=False, encoding_errors=encoding_errors
    ):
        if len(row.texts) == 1:
            yield PlacedText(row.texts[0], f"{row.place}, column {row.columns[0]!r}")
        else:
            yield PlacedText(row.texts, row.place, row.columns)


def _by_field(
    sources: Sequence[str], field: str, words: str | None, errors: Literal["strict", "replace"], tables: bool
) -> Iterator[PlacedText]:
    for source in sources if tables else ():
        if is_table(source):
            raise DataError(f"'{source}' is a table; say which column holds its texts: --text-column")
    for file in expand(sources):
        file = replace(file, name="standard input") if file.is_stdin else file
        if file.format in ("jsonl", "json"):
            where = file.field if field == "text" else field
            for place, text in fields_or_words(file, where, words, errors, Meter()):
                yield PlacedText(text if isinstance(text, str) else list(text), place)
            continue
        unit: Literal["line", "row", "text"] = _UNITS.get(file.format, "text")
        read = read_pieces([file], field=field, separator="line", encoding_errors=errors, bytes_allowed=False)
        for number, piece in enumerate(read, 1):  # each is whole: a line, or a row
            yield PlacedText(str(piece.text), position(file.name, number, unit=unit))


def is_table(source: str) -> bool:
    """Return whether ``source`` is a .csv or .tsv by its ending, apart from that of a compression."""
    name = source.lower()
    for ending in COMPRESSIONS:
        name = name.removesuffix(ending)
    return name.endswith(_TABLES)
