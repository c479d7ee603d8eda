"""Read texts, one a line, and write their vectors in batches as .npy, .jsonl, .tsv or .parquet."""

from __future__ import annotations

import codecs
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any

import numpy as np

from wordloom.errors import VectorError, did_you_mean, position
from wordloom.vectors.store.word_store import Vector
from wordloom.vectors.whole_files import new_file, opened, reading

FORMATS = (".npy", ".jsonl", ".tsv", ".parquet")

Batches = Iterable[tuple[list[str], Vector]]

_NPY_HEADER = 128  # bytes reserved for the shape, which is known at the end


def embedding_format(path: str | os.PathLike[str]) -> str:
    """Return the suffix of ``path``; raise VectorError if it is not in ``FORMATS``."""
    suffix = Path(path).suffix
    if suffix not in FORMATS:
        hint = did_you_mean(suffix, FORMATS)
        raise VectorError(f"the suffix of '{path}' is not a format of vectors; {hint}")
    return suffix


def read_texts(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield the lines of a text file, which may be gzipped, or of standard input (``-``).

    Raises VectorError if it cannot be read, or for a line that is not UTF-8.
    """
    number = 0
    source = nullcontext(sys.stdin.buffer) if os.fspath(path) == "-" else opened(Path(path))
    try:
        with reading(path, "give a file of texts"), source as file:
            for number, raw in enumerate(file, 1):
                line = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
                yield line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        raise VectorError(f"{position(path, number)}: not UTF-8 ({error.reason}); convert it") from None


def write_embeddings(path: str | os.PathLike[str], batches: Batches, dim: int) -> int:
    """Write vectors [N, dim] batch by batch and return N.

    The suffix chooses the format: ``.npy`` holds float32, ``.tsv`` a line of numbers for each text,
    ``.jsonl`` an object with ``text`` and ``embedding``, and ``.parquet`` a row with these columns.  ``-``
    writes JSON lines to standard output.  Numbers in text are the shortest that round-trip to float32.  The
    file appears under its name when it is complete.

    Raises VectorError for another suffix, or if the file cannot be written.
    """
    if os.fspath(path) == "-":
        return _write_lines(sys.stdout.write, batches, _json_lines)
    suffix = embedding_format(path)
    if suffix == ".parquet":
        return _write_parquet(Path(path), batches)
    with new_file(Path(path)) as file:
        if suffix == ".npy":
            return _write_npy(file, batches, dim)
        lines = _json_lines if suffix == ".jsonl" else _tab_lines
        return _write_lines(lambda text: file.write(text.encode()), batches, lines)


@contextmanager
def parquet_file(path: Path, schema: Any) -> Iterator[Callable[[list[Any]], None]]:
    """Open a new .parquet file and yield a function that appends rows, given as a list of columns.

    The file appears under its name when it is complete.  Raises VectorError without pyarrow.
    """
    pa = _pyarrow()
    from pyarrow.parquet import ParquetWriter

    with new_file(path) as file, ParquetWriter(file, schema) as writer:

        def add(columns: list[Any]) -> None:
            arrays = [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
            writer.write_batch(pa.record_batch(arrays, schema=schema))

        yield add


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise VectorError(".parquet needs pyarrow: pip install pyarrow") from None
    return pyarrow


def _write_parquet(path: Path, batches: Batches) -> int:
    pa, written = _pyarrow(), 0
    with parquet_file(path, pa.schema([("text", pa.string()), ("embedding", pa.list_(pa.float32()))])) as add:
        for texts, rows in batches:
            add([texts, list(rows)])
            written += len(rows)
    return written


def _write_npy(file: IO[bytes], batches: Batches, dim: int) -> int:
    file.write(bytes(_NPY_HEADER))
    written = 0
    for _, rows in batches:
        file.write(np.ascontiguousarray(rows, dtype="<f4").tobytes())
        written += len(rows)
    header = io.BytesIO()
    about: dict[str, Any] = {"descr": "<f4", "fortran_order": False, "shape": (written, dim)}
    np.lib.format.write_array_header_1_0(header, about)
    if len(header.getvalue()) != _NPY_HEADER:  # numpy pads to a multiple of 64
        raise VectorError(
            f"the .npy header of {written:,} vectors of {dim:,} components exceeds {_NPY_HEADER} bytes"
        )
    file.seek(0)
    file.write(header.getvalue())
    return written


def _write_lines(
    write: Callable[[str], object], batches: Batches, lines: Callable[[list[str], Vector], Iterable[str]]
) -> int:
    written = 0
    for texts, rows in batches:
        write("".join(lines(texts, rows)))
        written += len(rows)
    return written


def _tab_lines(_: list[str], rows: Vector) -> Iterator[str]:
    return ("\t".join(map(str, row)) + "\n" for row in rows)


def _json_lines(texts: list[str], rows: Vector) -> Iterator[str]:
    for text, row in zip(texts, rows, strict=True):
        numbers = ", ".join(map(str, row))
        yield f'{{"text": {json.dumps(text, ensure_ascii=False)}, "embedding": [{numbers}]}}\n'


def save_components(path: str | os.PathLike[str], components: Vector) -> None:
    """Write the components [k, D] of :meth:`TextEmbedder.fit` to a .npy file.

    Raises VectorError if it cannot be written.
    """
    with new_file(Path(path)) as file:
        np.save(file, components)


def load_components(path: str | os.PathLike[str]) -> Vector:
    """Read the components [k, D] that :func:`save_components` wrote; raise VectorError if that fails."""
    try:
        components = np.load(path, allow_pickle=False)
        return np.asarray(components, dtype=np.float32)
    except (OSError, ValueError, EOFError, TypeError) as error:
        raise VectorError(
            f"cannot read '{path}' ({error}); give a file that --save-component wrote"
        ) from None
