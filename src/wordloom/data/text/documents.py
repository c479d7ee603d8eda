"""Read documents from the sources that a user names: text, JSON, Parquet, Wikipedia dumps, the Brown corpus.

A long document arrives in *pieces*, so that a file of any size needs little memory.  Readers drop only rows
that a format does not count as documents (blank lines of a ``.jsonl``, redirects of a Wikipedia dump), and
the ``tally`` counts those.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, AnyStr, NamedTuple

from wordloom.data.files.json import Record, fields_or_words, json_objects
from wordloom.data.files.source import Document, Fields, PathLike, Source, Sources
from wordloom.data.files.stream import (
    BLOCK,
    ENCODING_ERRORS,
    EncodingErrors,
    Meter,
    blocks,
    first_byte,
    split_lines,
    text_blocks,
)
from wordloom.data.files.table import parquet_rows
from wordloom.data.sets.expand import expand
from wordloom.data.text.brown import brown_texts
from wordloom.data.text.wiki import wikipedia_texts
from wordloom.errors import DataError, did_you_mean


class Piece(NamedTuple):
    """A part of a document; the ``last`` piece ends it.  Only an empty document has an empty piece.

    ``cut`` marks a last piece whose document continues in the other part of a split.  ``prefix`` is a special
    token before the document, in its first piece.
    """

    text: str | bytes
    source: str
    index: int  # type: ignore[assignment]  # hides tuple.index
    last: bool = True
    cut: bool = False
    prefix: str = ""


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
        separator: end of a document in plain text: ``"line"``, ``"blank-line"``, ``"file"`` (the default), or
            the text of a line, such as ``<|endoftext|>``.  The line break before it belongs to the separator.
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
    sources: Sources | Iterable[PathLike | Source],
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

    ``tally`` counts dropped rows by reason, and ``meter`` the bytes and documents read.  ``workers`` is the
    number of processes that strip Wikipedia mark-up (default: one per processor).
    """
    _check_settings(separator, encoding_errors)
    tally = Counter() if tally is None else tally
    for file in expand(sources):
        where = file.field if field == "text" else field
        texts: Iterator[tuple[str | bytes, bool]]
        match file.format:
            case "text":
                how = file.separator if separator is None else separator
                texts = _text(file, how, encoding_errors, meter, bytes_allowed=bytes_allowed)
            case "jsonl" | "json":
                fields = fields_or_words(file, where, None, encoding_errors, meter)
                texts = _whole((str(text) for _, text in fields), encoding_errors)
            case "parquet":
                names = [where] if isinstance(where, str) else list(where)
                rows = parquet_rows(file, names, encoding_errors, meter)
                texts = _whole((" ".join(cell or "" for cell in row) for row in rows), encoding_errors)
            case "wikipedia":
                texts = _whole(wikipedia_texts(file, tally, meter, workers=workers), encoding_errors)
            case "brown":
                texts = _whole(brown_texts(file), encoding_errors)
        index = 0
        for text, last in _of_share(file, texts):
            yield Piece(text, file.name, index, last)
            index += last
        if meter is not None:
            meter.documents[file.name] = index


def _of_share(file: Source, texts: Iterator[tuple[str | bytes, bool]]) -> Iterator[tuple[str | bytes, bool]]:
    """Yield ``texts``; an error about a line of a share says from where lines are counted."""
    try:
        yield from texts
    except DataError as error:
        if file.span is None or not (begin := first_byte(file)):
            raise
        raise DataError(f"{error} (lines are counted from byte {begin:,}, where this share begins)") from None


def records(
    sources: Sources, *, encoding_errors: EncodingErrors = "strict", meter: Meter | None = None
) -> Iterator[Record]:
    """Yield the JSON objects of ``.jsonl`` files and ``.json`` lists, for tasks with several fields."""
    for file in expand(sources):
        if file.format not in ("jsonl", "json"):
            raise DataError(f"{file.name}: holds no JSON objects; allowed: .jsonl, or .json with a list")
        yield from json_objects(file, encoding_errors, meter)


def _check_settings(separator: str | None, encoding_errors: str) -> None:
    """Raise DataError for a setting of :func:`pieces` that is not allowed."""
    if encoding_errors not in ENCODING_ERRORS:
        hint = did_you_mean(str(encoding_errors), ENCODING_ERRORS)
        raise DataError(f"encoding_errors (--encoding-errors) is {encoding_errors!r}; {hint}")
    if separator is not None and (not separator.strip() or "\n" in separator):
        raise DataError(
            f"separator (--separator) {separator!r} cannot separate documents; "
            "allowed: 'line', 'blank-line', 'file', or the text of one line"
        )


def joined(pieces: Iterable[Piece]) -> Iterator[Document]:
    """Yield the documents of ``pieces``."""
    text: list[Any] = []
    for piece in pieces:
        text.append(piece.text)
        if piece.last:
            yield Document(type(piece.text)().join(text), piece.source, piece.index)
            text = []


def _whole(texts: Iterator[str], errors: EncodingErrors) -> Iterator[tuple[str | bytes, bool]]:
    for text in texts:
        yield (text.encode() if errors == "bytes" else text), True


# ---------------------------------------------------------------------------------------- plain text


def _text(
    file: Source, separator: str | None, errors: EncodingErrors, meter: Meter | None, *, bytes_allowed: bool
) -> Iterator[tuple[str | bytes, bool]]:
    if errors == "bytes":
        yield from _split(blocks(file, meter), separator, b"", b"\n")
    else:
        yield from _split(text_blocks(file, errors, meter, bytes_allowed=bytes_allowed), separator, "", "\n")


def _split(
    parts: Iterator[AnyStr], separator: str | None, empty: AnyStr, newline: AnyStr
) -> Iterator[tuple[AnyStr, bool]]:
    match separator:
        case None | "file":
            yield from _mark_last(parts, empty)
        case "line":
            for line in split_lines(parts, empty, newline, keep_empty_end=False):
                yield _chomp(line), True
        case "blank-line":
            yield from _paragraphs(split_lines(parts, empty, newline), newline)
        case _:
            mark: Any = separator.encode() if isinstance(empty, bytes) else separator
            yield from _between(split_lines(parts, empty, newline), mark, newline)


def _mark_last(parts: Iterator[AnyStr], empty: AnyStr) -> Iterator[tuple[AnyStr, bool]]:
    held = next(parts, empty)
    for part in parts:
        yield held, False
        held = part
    yield held, True


def _chomp(line: AnyStr) -> AnyStr:
    """Return ``line`` without the carriage return of a Windows line end."""
    return line[:-1] if line[-1:] in ("\r", b"\r") else line


def _paragraphs(lines: Iterator[AnyStr], newline: AnyStr) -> Iterator[tuple[AnyStr, bool]]:
    held: list[AnyStr] = []
    for line in lines:
        if line.strip():
            held.append(line)
        elif held:
            yield _chomp(newline.join(held)), True
            held = []
    if held:
        yield newline.join(held), True


def _between(lines: Iterator[AnyStr], mark: AnyStr, newline: AnyStr) -> Iterator[tuple[AnyStr, bool]]:
    """Yield the documents between lines that equal ``mark``, in pieces.

    The last line is held back, because its line break belongs to a separator that may follow.
    """
    held: list[AnyStr] = []
    size = 0
    fresh, first = True, True  # no piece of this document yet; no document before it
    for line in lines:
        if line == mark or _chomp(line) == mark:
            yield _chomp(newline.join(held)), True
            held, size, fresh, first = [], 0, True, False
            continue
        if size >= BLOCK and _chomp(line):  # the next piece then begins with text, so none is empty
            yield newline.join(held) + newline, False
            held, size, fresh = [], 0, False
        held.append(line)
        size += len(line) + 1
    text = newline.join(held)
    if text or first or not fresh:  # a line break alone after the last separator is not a document
        yield text, True
