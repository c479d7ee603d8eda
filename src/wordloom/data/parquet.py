"""Text columns of Parquet files, row group by row group."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

from wordloom.data.sources import Fields, Source
from wordloom.data.streams import Meter, open_stream
from wordloom.errors import DataError

_ROWS = 256  # rows turned into Python strings at a time


def parquet_texts(file: Source, field: Fields, meter: Meter | None = None) -> Iterator[str]:
    """The text of each row of ``file``; ``field`` names its column, or several to join by one space.

    Raises:
        DataError: pyarrow is missing, the file is no Parquet, a column is missing or holds no text.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise DataError(
            "reading .parquet needs the package pyarrow: pip install 'wordloom[parquet]'"
        ) from None

    from wordloom.data.readers import missing_field

    names = [field] if isinstance(field, str) else list(field)
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
                if name not in table.schema_arrow.names:
                    raise DataError(missing_field(file.name, name, table.schema_arrow.names))
                kind = table.schema_arrow.field(name).type
                if pa.types.is_dictionary(kind):
                    kind = kind.value_type
                if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                    raise DataError(f"{file.name}: column '{name}' holds {kind}, not text (string)")
            groups = table.metadata.num_row_groups
            for group in range(groups):
                for batch in table.iter_batches(batch_size=_ROWS, row_groups=[group], columns=names):
                    columns = [batch.column(name).to_pylist() for name in names]
                    for row in zip(*columns, strict=True):
                        yield " ".join(text or "" for text in row)
                meter.read += sum(
                    table.metadata.row_group(group).column(c).total_compressed_size
                    for c in range(table.metadata.num_columns)
                )
        except (pa.ArrowException, OSError) as error:
            what = str(error).splitlines()[0]
            raise DataError(f"{file.name}: not a readable Parquet file ({what}); write it again") from error
