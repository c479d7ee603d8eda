"""Token shards on disk: a folder of flat arrays, written completely or not at all, and memory-mapped.

::

    tokens.bin      ids of all documents, one after another; uint16 when the vocabulary allows, else uint32
    ends.bin        int64 per document: position after its last token
    bytes.bin       int64 per document: bytes of its text
    origins.bin     int64 pair per document: file, and number within the file
    checks.bin      uint32 per block of each array above, in this order: the CRC-32 of its bytes
    meta.json       types and sizes of the arrays, and the ledger

Everything is little-endian.  The checks are for readers over a network; folders of earlier versions lack
them.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wordloom.data.ledgers import Ledger
from wordloom.data.shards.arrays import IntArray, map_array
from wordloom.errors import DataError

VERSION = 1
BLOCK = 1 << 18  # bytes of an array that have one check, and that are read over a network at once
_TOKENS = 1 << 20  # tokens read at a time to check their ids
_CHECKED = 256  # times that so many tokens are read, of a file of any size
ARRAYS = ("tokens", "ends", "bytes", "origins")


def read_meta(path: Path, version: int, noun: str) -> dict[str, Any]:
    """Return the description of a folder of ``noun``; raise DataError without one, or for another version."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise DataError(f"'{path.parent}' holds no {noun} ({error}); prepare them again") from error
    return parse_meta(text, str(path.parent), version, noun)


def parse_meta(text: str, folder: str, version: int, noun: str) -> dict[str, Any]:
    """Return the description of a ``folder`` of ``noun``; raise DataError for another version."""
    try:
        meta: dict[str, Any] = json.loads(text)
        if not isinstance(meta, dict):
            raise ValueError("meta.json is no object")
    except ValueError as error:
        raise DataError(f"'{folder}' holds no {noun} ({error}); prepare them again") from error
    if meta.get("version") != version:
        raise DataError(
            f"'{folder}' has {noun} of version {meta.get('version')}, not {version}; prepare them again"
        )
    return meta


def check_ids(ids: IntArray, vocab_size: int, place: str, *, blocks: int | None = None) -> None:
    """Raise DataError for an id outside the vocabulary; of a large array, only some ``blocks`` are read."""
    stride = _TOKENS * max(1, len(ids) // (_TOKENS * (blocks or _CHECKED)))
    for at in range(0, len(ids), stride):
        largest = int(ids[at : at + _TOKENS].max())
        if largest >= vocab_size:
            raise DataError(
                f"'{place}' is damaged: it holds the id {largest}, and the "
                f"vocabulary has {vocab_size} tokens; prepare it again"
            )


class TokenShards:
    """The token ids of one part of a corpus, memory-mapped.

    ``vocab_size``, ``eos_id`` and ``pad_id`` are those of the tokenizer.

    Attributes:
        fingerprint: sha256 of corpus, tokenizer, part and settings.
        tokenizer: the fingerprint of the tokenizer, or None if it is unknown.
        ends: [documents] int64, the position after each document's last token.
        document_bytes: [documents] int64, bytes of each document's text.
        origins: [documents, 2] int64, the file of each document and its number within the file.
        ledger: the account of reading and tokenizing.
        reused: True if :func:`~wordloom.data.prepare` reused shards of an earlier call.

    Raises DataError if ``folder`` holds no shards, or shards that are damaged or of another version.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        path = Path(folder)
        self.folder: Path | str = path  # of joined shards perhaps a URL
        self.reused = False
        meta = read_meta(path / "meta.json", VERSION, "token shards")
        self.fingerprint: str = meta["fingerprint"]
        self.tokenizer: str | None = meta.get("tokenizer")
        self.vocab_size: int = meta["vocab_size"]
        self.eos_id: int | None = meta["eos_id"]
        self.pad_id: int | None = meta["pad_id"]
        self.ledger = Ledger.from_dict(meta["ledger"])
        self.sources: list[str] = meta["sources"]
        arrays = {name: _map(path, name, meta["arrays"][name]) for name in ARRAYS}
        self._ids: IntArray = arrays["tokens"]
        self.ends: IntArray = arrays["ends"]
        self.document_bytes: IntArray = arrays["bytes"]
        self.origins: NDArray[np.int64] = arrays["origins"].reshape(-1, 2)
        check_ids(self._ids, self.vocab_size, str(path / "tokens.bin"))

    def __len__(self) -> int:
        """Return the number of tokens."""
        return int(self._ids.size)

    def __repr__(self) -> str:
        return f"TokenShards({str(self.folder)!r}, documents={self.ends.size}, tokens={len(self)})"

    @property
    def ids(self) -> IntArray:
        """All ids, of which a range is read when it is indexed."""
        return self._ids

    def tokens(self, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Return the ids at positions ``start`` to ``stop`` (excluded), a read-only view, uint16 or 32."""
        stop = len(self) if stop is None else stop
        if not 0 <= start <= stop <= len(self):
            raise DataError(f"tokens({start}, {stop}) lies outside 0..{len(self)}")
        return self._ids[start:stop]

    def document_of(self, position: int) -> int:
        """Return the number of the document that holds the token at ``position``."""
        if not 0 <= position < len(self):
            raise DataError(f"position {position} lies outside 0..{len(self) - 1}")
        return int(self.ends.searchsorted(position, "right"))

    def document_span(self, document: int) -> tuple[int, int]:
        """Return the first position of ``document``, and the position after its last."""
        return (int(self.ends[document - 1]) if document else 0), int(self.ends[document])

    def document_name(self, document: int) -> str:
        """Return ``file#number`` of ``document``; the number counts the file's documents from 0."""
        source, index = self.origins[document]
        return f"{self.sources[source]}#{index}"


def _map(folder: Path, name: str, described: dict[str, Any]) -> NDArray[Any]:
    return map_array(folder / f"{name}.bin", described["dtype"], described["count"])


class ShardWriter:
    """A writer of shards into a new folder."""

    def __init__(self, folder: Path, *, vocab_size: int) -> None:
        self.folder = folder
        self.dtype = np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")
        self.documents = self.tokens = self.bytes = 0
        folder.mkdir(parents=True)
        self._files = {name: _CheckedFile(folder / f"{name}.bin") for name in ARRAYS}

    def add(
        self, ids: NDArray[Any], ends: Sequence[int], sizes: Sequence[int], origins: Sequence[tuple[int, int]]
    ) -> None:
        """Append ``ids`` and the documents that end within them, at positions counted from the start."""
        self._files["tokens"].write(ids.astype(self.dtype, copy=False))
        self._files["ends"].write(np.asarray(ends, "<i8"))
        self._files["bytes"].write(np.asarray(sizes, "<i8"))
        self._files["origins"].write(np.asarray(origins, "<i8"))
        self.tokens += ids.size
        self.documents += len(ends)
        self.bytes += sum(sizes)

    def finish(self, meta: dict[str, Any]) -> None:
        """Write ``meta`` and close the files."""
        counts = {"tokens": self.tokens, "ends": self.documents, "bytes": self.documents}
        counts["origins"] = 2 * self.documents
        dtypes = dict.fromkeys(ARRAYS, "<i8") | {"tokens": self.dtype.str}
        arrays = {name: {"dtype": dtypes[name], "count": counts[name]} for name in ARRAYS}
        self.close()
        checks = np.concatenate([np.array(self._files[name].checks, "<u4") for name in ARRAYS]).tobytes()
        (self.folder / "checks.bin").write_bytes(checks)
        meta = {**meta, "checks": hashlib.sha256(checks).hexdigest()}
        with open(self.folder / "meta.json", "w", encoding="utf-8") as file:
            json.dump({"version": VERSION, **meta, "arrays": arrays}, file, indent=1)

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def verify(folder: Path) -> None:
    """Read all arrays in ``folder``, and raise DataError if the bytes of one have changed."""
    expected = np.fromfile(folder / "checks.bin", "<u4") if (folder / "checks.bin").exists() else None
    recorded = read_meta(folder / "meta.json", VERSION, "token shards").get("checks")
    if expected is None or hashlib.sha256(expected.tobytes()).hexdigest() != recorded:
        raise DataError(f"'{folder / 'checks.bin'}' is missing or damaged; prepare the folder again")
    found = []
    for name in ARRAYS:
        with (folder / f"{name}.bin").open("rb") as file:
            while block := file.read(BLOCK):
                found.append(zlib.crc32(block))
                number = len(found) - 1
                if number >= len(expected) or found[number] != expected[number]:
                    raise DataError(f"'{folder / name}.bin' is damaged; prepare the folder again")
    if len(found) != len(expected):
        raise DataError(f"'{folder}' has fewer bytes than were written; prepare it again")


class _CheckedFile:
    """A new file of which every block of :data:`BLOCK` bytes has a check, and the last one of what it has."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._closed: list[int] = []
        self._open = self._size = 0  # CRC-32 and bytes of the last block

    @property
    def checks(self) -> list[int]:
        """The CRC-32 of each block."""
        return [*self._closed, self._open] if self._size else self._closed

    def write(self, items: NDArray[Any]) -> None:
        content = memoryview(items.tobytes())
        self._file.write(content)
        while content:
            head = content[: BLOCK - self._size]
            self._open, self._size = zlib.crc32(head, self._open), self._size + len(head)
            content = content[len(head) :]
            if self._size == BLOCK:
                self._closed.append(self._open)
                self._open = self._size = 0

    def close(self) -> None:
        self._file.close()
