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
from wordloom.data.text.documents import Piece, check_settings, joined, read_pieces
from wordloom.errors import DataError


def documents(
    sources: Sources,
    *,
    field: Fields = "text",
    separator: str | None = None,
    encoding_errors: EncodingErrors = "strict",
    bytes_allowed: bool = True,
) -> Iterator[Document]:
    """Yield every document of ``sources``, in order, with the empty ones.

    Args:
        sources: files, folders, globs, ``"-"`` (stdin) or named data sets; see
            :func:`~wordloom.data.sets.expand.expand`.
        field: field of the text in a ``.jsonl`` or ``.json`` object, or column in a ``.parquet``.  Several
            fields are joined by one space.
        separator: end of a document in plain text: ``"line"``, ``"blank-line"``, or the text of a line such
        as
            ``<|endoftext|>``.  The line break before it belongs to the separator.  None: a file is a
            document.
        encoding_errors: ``"strict"`` raises on invalid UTF-8, ``"replace"`` reads U+FFFD, and ``"bytes"``
            returns the raw bytes of text files.
        bytes_allowed: allow error messages to advise ``"bytes"``.

    A named data set's own ``field`` and ``separator`` replace the defaults.

    Raises DataError, with file and place, for a missing file, a glob without a match, binary or wrongly
    encoded text, a bad JSON line, a missing field and truncated compression.
    """
    reading: dict[str, Any] = {"field": field, "separator": separator, "encoding_errors": encoding_errors}
    yield from joined(pieces(sources, bytes_allowed=bytes_allowed, **reading))


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
    """Yield the documents of :func:`documents`; those longer than about 1 MiB come in several pieces.

    See :func:`~wordloom.data.text.documents.read_pieces` for ``tally``, ``meter`` and ``workers``.
    """
    check_settings(separator, encoding_errors)  # before the sources are expanded
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
    """Yield the JSON objects of ``.jsonl`` files and ``.json`` lists, for tasks with several fields."""
    for file in expand(sources):
        if file.format not in ("jsonl", "json"):
            raise DataError(f"{file.name}: holds no JSON objects; allowed: .jsonl, or .json with a list")
        yield from json_objects(file, encoding_errors, meter)
