"""Documents and JSON objects from the sources that a user names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from wordloom.data.files.document import Document
from wordloom.data.files.json import Record, json_objects
from wordloom.data.files.source import Fields, Sources
from wordloom.data.files.stream import EncodingErrors, Meter
from wordloom.data.sets.expand import expand
from wordloom.data.text.documents import Piece, check_settings, read_pieces
from wordloom.errors import DataError


def documents(
    sources: Sources,
    *,
    field: Fields = "text",
    separator: str | None = None,
    encoding_errors: EncodingErrors = "strict",
    bytes_allowed: bool = True,
) -> Iterator[Document]:
    """Every document of ``sources``, in order, empty ones included.

    Args:
        sources: files, folders, globs, ``"-"`` (stdin) or named data sets; see
            :func:`~wordloom.data.sets.expand.expand`.
        field: where a ``.jsonl`` or ``.json`` object or a ``.parquet`` row keeps its text.  Several fields
            are joined by one space.
        separator: what ends a document in plain text.  ``None``: a file is one document.  ``"line"``: each
            line is one.  ``"blank-line"``: blank lines stand between.  Anything else: a line holding
            exactly that, such as ``<|endoftext|>``.  The line break before a separator belongs to it.
        encoding_errors: ``"strict"`` raises on invalid UTF-8, ``"replace"`` puts U+FFFD there, ``"bytes"``
            gives the raw bytes of text files undecoded.
        bytes_allowed: whether an error may advise ``"bytes"``.

    A named data set's own ``field`` and ``separator`` apply where these are left at their defaults.

    Raises:
        DataError: missing file, glob without a match, binary or wrongly encoded text, a bad JSON line, a
            missing field, truncated compression; each names the file and the place.
    """
    text: list[Any] = []
    reading: dict[str, Any] = {"field": field, "separator": separator, "encoding_errors": encoding_errors}
    for piece in pieces(sources, bytes_allowed=bytes_allowed, **reading):
        text.append(piece.text)
        if piece.last:
            yield Document(type(piece.text)().join(text), piece.source, piece.index)
            text = []


def pieces(
    sources: Sources,
    *,
    field: Fields = "text",
    separator: str | None = None,
    encoding_errors: EncodingErrors = "strict",
    tally: Counter[str] | None = None,
    meter: Meter | None = None,
    workers: int | None = None,
    bytes_allowed: bool = True,
) -> Iterator[Piece]:
    """As :func:`documents`, with documents longer than about 1 MiB handed over in several pieces.

    ``tally`` counts what a format drops, by reason; ``meter`` counts bytes read; ``workers`` is the number
    of processes that strip Wikipedia mark-up (default: one per processor).
    """
    check_settings(separator, encoding_errors)  # before the sources are looked at
    yield from read_pieces(
        expand(sources),
        field=field,
        separator=separator,
        encoding_errors=encoding_errors,
        tally=tally,
        meter=meter,
        workers=workers,
        bytes_allowed=bytes_allowed,
    )


def records(
    sources: Sources, *, encoding_errors: EncodingErrors = "strict", meter: Meter | None = None
) -> Iterator[Record]:
    """The JSON objects of ``.jsonl`` files and ``.json`` lists, whole: for tasks with more than one field."""
    for file in expand(sources):
        if file.format not in ("jsonl", "json"):
            raise DataError(f"{file.name}: holds no JSON objects; allowed: .jsonl, or .json with a list")
        yield from json_objects(file, encoding_errors, meter)
