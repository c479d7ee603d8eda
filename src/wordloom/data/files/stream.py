"""Read the decompressed bytes of a file in bounded blocks, and report every failure in one line."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import sys
import zlib
from collections.abc import Iterator
from typing import IO, Any, AnyStr, Literal, TypeAlias, cast

from wordloom.data.files.source import Source
from wordloom.errors import DataError

EncodingErrors: TypeAlias = Literal["strict", "replace", "bytes"]
ENCODING_ERRORS = ("strict", "replace", "bytes")
BLOCK = 1 << 20  # bytes read at a time; longer documents are passed on in pieces
_SNIFF = 8192  # a NUL within these bytes marks a file as binary, as in git and grep

_MAGIC = {
    b"\x1f\x8b": "gzip data: name it .gz",
    b"\xfd7zXZ": "xz data: name it .xz",
    b"BZh": "bzip2 data: name it .bz2",
    b"\x28\xb5\x2f\xfd": "Zstandard data: name it .zst",
    b"PK\x03\x04": "a zip archive (or .docx, .xlsx): unpack it",
    b"PAR1": "Parquet data: name it .parquet",
    b"%PDF": "a PDF: extract its text first",
    b"\xff\xfe": "UTF-16 text: convert it to UTF-8, e.g. `iconv -f UTF-16 -t UTF-8`",
    b"\xfe\xff": "UTF-16 text: convert it to UTF-8, e.g. `iconv -f UTF-16 -t UTF-8`",
    b"SQLite format 3": "an SQLite database",
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"\x7fELF": "a program",
}


class Meter:
    """Counters of the bytes read from disk, before decompression, and of the documents of each file."""

    def __init__(self) -> None:
        self.read = 0
        self.documents: dict[str, int] = {}


class _Metered(io.RawIOBase):
    def __init__(self, raw: IO[bytes], meter: Meter) -> None:
        self._raw = raw
        self._meter = meter

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = cast(io.BufferedReader, self._raw).readinto1(buffer)  # the available bytes of a pipe
        self._meter.read += count
        return count

    def close(self) -> None:
        if not self.closed and self._raw is not getattr(sys.stdin, "buffer", None):
            self._raw.close()
        super().close()


class _Limited(io.RawIOBase):
    """A reader of the next ``size`` bytes."""

    def __init__(self, raw: io.RawIOBase, size: int) -> None:
        self._raw, self._left = raw, size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._raw.readinto(memoryview(buffer)[: self._left]) or 0
        self._left -= count
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Zstd(io.RawIOBase):
    """A reader of Zstandard frames that, unlike the package's own, refuses a truncated file."""

    def __init__(self, raw: IO[bytes]) -> None:
        try:
            import zstandard
        except ImportError:
            raise DataError("reading .zst needs the package zstandard: pip install zstandard") from None
        self._new = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj
        self._raw = raw
        self._frame = self._new()
        self._inside = False  # between the first and the last byte of a frame
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            packed = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame, self._inside = self._new(), False
            packed = packed or self._raw.read(1 << 16)
            if not packed:
                if self._inside:
                    raise EOFError("the last Zstandard frame has no end")
                return 0
            self._inside = True
            self._ready = memoryview(self._frame.decompress(packed))
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


def open_stream(source: Source, meter: Meter | None = None) -> IO[bytes]:
    """Open ``source`` as a readable binary file of its decompressed bytes."""
    try:
        file: IO[bytes] = sys.stdin.buffer if source.is_stdin else open(source.path, "rb")  # noqa: SIM115
    except OSError as error:
        raise DataError(f"{source.name}: cannot be opened: {error.strerror}") from error
    metered: io.RawIOBase = _Metered(file, meter or Meter())
    if source.span is not None:
        start, stop = line_edges(source)
        file.seek(start)
        metered = _Limited(metered, stop - start)
    raw = io.BufferedReader(metered, buffer_size=1 << 18)
    match source.compression:
        case None:
            return raw
        case "gzip":
            return cast(IO[bytes], gzip.open(raw))
        case "xz":
            return cast(IO[bytes], lzma.open(raw))
        case "bz2":
            return cast(IO[bytes], bz2.open(raw))
        case _:
            return io.BufferedReader(_Zstd(raw))


def line_edges(source: Source) -> tuple[int, int]:
    """Return the first byte of the first line of ``source.span``, and the byte after its last line."""
    assert source.span is not None
    with open(source.path, "rb") as file:
        start, stop = (_line_start(file, position) for position in source.span)
    return start, stop


def _line_start(file: IO[bytes], position: int) -> int:
    """Return the first byte at or after ``position`` with which a line begins, or the end of the file."""
    if position == 0:
        return 0
    file.seek(position - 1)
    at = position - 1
    while block := file.read(1 << 16):
        if (found := block.find(b"\n")) >= 0:
            return at + found + 1
        at += len(block)
    return at


def blocks(source: Source, meter: Meter | None = None) -> Iterator[bytes]:
    """Yield ``source`` in blocks of at most :data:`BLOCK` bytes; blocks of standard input may be smaller.

    Raises DataError if the file cannot be read, or its compressed data are truncated or corrupt.
    """
    stream = open_stream(source, meter)
    try:
        while block := _read(stream, source):
            yield block
    finally:
        stream.close()


def _read(stream: IO[bytes], source: Source) -> bytes:
    try:
        return cast(io.BufferedReader, stream).read1(BLOCK) if source.is_stdin else stream.read(BLOCK)
    except DataError:
        raise
    except Exception as error:  # zstandard's own error class cannot be named without importing it
        known = (OSError, EOFError, zlib.error, lzma.LZMAError)
        if not isinstance(error, known) and type(error).__name__ != "ZstdError":
            raise
        fault = f"truncated or corrupt {source.compression} data" if source.compression else "cannot be read"
        raise DataError(f"{source.name}: {fault} ({error}); copy or download it again") from error


def refuse_binary(head: bytes, source: Source, *, bytes_allowed: bool) -> None:
    """Raise DataError if the first bytes of a file, ``head``, are not text.

    With ``bytes_allowed``, the message advises ``encoding_errors="bytes"``.
    """
    nul = head[:_SNIFF].find(b"\0")
    try:
        codecs.utf_8_decode(head[:_SNIFF], "strict", False)
    except UnicodeDecodeError:
        invalid = True
    else:
        invalid = False
    for magic, description in _MAGIC.items():
        # a text may also begin with "BZh" or "PAR1", but a binary file has a NUL or invalid UTF-8
        if head.startswith(magic) and (nul >= 0 or invalid):
            raise DataError(f"{source.name}: not UTF-8 text but {description}")
    if nul >= 0:
        advice = (
            'to take running text as raw bytes, for a byte tokenizer, say encoding_errors="bytes" '
            "(--encoding-errors bytes, in a recipe data.encoding_errors)"
        )
        raise DataError(
            f"{source.name}: binary file, not text (a NUL at byte {nul}); "
            + (advice if bytes_allowed else "give a text file in UTF-8")
        )


#: What errors about invalid UTF-8 tell the user to do.
REPLACE = (
    'convert the file, or say encoding_errors="replace" (--encoding-errors replace, in a recipe '
    "data.encoding_errors; U+FFFD there)"
)


def decode(raw: bytes, errors: EncodingErrors, source: Source, *, offset: int = 0) -> str:
    """Decode ``raw`` as UTF-8; ``offset`` is the position of its first byte in the file, for errors."""
    return _decode(raw, errors, source, offset, final=True)[0]


def _decode(
    raw: bytes, errors: str, source: Source, offset: int, *, final: bool, bytes_allowed: bool = False
) -> tuple[str, int]:
    try:
        return codecs.utf_8_decode(raw, errors, final)
    except UnicodeDecodeError as error:
        content = " of the decompressed content" if source.compression else ""
        raise DataError(
            f"{source.name}: byte {offset + error.start}{content} (0x{raw[error.start]:02x}) is not valid "
            f"UTF-8 ({error.reason}); {REPLACE}"
            + (', or "bytes" for running text and a byte tokenizer' if bytes_allowed else "")
        ) from None


def text_blocks(
    source: Source, errors: EncodingErrors, meter: Meter | None = None, *, bytes_allowed: bool = False
) -> Iterator[str]:
    """Yield ``source`` decoded as UTF-8, block by block, with its line ends, without a byte-order mark.

    With ``bytes_allowed``, error messages advise ``encoding_errors="bytes"``.

    Raises DataError, with file and byte offset, if the file is binary, or if it holds invalid UTF-8 and
    ``errors`` is "strict".
    """
    head, held, offset = b"", b"", first_byte(source)
    for block in blocks(source, meter):
        inside = source.span is not None and source.span[0] > 0
        if len(head) < _SNIFF and not inside:  # the first block of a pipe may be a few bytes
            head += block[:_SNIFF]
            refuse_binary(head, source, bytes_allowed=bytes_allowed)
        raw = held + block
        text, used = _decode(raw, errors, source, offset, final=False, bytes_allowed=bytes_allowed)
        if offset == 0:
            text = text.removeprefix("\ufeff")
        held, offset = raw[used:], offset + used
        if text:
            yield text
    if held:
        yield _decode(held, errors, source, offset, final=True, bytes_allowed=bytes_allowed)[0]


def first_byte(source: Source) -> int:
    """Return the position in the file of the first byte that is read."""
    return 0 if source.span is None else line_edges(source)[0]


def split_lines(
    parts: Iterator[AnyStr], empty: AnyStr, newline: AnyStr, *, keep_empty_end: bool = True
) -> Iterator[AnyStr]:
    """Yield lines without their ``\\n``; ``keep_empty_end`` keeps the empty line after a last ``\\n``."""
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


def numbered_lines(file: Source, errors: EncodingErrors) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file with their numbers from 1; a line break at the end begins no line."""
    held: str | None = None
    number = 0
    for line in split_lines(text_blocks(file, errors), "", "\n"):
        if held is not None:
            number += 1
            yield number, held
        held = line
    if held:
        yield number + 1, held


def check_errors(encoding_errors: str, rows: str) -> None:
    """Raise DataError for an ``encoding_errors`` that the reader of ``rows`` does not take."""
    if encoding_errors not in ("strict", "replace"):
        raise DataError(f"encoding_errors is {encoding_errors!r}; {rows} take 'strict' or 'replace'")
