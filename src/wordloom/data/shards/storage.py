"""Token shards on disk: a folder of flat arrays, written completely or not at all, and memory-mapped.

::

    tokens.bin      ids of all documents, one after another; uint16 when the vocabulary allows, else uint32
    ends.bin        int64 per document: position after its last token
    bytes.bin       int64 per document: bytes of its text
    origins.bin     int64 pair per document: file, and number within the file
    meta.json       types and sizes of the arrays, and the ledger

Everything is little-endian.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from wordloom.data.ledgers import Ledger
from wordloom.errors import DataError

VERSION = 1
_BLOCK = 1 << 20  # tokens read at a time to check their ids
_CHECKED = 256  # blocks read, of a file of any size
_ARRAYS = ("tokens", "ends", "bytes", "origins")


def read_meta(path: Path, version: int, noun: str) -> dict[str, Any]:
    """Return the description of a folder of ``noun``; raise DataError without one, or for another version."""
    try:
        meta: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"'{path.parent}' holds no {noun} ({error}); prepare them again") from error
    if meta.get("version") != version:
        raise DataError(
            f"'{path.parent}' has {noun} of version {meta.get('version')}, not {version}; prepare them again"
        )
    return meta


class TokenShards:
    """The token ids of one part of a corpus, memory-mapped.

    ``vocab_size``, ``eos_id`` and ``pad_id`` are those of the tokenizer.

    Attributes:
        fingerprint: sha256 of corpus, tokenizer, part and settings.
        ends: [documents] int64, the position after each document's last token.
        document_bytes: [documents] int64, bytes of each document's text.
        origins: [documents, 2] int64, the file of each document and its number within the file.
        ledger: the account of reading and tokenizing.
        reused: True if :func:`~wordloom.data.prepare` reused shards of an earlier call.

    Raises DataError if ``folder`` holds no shards, or shards that are damaged or of another version.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.reused = False
        meta = read_meta(self.folder / "meta.json", VERSION, "token shards")
        self.fingerprint: str = meta["fingerprint"]
        self.vocab_size: int = meta["vocab_size"]
        self.eos_id: int | None = meta["eos_id"]
        self.pad_id: int | None = meta["pad_id"]
        self.ledger = Ledger.from_dict(meta["ledger"])
        self.sources: list[str] = meta["sources"]
        arrays = {name: self._map(name, meta["arrays"][name]) for name in _ARRAYS}
        self._ids: NDArray[Any] = arrays["tokens"]
        self.ends: NDArray[np.int64] = arrays["ends"]
        self.document_bytes: NDArray[np.int64] = arrays["bytes"]
        self.origins: NDArray[np.int64] = arrays["origins"].reshape(-1, 2)
        self._check_ids()

    def _map(self, name: str, described: dict[str, Any]) -> NDArray[Any]:
        path, dtype, count = self.folder / f"{name}.bin", np.dtype(described["dtype"]), described["count"]
        size = path.stat().st_size if path.exists() else -1
        if size != count * dtype.itemsize:
            raise DataError(
                f"'{path}' is damaged: {size} bytes where {count * dtype.itemsize} belong; prepare it again"
            )
        # The plain ndarray view slices several times faster than np.memmap itself.
        return np.memmap(path, dtype=dtype, mode="r", shape=(count,)).view(np.ndarray)

    def _check_ids(self) -> None:
        """Raise DataError for an id outside the vocabulary; of a large file, only some blocks are read."""
        stride = _BLOCK * max(1, len(self) // (_BLOCK * _CHECKED))
        for at in range(0, len(self), stride):
            largest = int(self._ids[at : at + _BLOCK].max())
            if largest >= self.vocab_size:
                raise DataError(
                    f"'{self.folder / 'tokens.bin'}' is damaged: it holds the id {largest}, and the "
                    f"vocabulary has {self.vocab_size} tokens; prepare it again"
                )

    def __len__(self) -> int:
        """Return the number of tokens."""
        return int(self._ids.size)

    def __repr__(self) -> str:
        return f"TokenShards({str(self.folder)!r}, documents={self.ends.size}, tokens={len(self)})"

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
        return int(np.searchsorted(self.ends, position, side="right"))

    def document_span(self, document: int) -> tuple[int, int]:
        """Return the first position of ``document``, and the position after its last."""
        return (int(self.ends[document - 1]) if document else 0), int(self.ends[document])

    def document_name(self, document: int) -> str:
        """Return ``file#number`` of ``document``; the number counts the file's documents from 0."""
        source, index = self.origins[document]
        return f"{self.sources[source]}#{index}"


class ShardWriter:
    """A writer of shards into a new folder."""

    def __init__(self, folder: Path, *, vocab_size: int) -> None:
        self.folder = folder
        self.dtype = np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")
        self.documents = self.tokens = self.bytes = 0
        folder.mkdir(parents=True)
        self._files: dict[str, BinaryIO] = {}
        for name in _ARRAYS:
            self._files[name] = open(folder / f"{name}.bin", "wb")  # noqa: SIM115  closed by close

    def add(
        self, ids: NDArray[Any], ends: Sequence[int], sizes: Sequence[int], origins: Sequence[tuple[int, int]]
    ) -> None:
        """Append ``ids`` and the documents that end within them, at positions counted from the start."""
        ids.astype(self.dtype, copy=False).tofile(self._files["tokens"])
        np.asarray(ends, "<i8").tofile(self._files["ends"])
        np.asarray(sizes, "<i8").tofile(self._files["bytes"])
        np.asarray(origins, "<i8").tofile(self._files["origins"])
        self.tokens += ids.size
        self.documents += len(ends)
        self.bytes += sum(sizes)

    def finish(self, meta: dict[str, Any]) -> None:
        """Write ``meta`` and close the files."""
        counts = {"tokens": self.tokens, "ends": self.documents, "bytes": self.documents}
        counts["origins"] = 2 * self.documents
        dtypes = dict.fromkeys(_ARRAYS, "<i8") | {"tokens": self.dtype.str}
        arrays = {name: {"dtype": dtypes[name], "count": counts[name]} for name in _ARRAYS}
        self.close()
        with open(self.folder / "meta.json", "w", encoding="utf-8") as file:
            json.dump({"version": VERSION, **meta, "arrays": arrays}, file, indent=1)

    def close(self) -> None:
        for file in self._files.values():
            file.close()
