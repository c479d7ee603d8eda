"""Text columns of Parquet files, row group by row group."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from wordloom.data.files.json import missing_field
from wordloom.data.files.source import Source
from wordloom.data.files.stream import Meter, open_stream
from wordloom.errors import DataError

_ROWS = 256  # rows turned into Python strings at a time


def parquet_rows(
    file: Source,
    names: Sequence[str],
    meter: Meter | None = None,
    *,
    whole_numbers: Sequence[str] = (),
    numbers: Sequence[str] = (),
) -> Iterator[tuple[Any, ...]]:
    """Yield the texts in the columns ``names`` of each row, None where a cell is null.

    Columns in ``whole_numbers`` may also hold integers or booleans, and columns in ``numbers`` any numbers.
    Raises DataError if pyarrow is missing, the file is no Parquet, or a column is missing or of another type.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise DataError(
            "reading .parquet needs the package pyarrow: pip install 'wordloom[parquet]'"
        ) from None

    meter = meter or Meter()
    with tempfile.TemporaryFile() as spooled:
        content: Any = file.path
        if file.compression or file.is_stdin:  # Parquet is read from its end, a stream from its start
            with open_stream(file) as packed:
                shutil.copyfileobj(packed, spooled)
            spooled.seek(0)
            content = spooled
        try:
            table = pq.ParquetFile(content)
            for name in names:
                _check_column(
                    file, table.schema_arrow, name, whole=name in whole_numbers, any_number=name in numbers
                )
            groups = table.metadata.num_row_groups
            for group in range(groups):
                for batch in table.iter_batches(batch_size=_ROWS, row_groups=[group], columns=list(names)):
                    columns = [batch.column(name).to_pylist() for name in names]
                    yield from zip(*columns, strict=True)
                meter.read += sum(
                    table.metadata.row_group(group).column(c).total_compressed_size
                    for c in range(table.metadata.num_columns)
                )
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
