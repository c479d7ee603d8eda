"""Read documents from files: plain text, JSON, Parquet, Wikipedia dumps, the Brown corpus.

A long document arrives in *pieces*, so that a file of any size needs little memory.  Nothing is dropped
here except what a format itself calls no document (blank lines of a ``.jsonl``, redirects of a Wikipedia
dump), and that is counted in the ``tally``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, AnyStr, NamedTuple

from wordloom.data.files.json import numbered_fields
from wordloom.data.files.parquet import parquet_texts
from wordloom.data.files.source import Fields, Source
from wordloom.data.files.stream import (
    BLOCK,
    ENCODING_ERRORS,
    EncodingErrors,
    Meter,
    blocks,
    split_lines,
    text_blocks,
)
from wordloom.data.text.brown import brown_texts
from wordloom.data.text.wiki import wikipedia_texts
from wordloom.errors import DataError, did_you_mean


class Piece(NamedTuple):
    """A stretch of a document; the ``last`` one ends it.  Only an empty document has an empty piece.

    ``cut`` is set on a last piece whose document goes on in the other part of a split.  ``prefix`` is a
    special token that stands before a document, in its first piece.
    """

    text: str | bytes
    source: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody asks of a document
    last: bool = True
    cut: bool = False
    prefix: str = ""


def check_settings(separator: str | None, encoding_errors: str) -> None:
    """Raise DataError for a setting of :func:`read_pieces` that is not allowed."""
    if encoding_errors not in ENCODING_ERRORS:
        hint = did_you_mean(str(encoding_errors), ENCODING_ERRORS)
        raise DataError(f"encoding_errors (--encoding-errors) is {encoding_errors!r}; {hint}")
    if separator is not None and (not separator.strip() or "\n" in separator):
        raise DataError(
            f"separator (--separator) {separator!r} cannot separate documents; "
            "allowed: 'line', 'blank-line', or the text of one line"
        )


def read_pieces(
    files: Iterable[Source],
    *,
    field: Fields = "text",
    separator: str | None = None,
    encoding_errors: EncodingErrors = "strict",
    tally: Counter[str] | None = None,
    meter: Meter | None = None,
    workers: int | None = None,
    bytes_allowed: bool = True,
) -> Iterator[Piece]:
    """The documents of ``files``, those longer than about 1 MiB in several pieces.

    ``field``, ``separator`` and ``encoding_errors`` are those of :func:`~wordloom.data.documents`.  ``tally``
    counts what a format drops, by reason; ``meter`` counts bytes read; ``workers`` is the number of processes
    that strip Wikipedia mark-up (default: one per processor); ``bytes_allowed`` says whether an error may
    advise ``encoding_errors="bytes"``.
    """
    check_settings(separator, encoding_errors)
    tally = Counter() if tally is None else tally
    for file in files:
        where = file.field if field == "text" else field
        texts: Iterator[tuple[str | bytes, bool]]
        match file.format:
            case "text":
                how = file.separator if separator is None else separator
                texts = _text(file, how, encoding_errors, meter, bytes_allowed=bytes_allowed)
            case "jsonl" | "json":
                fields = numbered_fields(file, where, encoding_errors, meter)
                texts = _whole((text for _, text in fields), encoding_errors)
            case "parquet":
                texts = _whole(parquet_texts(file, where, meter), encoding_errors)
            case "wikipedia":
                texts = _whole(wikipedia_texts(file, tally, meter, workers=workers), encoding_errors)
            case "brown":
                texts = _whole(brown_texts(file), encoding_errors)
        index = 0
        for text, last in texts:
            yield Piece(text, file.name, index, last)
            index += last


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
        case None:
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
    """``line`` without the carriage return of a Windows line end."""
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
    """Documents between lines that hold ``mark``, in pieces.

    The newest line is held back, as the break after it belongs to a separator if one comes next.
    """
    held: list[AnyStr] = []
    size = 0
    fresh, first = True, True  # nothing of this document was handed over; no document before it
    for line in lines:
        if line == mark or _chomp(line) == mark:
            yield _chomp(newline.join(held)), True
            held, size, fresh, first = [], 0, True, False
            continue
        if size >= BLOCK and _chomp(line):  # the rest then begins with something: no piece is empty
            yield newline.join(held) + newline, False
            held, size, fresh = [], 0, False
        held.append(line)
        size += len(line) + 1
    text = newline.join(held)
    if text or first or not fresh:  # nothing but a line break after the last separator is no document
        yield text, True
