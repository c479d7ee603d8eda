"""JSON objects and texts of ``.jsonl`` files and ``.json`` lists, each with its place in the file."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

from wordloom.data.files.source import Fields, Source
from wordloom.data.files.stream import EncodingErrors, Meter, blocks, decode, first_byte, split_lines
from wordloom.errors import DataError, did_you_mean, position


class Record(NamedTuple):
    """One JSON object, with the file and the line (``.jsonl``) or list position (``.json``), from 1."""

    value: dict[str, Any]
    source: str
    line: int


def fields_or_words(
    file: Source, field: Fields, words: str | None, errors: EncodingErrors, meter: Meter | None
) -> Iterator[tuple[str, str | tuple[str, ...]]]:
    """Yield the place (file, line or item, field) and the text of each object of a .jsonl or .json file.

    For an object without ``field``, yield the list of words in the field called ``words``.
    """
    values = None
    if file.format == "json":
        values = _json_list(file, errors, meter)
        if values and all(isinstance(value, str) for value in values):
            for n, value in enumerate(values, 1):
                place = position(file.name, n, unit="item")
                yield place, valid_text(value, errors, place)
            return
    names = [field] if isinstance(field, str) else list(field)
    last = f", field '{names[0]}'" if len(names) == 1 else ""
    for record in json_objects(file, errors, meter, values):
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
                raise DataError(f"{place}: field '{name}' holds a {json_type(value)}, not text")
            texts.append(value or "")
        yield place + last, valid_text(" ".join(texts), errors, place)


def text_list(
    value: dict[str, Any], name: str, place: str, errors: EncodingErrors, *, numbers: bool = False
) -> tuple[str, ...]:
    """Return the list of texts in a field of an object, such as its words; ``numbers`` allows integers."""
    if name not in value:
        raise DataError(missing_field(place, name, value).partition(" Say which one:")[0])
    if not isinstance(value[name], list):
        raise DataError(
            f"{place}, field '{name}': holds a {json_type(value[name])}; it is a list, one for each word"
        )
    texts = []
    for n, item in enumerate(value[name]):
        if numbers and isinstance(item, int) and not isinstance(item, bool):
            item = str(item)
        if not isinstance(item, str):
            raise DataError(f"{place}, field '{name}[{n}]': holds a {json_type(item)}, not text")
        if not item.strip():
            raise DataError(f"{place}, field '{name}[{n}]': is empty; give it a text, or take the word out")
        texts.append(valid_text(item, errors, place))
    return tuple(texts)


def missing_field(place: str, name: str, names: Any) -> str:
    """Return the error message for a field that is not among ``names``."""
    fields = ", ".join(map(str, names)) or "none"
    hint = did_you_mean(name, map(str, names)) if names else ""
    also = f" {hint}" if hint.startswith("did you mean") else ""
    return (
        f"{place}: no field '{name}'; the fields there are: {fields}.{also} "
        'Say which one: field="..." (--field, in a recipe data.field)'
    )


def valid_text(text: str, errors: EncodingErrors, place: str) -> str:
    """Return ``text`` without lone surrogates, which JSON can escape (``\\ud800``) and UTF-8 cannot hold."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError as error:
        if errors == "replace":
            return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        raise DataError(
            f"{place}: character {error.start} is half of a surrogate pair, which is not text; "
            'correct the file, or set encoding_errors="replace" (--encoding-errors replace, in a recipe '
            "data.encoding_errors; U+FFFD there)"
        ) from None
    return text


def json_objects(
    file: Source, errors: EncodingErrors, meter: Meter | None, values: list[Any] | None = None
) -> Iterator[Record]:
    """Yield the objects of a file; ``values`` are those of a .json file that is read already."""
    unit: Literal["line", "item"] = "line" if file.format == "jsonl" else "item"
    items: Iterable[tuple[int, Any]]
    if file.format == "jsonl":
        items = _json_lines(file, errors, meter)
    else:
        items = enumerate(_json_list(file, errors, meter) if values is None else values, 1)
    for number, value in items:
        if not isinstance(value, dict):
            place = position(file.name, number, unit=unit)
            raise DataError(f"{place}: holds a {json_type(value)}; each {unit} must be a JSON object")
        yield Record(value, file.name, number)


def _json_lines(file: Source, errors: EncodingErrors, meter: Meter | None) -> Iterator[tuple[int, Any]]:
    offset = begin = first_byte(file)
    strict: EncodingErrors = "replace" if errors == "replace" else "strict"
    for number, raw in enumerate(split_lines(blocks(file, meter), b"", b"\n"), 1):
        line = decode(raw, strict, file, offset=offset)
        offset += len(raw) + 1
        if number == 1 and begin == 0:
            line = line.removeprefix("\ufeff")
        if not line.strip():
            continue
        try:
            value = parse_json(line, position(file.name, number))
        except json.JSONDecodeError as error:
            raise DataError(
                f"{position(file.name, number)}: not valid JSON ({_why(error)} at column {error.colno}); "
                "a .jsonl file holds one object per line"
            ) from None
        yield number, value


def json_value(file: Source, errors: EncodingErrors, meter: Meter | None, advice: str) -> Any:
    """Return the value of a whole file; raise DataError with ``advice`` if it is not valid JSON."""
    strict: EncodingErrors = "replace" if errors == "replace" else "strict"
    text = decode(b"".join(blocks(file, meter)), strict, file).removeprefix("\ufeff")
    try:
        return parse_json(text, file.name)
    except json.JSONDecodeError as error:
        place = position(file.name, error.lineno, error.colno, unit="line")
        raise DataError(f"{place}: not valid JSON ({_why(error)}); {advice}") from None


def _json_list(file: Source, errors: EncodingErrors, meter: Meter | None) -> list[Any]:
    value = json_value(file, errors, meter, "one object per line belongs in a .jsonl file")
    if not isinstance(value, list):
        raise DataError(
            f"{file.name}: holds a {json_type(value)}; a .json corpus is one list of objects or texts"
        )
    return value


def _why(error: json.JSONDecodeError) -> str:
    """Return the json module's message, without a trailing "at"."""
    return error.msg.removesuffix(" at")


def parse_json(text: str, place: str) -> Any:
    """Return the value of a JSON ``text``.

    Raises DataError for a name that an object has twice, for deep nesting, and for huge integers.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            name = Counter(name for name, _ in pairs).most_common(1)[0][0]
            raise DataError(f"{place}: the field {name!r} occurs twice in one object; give it once")
        return found

    try:
        return json.loads(text, object_pairs_hook=unique)
    except RecursionError:
        raise DataError(
            f"{place}: lists or objects are nested too deeply to be read; leave out what is not text"
        ) from None
    except ValueError as error:
        if isinstance(error, json.JSONDecodeError):
            raise
        raise DataError(
            f"{place}: holds an integer of more than {sys.get_int_max_str_digits():,} digits, which cannot "
            "be read; write it as text or leave it out"
        ) from None


def json_type(value: Any) -> str:
    """Return the name of the type of a JSON value, or of a cell of a Parquet file."""
    names: dict[type, str] = {
        dict: "JSON object", list: "list", str: "text", bool: "boolean", type(None): "null", int: "number",
        float: "number", bytes: "value of bytes", tuple: "key and value of a map",
    }  # fmt: skip
    return names.get(type(value), type(value).__name__)
