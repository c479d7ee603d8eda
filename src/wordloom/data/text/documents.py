"""Documents out of files: plain text, JSON lines, JSON lists, Parquet, Wikipedia dumps, the Brown corpus.

A long document arrives in *pieces*, so that one file of any size needs little memory; :func:`documents`
joins them.  Nothing is dropped here except what a format itself calls no document (blank lines of a
``.jsonl``, redirects of a Wikipedia dump), and that is counted in the ``tally``.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any, AnyStr, Literal, NamedTuple, cast

from wordloom.data.files.source import Fields, Source, Sources, expand
from wordloom.data.files.stream import (
    BLOCK,
    ENCODING_ERRORS,
    EncodingErrors,
    Meter,
    blocks,
    decode,
    text_blocks,
)
from wordloom.errors import DataError, did_you_mean, position


class Document(NamedTuple):
    """One document: its text (``bytes`` under ``encoding_errors="bytes"``), file, and number there from 0."""

    text: str | bytes
    source: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody asks of a document


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


class Record(NamedTuple):
    """One JSON object, with the file and the line (``.jsonl``) or list position (``.json``), from 1."""

    value: dict[str, Any]
    source: str
    line: int


def documents(
    sources: Sources,
    *,
    field: Fields = "text",
    separator: str | None = None,
    encoding_errors: EncodingErrors = "strict",
) -> Iterator[Document]:
    """Every document of ``sources``, in order, empty ones included.

    Args:
        sources: files, folders, globs, ``"-"`` (stdin) or named data sets; see :func:`~.sources.expand`.
        field: where a ``.jsonl`` or ``.json`` object or a ``.parquet`` row keeps its text.  Several fields
            are joined by one space.
        separator: what ends a document in plain text.  ``None``: a file is one document.  ``"line"``: each
            line is one.  ``"blank-line"``: blank lines stand between.  Anything else: a line holding
            exactly that, such as ``<|endoftext|>``.  The line break before a separator belongs to it.
        encoding_errors: ``"strict"`` raises on invalid UTF-8, ``"replace"`` puts U+FFFD there, ``"bytes"``
            gives the raw bytes of text files undecoded.

    A named data set's own ``field`` and ``separator`` apply where these are left at their defaults.

    Raises:
        DataError: missing file, glob without a match, binary or wrongly encoded text, a bad JSON line, a
            missing field, truncated compression; each names the file and the place.
    """
    text: list[Any] = []
    for piece in pieces(sources, field=field, separator=separator, encoding_errors=encoding_errors):
        text.append(piece.text)
        if piece.last:
            yield Document(type(piece.text)().join(text), piece.source, piece.index)
            text = []


def pieces(
    sources: Sources | list[Source],
    *,
    field: Fields = "text",
    separator: str | None = None,
    encoding_errors: EncodingErrors = "strict",
    tally: Counter[str] | None = None,
    meter: Meter | None = None,
    workers: int | None = None,
) -> Iterator[Piece]:
    """As :func:`documents`, with documents longer than about 1 MiB handed over in several pieces.

    ``tally`` counts what a format drops, by reason; ``meter`` counts bytes read; ``workers`` is the number
    of processes that strip Wikipedia mark-up (default: one per processor).
    """
    if encoding_errors not in ENCODING_ERRORS:
        hint = did_you_mean(str(encoding_errors), ENCODING_ERRORS)
        raise DataError(f"encoding_errors (--encoding-errors) is {encoding_errors!r}; {hint}")
    if separator is not None and (not separator.strip() or "\n" in separator):
        raise DataError(
            f"separator (--separator) {separator!r} cannot separate documents; "
            "allowed: 'line', 'blank-line', or the text of one line"
        )
    if isinstance(sources, list) and sources and isinstance(sources[0], Source):
        files: list[Source] = sources
    else:
        files = expand(cast(Sources, sources))
    tally = Counter() if tally is None else tally
    for file in files:
        where = file.field if field == "text" else field
        texts: Iterator[tuple[str | bytes, bool]]
        match file.format:
            case "text":
                texts = _text(
                    file, file.separator if separator is None else separator, encoding_errors, meter
                )
            case "jsonl" | "json":
                fields = numbered_fields(file, where, encoding_errors, meter)
                texts = _whole((text for _, text in fields), encoding_errors)
            case "parquet":
                from wordloom.data.files.parquet import parquet_texts

                texts = _whole(parquet_texts(file, where, meter), encoding_errors)
            case "wikipedia":
                from wordloom.data.text.wiki import wikipedia_texts

                texts = _whole(wikipedia_texts(file, tally, meter, workers=workers), encoding_errors)
            case "brown":
                from wordloom.data.text.brown import brown_texts

                texts = _whole(brown_texts(file), encoding_errors)
        index = 0
        for text, last in texts:
            yield Piece(text, file.name, index, last)
            index += last


def records(
    sources: Sources, *, encoding_errors: EncodingErrors = "strict", meter: Meter | None = None
) -> Iterator[Record]:
    """The JSON objects of ``.jsonl`` files and ``.json`` lists, whole: for tasks with more than one field."""
    for file in expand(sources):
        if file.format not in ("jsonl", "json"):
            raise DataError(f"{file.name}: holds no JSON objects; allowed: .jsonl, or .json with a list")
        yield from _objects(file, encoding_errors, meter)


def _whole(texts: Iterator[str], errors: EncodingErrors) -> Iterator[tuple[str | bytes, bool]]:
    for text in texts:
        yield (text.encode() if errors == "bytes" else text), True


# ---------------------------------------------------------------------------------------- plain text


def _text(
    file: Source, separator: str | None, errors: EncodingErrors, meter: Meter | None
) -> Iterator[tuple[str | bytes, bool]]:
    if errors == "bytes":
        yield from _split(blocks(file, meter), separator, b"", b"\n")
    else:
        yield from _split(text_blocks(file, errors, meter), separator, "", "\n")


def _split(
    parts: Iterator[AnyStr], separator: str | None, empty: AnyStr, newline: AnyStr
) -> Iterator[tuple[AnyStr, bool]]:
    match separator:
        case None:
            yield from _mark_last(parts, empty)
        case "line":
            for line in _lines(parts, empty, newline, keep_empty_end=False):
                yield _chomp(line), True
        case "blank-line":
            yield from _paragraphs(_lines(parts, empty, newline), newline)
        case _:
            mark: Any = separator.encode() if isinstance(empty, bytes) else separator
            yield from _between(_lines(parts, empty, newline), mark, newline)


def _mark_last(parts: Iterator[AnyStr], empty: AnyStr) -> Iterator[tuple[AnyStr, bool]]:
    held = next(parts, empty)
    for part in parts:
        yield held, False
        held = part
    yield held, True


def _lines(
    parts: Iterator[AnyStr], empty: AnyStr, newline: AnyStr, *, keep_empty_end: bool = True
) -> Iterator[AnyStr]:
    """Lines without their ``\\n``, each as soon as it is whole.

    Text that ends with one ends with an empty line, which is left out unless it is to be kept.
    """
    held: list[AnyStr] = []
    for part in parts:
        lines: list[AnyStr] = part.split(newline)
        held.append(lines[0])
        if len(lines) > 1:
            yield empty.join(held)
            yield from lines[1:-1]
            held = [lines[-1]]
    rest = empty.join(held)
    if rest or keep_empty_end:
        yield rest


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


# ---------------------------------------------------------------------------------------------- JSON


def numbered_fields(
    file: Source, field: Fields, errors: EncodingErrors, meter: Meter | None
) -> Iterator[tuple[str, str]]:
    """The place of every text in a .jsonl or .json (file, line or item, field), and the text: what stands in
    ``field`` of an object."""
    for place, text in fields_or_words(file, field, None, errors, meter):
        yield place, str(text)


def fields_or_words(
    file: Source, field: Fields, words: str | None, errors: EncodingErrors, meter: Meter | None
) -> Iterator[tuple[str, str | tuple[str, ...]]]:
    """As :func:`numbered_fields`; of an object without ``field`` the list of words in the field ``words``."""
    if file.format == "json":
        values = _json_list(file, errors, meter)
        if values and all(isinstance(value, str) for value in values):
            for n, value in enumerate(values, 1):
                place = position(file.name, n, unit="item")
                yield place, _sound(value, errors, place)
            return
    names = [field] if isinstance(field, str) else list(field)
    last = f", field '{names[0]}'" if len(names) == 1 else ""
    for record in _objects(file, errors, meter):
        place = position(record.source, record.line, unit="line" if file.format == "jsonl" else "item")
        if words is not None and words in record.value and names[0] not in record.value:
            yield f"{place}, field '{words}'", text_list(record.value, words, place, errors)
            continue
        texts = []
        for name in names:
            if name not in record.value:
                raise DataError(missing_field(place, name, record.value))
            value = record.value[name]
            if value is not None and not isinstance(value, str):
                raise DataError(f"{place}: field '{name}' holds a {_kind(value)}, not text")
            texts.append(value or "")
        yield place + last, _sound(" ".join(texts), errors, place)


def text_list(
    value: dict[str, Any], name: str, place: str, errors: EncodingErrors, *, numbers: bool = False
) -> tuple[str, ...]:
    """The list of texts in a field of an object, such as the words of a text; ``numbers`` allows integers."""
    if name not in value:
        raise DataError(missing_field(place, name, value).partition(" Say which one:")[0])
    if not isinstance(value[name], list):
        raise DataError(
            f"{place}, field '{name}': holds a {_kind(value[name])}; it is a list, one for each word"
        )
    found = []
    for n, item in enumerate(value[name]):
        if numbers and isinstance(item, int) and not isinstance(item, bool):
            item = str(item)
        if not isinstance(item, str):
            raise DataError(f"{place}, field '{name}[{n}]': holds a {_kind(item)}, not text")
        if not item.strip():
            raise DataError(f"{place}, field '{name}[{n}]': is empty; give it a text, or take the word out")
        found.append(_sound(item, errors, place))
    return tuple(found)


def missing_field(place: str, name: str, there: Any) -> str:
    """The message for a field that is not among those ``there``."""
    fields = ", ".join(map(str, there)) or "none"
    hint = did_you_mean(name, map(str, there)) if there else ""
    also = f" {hint}" if hint.startswith("did you mean") else ""
    return (
        f"{place}: no field '{name}'; the fields there are: {fields}.{also} "
        'Say which one: field="..." (--field, in a recipe data.field)'
    )


def _sound(text: str, errors: EncodingErrors, place: str) -> str:
    """``text`` without lone surrogates, which JSON can escape (``\\ud800``) and UTF-8 cannot hold."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError as error:
        if errors == "replace":
            return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        raise DataError(
            f"{place}: character {error.start} is half of a surrogate pair, which is no text; "
            'mend the file, or say encoding_errors="replace" (--encoding-errors replace, in a recipe '
            "data.encoding_errors; U+FFFD there)"
        ) from None
    return text


def _objects(file: Source, errors: EncodingErrors, meter: Meter | None) -> Iterator[Record]:
    unit: Literal["line", "item"] = "line" if file.format == "jsonl" else "item"
    values = (
        _json_lines(file, errors, meter)
        if file.format == "jsonl"
        else enumerate(_json_list(file, errors, meter), 1)
    )
    for number, value in values:
        if not isinstance(value, dict):
            raise DataError(
                f"{position(file.name, number, unit=unit)}: holds a {_kind(value)}; each {unit} must be a "
                "JSON object"
            )
        yield Record(value, file.name, number)


def _json_lines(file: Source, errors: EncodingErrors, meter: Meter | None) -> Iterator[tuple[int, Any]]:
    offset = 0
    strict: EncodingErrors = "replace" if errors == "replace" else "strict"
    for number, raw in enumerate(_lines(blocks(file, meter), b"", b"\n"), 1):
        line = decode(raw, strict, file, offset=offset)
        offset += len(raw) + 1
        if number == 1:
            line = line.removeprefix("\ufeff")
        if not line.strip():
            continue
        try:
            value = _parsed(line, position(file.name, number))
        except json.JSONDecodeError as error:
            raise DataError(
                f"{position(file.name, number)}: not valid JSON ({_why(error)} at column {error.colno}); "
                "a .jsonl file holds one object per line"
            ) from None
        yield number, value


def _json_list(file: Source, errors: EncodingErrors, meter: Meter | None) -> list[Any]:
    strict: EncodingErrors = "replace" if errors == "replace" else "strict"
    text = decode(b"".join(blocks(file, meter)), strict, file).removeprefix("\ufeff")
    try:
        value = _parsed(text, file.name)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{position(file.name, error.lineno, error.colno, unit='line')}: not valid JSON ({_why(error)}); "
            "one object per line belongs in a .jsonl file"
        ) from None
    if not isinstance(value, list):
        raise DataError(
            f"{file.name}: holds a {_kind(value)}; a .json corpus is one list of objects or texts"
        )
    return value


def _why(error: json.JSONDecodeError) -> str:
    """What json says is wrong; of some mistakes it ends with the "at" of a place."""
    return error.msg.removesuffix(" at")


def _parsed(text: str, place: str) -> Any:
    """``text`` as JSON; json's own error where it is none, DataError where it is more than can be read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise DataError(
            f"{place}: lists or objects are nested too deeply to be read; leave out what is no text"
        ) from None
    except ValueError as error:
        if isinstance(error, json.JSONDecodeError):
            raise
        raise DataError(
            f"{place}: holds an integer of more than {sys.get_int_max_str_digits():,} digits, which cannot "
            "be read; write it as text or leave it out"
        ) from None


def _kind(value: Any) -> str:
    names = {dict: "JSON object", list: "list", str: "text", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")
