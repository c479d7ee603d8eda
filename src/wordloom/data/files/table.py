"""Read the wanted cells of the rows of tables (CSV, TSV, JSON, Parquet), and the lines of a list of texts."""

from __future__ import annotations

import csv
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from wordloom.data.files.json import json_objects, missing_field
from wordloom.data.files.source import COMPRESSIONS, Columns, Source
from wordloom.data.files.stream import REPLACE, EncodingErrors, Meter, blocks, numbered_lines
from wordloom.errors import DataError, position

LISTS = (".txt", ".text")  # a text on each line
_SIDES = ("source", "target")  # two texts without a label are a pair (:mod:`wordloom.data.rows.pairs`)
_COMPARED = 5  # rows below the first that show if it is a header
_USUAL_NAMES = {
    *("text", "text1", "text2", "text_a", "text_b", "sentence", "sentence1", "sentence2", "sentence_a"),
    *("sentence_b", "premise", "hypothesis", "question", "question1", "question2", "query", "passage"),
    *("document", "review", "comment", "content", "source", "target", "label", "labels", "class"),
    *("category", "score"),
}
_LONGEST_FIELD = 1 << 30  # characters; csv's own limit of 131,072 is too low for documents


def cells_of(file: Source, columns: Columns, errors: EncodingErrors) -> Iterator[tuple[int, list[Any]]]:
    """Yield the line number of every row, its texts, and its label and score if they have columns."""
    for role, column in (("label", columns.label), ("score", columns.score)):
        if column is not None and column in columns.texts and file.format != "text":
            raise DataError(
                f"{file.name}: column {column!r} is named for the text and for the {role}; name another for "
                "one of them"
            )
    match file.format:
        case "csv" | "tsv":
            return _separated(file, columns, errors)
        case "parquet":
            return _parquet(file, columns, errors)
        case "text":
            return _list(file, errors)
        case _:
            return _json(file, columns, errors)


def _list(file: Source, errors: EncodingErrors) -> Iterator[tuple[int, list[Any]]]:
    """Yield the number of every line, its text, and the file's name."""
    name = os.path.basename(file.path)
    for ending in (*COMPRESSIONS, *LISTS):
        name = name[: -len(ending)] if name.lower().endswith(ending) else name
    for number, line in numbered_lines(file, errors):
        if not (text := line.strip()):
            raise DataError(f"{position(file.name, number)}: is empty where a text is expected; remove it")
        yield number, [text, name]


def _separated(file: Source, columns: Columns, errors: EncodingErrors) -> Iterator[tuple[int, list[Any]]]:
    """Yield the line number and the wanted cells of every row of a .csv or .tsv."""
    wanted = _wanted(columns)
    named = any(isinstance(column, str) for column in wanted)
    has_header = named if columns.header is None else columns.header
    if named and not has_header:
        names = ", ".join(repr(column) for column in wanted if isinstance(column, str))
        raise DataError(f"{file.name}: without a header no column is called {names}; give its number, from 1")
    tabs = ((n, line.removesuffix("\r").split("\t")) for n, line in numbered_lines(file, errors))
    rows = csv_rows(file, errors) if file.format == "csv" else tabs
    if wanted and not named and columns.header is None:
        rows = _without_names(file, rows, [int(column) - 1 for column in wanted])
    width, places = 0, list[int]()
    for line, row in rows:
        if not width:
            width = len(row)
            places = [_place(column, row, file, columns) for column in wanted]
            if has_header:
                continue
        if len(row) != width:
            fault = "is empty" if row in ([], [""]) else f"has {len(row)} {_fields(len(row))}"
            raise DataError(
                f"{position(file.name, line)}: {fault} where the first line has {width}; correct the file"
                + (" (a .tsv has no quotes: a tab always ends a field)" if file.format == "tsv" else "")
            )
        yield line, [row[place] for place in places]


def _without_names(
    file: Source, rows: Iterator[tuple[int, list[str]]], wanted: list[int]
) -> Iterator[tuple[int, list[str]]]:
    """Yield ``rows``; raise DataError if the first row looks like the names of the columns."""
    start = list(islice(rows, 1 + _COMPARED))
    if start and _are_names(start[0][1], [row for _, row in start[1:]], wanted):
        names = ", ".join(map(repr, start[0][1]))
        raise DataError(
            f"{position(file.name, 1)}: the first row looks like the names of the columns ({names}); to skip "
            "it, say header=True (--header, in a recipe data.header = true), and to read it as a row, "
            "header=False (--no-header, data.header = false)"
        )
    yield from start
    yield from rows


def _are_names(first: list[str], further: list[list[str]], wanted: list[int]) -> bool:
    """Return True if ``first`` has no number, and has a usual name or stands above a column of numbers."""
    if max(wanted) >= len(first) or any(map(_is_number, first)):
        return False
    if any(first[column].strip().lower() in _USUAL_NAMES for column in wanted):
        return True
    rows = [row for row in further if len(row) == len(first)]
    return any(bool(rows) and all(_is_number(row[column]) for row in rows) for column in range(len(first)))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _wanted(columns: Columns) -> list[str | int]:
    return [*columns.texts, *(column for column in (columns.label, columns.score) if column is not None)]


def _fields(n: int) -> str:
    return "field" if n == 1 else "fields"


def _place(column: str | int, first: list[str], file: Source, columns: Columns) -> int:
    """Return the number of the field that ``column`` names."""
    if isinstance(column, int):
        if not 1 <= column <= len(first):
            raise DataError(
                f"{position(file.name, 1)}: has {len(first)} {_fields(len(first))} and no column {column}; "
                f"allowed: 1 to {len(first)}"
            )
        return column - 1
    if first.count(column) > 1:
        raise DataError(f"{position(file.name, 1)}: {first.count(column)} columns are called '{column}'; "
                        "give the number of the one that is meant")  # fmt: skip
    if column not in first:
        raise DataError(_missing(position(file.name, 1), column, first, columns))
    return first.index(column)


def _missing(place: str, column: str, names: Iterable[str], columns: Columns) -> str:
    message = missing_field(place, column, list(names)).partition(" Say which one:")[0]
    message = message.replace("no field", "no column").replace("the fields there", "those there")
    if columns.score is not None:
        return f"{message} Say which one holds the text and which the score"
    one, other = ("text", "label") if columns.label is not None or len(columns.texts) == 1 else _SIDES
    alike = "; of texts that are compared, data.text_column" if (one, other) == _SIDES else ""
    return (
        f"{message} Say which one holds the {one} and which the {other} (in a recipe data.{one}_column and "
        f"data.{other}_column{alike})"
    )


def csv_rows(file: Source, errors: EncodingErrors) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_FIELD))
    reader = csv.reader((line + "\n" for _, line in numbered_lines(file, errors)), strict=True)
    first = 1  # the line where the next row begins; a quoted field may have several lines
    try:
        for row in reader:
            yield first, row
            first = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{position(file.name, first)}: not valid CSV ({error}); correct the file") from None


def _json(file: Source, columns: Columns, errors: EncodingErrors) -> Iterator[tuple[int, list[Any]]]:
    wanted = _names(file, columns)
    for record in json_objects(file, errors, Meter()):
        for name in wanted:
            if not _holds(record.value, name):
                raise DataError(_missing(position(file.name, record.line), name, record.value, columns))
        yield record.line, [_value(record.value, name) for name in wanted]


def _holds(value: Any, name: str) -> bool:
    """Return True if an object has the field; ``a.b`` is also the field b of an object in the field a."""
    first, dot, inner = name.partition(".")
    return name in value or bool(dot and isinstance(value.get(first), dict) and _holds(value[first], inner))


def _value(value: Any, name: str) -> Any:
    """Return the value that :func:`_holds` checks for."""
    first, _, inner = name.partition(".")
    return value[name] if name in value else _value(value[first], inner)


def _parquet(file: Source, columns: Columns, errors: EncodingErrors) -> Iterator[tuple[int, list[Any]]]:
    wanted = _names(file, columns)
    whole, numbers = ([str(name)] if name is not None else [] for name in (columns.label, columns.score))
    rows = parquet_rows(file, wanted, errors, whole_numbers=whole, numbers=numbers)
    for number, row in enumerate(rows, 1):
        yield number, list(row)


def _names(file: Source, columns: Columns) -> list[str]:
    wanted = _wanted(columns)
    for column in wanted:
        if not isinstance(column, str):
            raise DataError(f"{file.name}: its columns have names; say which, not the number {column}")
    return [str(column) for column in wanted]


_ROWS = 256  # rows turned into Python strings at a time


def parquet_rows(
    file: Source,
    names: Sequence[str],
    errors: EncodingErrors = "strict",
    meter: Meter | None = None,
    *,
    whole_numbers: Sequence[str] = (),
    numbers: Sequence[str] = (),
) -> Iterator[tuple[Any, ...]]:
    """Yield the texts in the columns ``names`` of each row, None where a cell is null.

    Columns in ``whole_numbers`` may also hold integers or booleans, and columns in ``numbers`` any numbers.
    Raises DataError if pyarrow is missing, the file is no Parquet, or a column is missing or of another type;
    and for texts that are not UTF-8 unless ``errors`` is "replace".
    """
    meter = meter or Meter()
    first = 1
    with _parquet_file(file) as table:
        for name in names:
            _check_column(
                file, table.schema_arrow, name, whole=name in whole_numbers, any_number=name in numbers
            )
        groups = table.metadata.num_row_groups
        for group in range(groups):
            for batch in table.iter_batches(batch_size=_ROWS, row_groups=[group], columns=list(names)):
                yield from zip(*_values(file, batch, names, first, errors), strict=True)
                first += batch.num_rows
            meter.read += sum(
                table.metadata.row_group(group).column(c).total_compressed_size
                for c in range(table.metadata.num_columns)
            )


def parquet_objects(file: Source, errors: EncodingErrors = "strict") -> Iterator[dict[str, Any]]:
    """Yield each row as an object, with lists and objects in it; raises DataError as :func:`parquet_rows`."""
    first = 1
    with _parquet_file(file) as table:
        names = table.schema_arrow.names
        for batch in table.iter_batches(batch_size=_ROWS):
            for row in zip(*_values(file, batch, names, first, errors), strict=True):
                yield dict(zip(names, row, strict=True))
            first += batch.num_rows


def _values(
    file: Source, batch: Any, names: Sequence[str], first: int, errors: EncodingErrors
) -> list[list[Any]]:
    """Return the values in the columns ``names`` of a batch, whose first row has the number ``first``."""
    columns = []
    for name in names:
        column = batch.column(name)
        try:
            columns.append(column.to_pylist())
        except UnicodeDecodeError:
            columns.append([])
            for number, cell in enumerate(column, first):
                try:
                    columns[-1].append(_decoded(cell, "replace" if errors == "replace" else "strict"))
                except UnicodeDecodeError as error:
                    raise DataError(
                        f"{position(file.name, number)}: column '{name}' is not valid UTF-8 "
                        f"({error.reason}); {REPLACE}"
                    ) from None
    return columns


def _decoded(cell: Any, errors: str) -> Any:
    """Return the value of a cell, which may hold lists and objects; ``errors`` is as for bytes.decode."""
    import pyarrow as pa

    if not cell.is_valid:
        return None
    match cell:
        case pa.StringScalar():
            return cell.as_buffer().to_pybytes().decode("utf-8", errors)
        case pa.DictionaryScalar():
            return _decoded(cell.value, errors)
        case pa.ListScalar() if not isinstance(cell, pa.MapScalar):
            return [_decoded(item, errors) for item in cell.values]
        case pa.StructScalar():
            return {name: _decoded(cell[name], errors) for name in cell}
        case _:
            return cell.as_py()


@contextmanager
def _parquet_file(file: Source) -> Iterator[Any]:
    """Open a file; raise DataError if pyarrow is missing, or where the file is no Parquet."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise DataError("reading .parquet needs the package pyarrow: pip install pyarrow") from None

    with tempfile.TemporaryFile() as spooled:
        content: Any = file.path
        if file.compression or file.is_stdin:  # Parquet is read from its end, a stream from its start
            for block in blocks(file):
                spooled.write(block)
            spooled.seek(0)
            content = spooled
        try:
            table = pq.ParquetFile(content)
            names = table.schema_arrow.names
            if twice := [name for name in names if names.count(name) > 1]:
                raise DataError(f"{file.name}: has the column '{twice[0]}' twice; give each another name")
            yield table
        except (pa.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0]
            raise DataError(f"{file.name}: not a readable Parquet file ({reason}); write it again") from error


def _check_column(file: Source, schema: Any, name: str, *, whole: bool, any_number: bool) -> None:
    """Raise DataError unless the column exists and holds one of the allowed types."""
    from pyarrow import types

    if name not in schema.names:
        raise DataError(missing_field(file.name, name, schema.names))
    kind = schema.field(name).type
    if types.is_dictionary(kind):
        kind = kind.value_type
    if not (
        types.is_string(kind)
        or types.is_large_string(kind)
        or (types.is_integer(kind) and (whole or any_number))
        or (types.is_boolean(kind) and whole)
        or (types.is_floating(kind) and any_number)
    ):
        others = " or whole numbers" if whole else " or numbers" if any_number else ""
        raise DataError(f"{file.name}: column '{name}' holds {kind}, not text (string){others}")
