"""Token shards on disk: a folder of flat arrays, written whole or not at all, read through memory maps.

::

    tokens.bin      ids of all documents, one after another; uint16 when the vocabulary allows, else uint32
    ends.bin        int64 per document: position just past its last token
    bytes.bin       int64 per document: bytes of its text
    origins.bin     int64 pair per document: file, and number within the file
    meta.json       what the arrays are, and the ledger

Everything is little-endian.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from wordloom.data.shards.ledger import Ledger
from wordloom.errors import DataError
from wordloom.files import sync

VERSION = 1
_BLOCK = 1 << 20  # tokens read at a time to check their ids
_CHECKED = 256  # blocks read, of a file of any size
_ARRAYS = ("tokens", "ends", "bytes", "origins")


class TokenShards:
    """The token ids of one part of a corpus, memory-mapped.

    Attributes:
        folder: where the arrays lie.
        fingerprint: sha256 of what they were made from: corpus, tokenizer, part, settings.
        vocab_size, eos_id, pad_id: of the tokenizer.
        ends: ``[documents]`` int64, the position past each document's last token.
        document_bytes: ``[documents]`` int64, bytes of each document's text.
        ledger: the account of reading and tokenizing.
        reused: whether :func:`~wordloom.data.prepare` found them ready.
    """

    folder: Path
    fingerprint: str
    vocab_size: int
    eos_id: int | None
    pad_id: int | None
    ends: NDArray[np.int64]
    document_bytes: NDArray[np.int64]
    ledger: Ledger
    reused: bool

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Opens ``folder``.

        Raises:
            DataError: the folder holds no shards, or they are of another version or damaged.
        """
        self.folder = Path(folder)
        self.reused = False
        try:
            meta: dict[str, Any] = json.loads((self.folder / "meta.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"'{self.folder}' holds no token shards ({error}); prepare them again") from error
        if meta.get("version") != VERSION:
            raise DataError(
                f"'{self.folder}' has token shards of version {meta.get('version')}, not {VERSION}; "
                "prepare them again"
            )
        self.fingerprint = meta["fingerprint"]
        self.vocab_size, self.eos_id, self.pad_id = meta["vocab_size"], meta["eos_id"], meta["pad_id"]
        self.ledger = Ledger.from_dict(meta["ledger"])
        self.sources: list[str] = meta["sources"]
        arrays = {name: self._map(name, meta["arrays"][name]) for name in _ARRAYS}
        self._ids: NDArray[Any] = arrays["tokens"]
        self.ends = arrays["ends"]
        self.document_bytes = arrays["bytes"]
        self._origins: NDArray[np.int64] = arrays["origins"].reshape(-1, 2)
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
        """Raise DataError for an id outside the vocabulary, found in evenly spaced blocks of a large file."""
        stride = _BLOCK * max(1, len(self) // (_BLOCK * _CHECKED))
        for at in range(0, len(self), stride):
            largest = int(self._ids[at : at + _BLOCK].max())
            if largest >= self.vocab_size:
                raise DataError(
                    f"'{self.folder / 'tokens.bin'}' is damaged: it holds the id {largest}, and the "
                    f"vocabulary has {self.vocab_size} tokens; prepare it again"
                )

    def __len__(self) -> int:
        """Number of tokens."""
        return int(self._ids.size)

    def __repr__(self) -> str:
        return f"TokenShards({str(self.folder)!r}, documents={self.ends.size}, tokens={len(self)})"

    def tokens(self, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Ids at positions ``start`` to ``stop`` (excluded): a read-only view, uint16 or uint32."""
        stop = len(self) if stop is None else stop
        if not 0 <= start <= stop <= len(self):
            raise DataError(f"tokens({start}, {stop}) lies outside 0..{len(self)}")
        return self._ids[start:stop]

    def document_of(self, position: int) -> int:
        """The number of the document that the token at ``position`` belongs to."""
        if not 0 <= position < len(self):
            raise DataError(f"position {position} lies outside 0..{len(self) - 1}")
        return int(np.searchsorted(self.ends, position, side="right"))

    def document_span(self, document: int) -> tuple[int, int]:
        """First position of ``document``, and the one past its last."""
        return (int(self.ends[document - 1]) if document else 0), int(self.ends[document])

    def origins(self) -> NDArray[np.int64]:
        """``[documents, 2]``: the file of each, and its number within the file."""
        return self._origins

    def document_name(self, document: int) -> str:
        """``file#number`` of ``document``, where number counts the file's documents from 0."""
        source, index = self._origins[document]
        return f"{self.sources[source]}#{index}"


class ShardWriter:
    """Writes shards into a temporary folder; :meth:`finish` makes them appear under their own name."""

    def __init__(self, folder: Path, *, vocab_size: int) -> None:
        self.folder = folder
        self.dtype = np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")
        self.documents = self.tokens = self.bytes = 0
        folder.mkdir(parents=True)
        self._files: dict[str, BinaryIO] = {}
        for name in _ARRAYS:
            self._files[name] = open(folder / f"{name}.bin", "wb")  # noqa: SIM115  closed by finish, discard

    def add(
        self,
        ids: NDArray[Any],
        ends: Sequence[int],
        sizes: Sequence[int],
        origins: Sequence[tuple[int, int]],
    ) -> None:
        """Appends ``ids`` and the documents that end within them, at positions counted from the start."""
        ids.astype(self.dtype, copy=False).tofile(self._files["tokens"])
        np.asarray(ends, "<i8").tofile(self._files["ends"])
        np.asarray(sizes, "<i8").tofile(self._files["bytes"])
        np.asarray(origins, "<i8").tofile(self._files["origins"])
        self.tokens += ids.size
        self.documents += len(ends)
        self.bytes += sum(sizes)

    def finish(self, target: Path, meta: dict[str, Any]) -> None:
        """Writes ``meta``, makes everything durable, and renames the folder to ``target``."""
        counts = {"tokens": self.tokens, "ends": self.documents, "bytes": self.documents}
        counts["origins"] = 2 * self.documents
        dtypes = dict.fromkeys(_ARRAYS, "<i8") | {"tokens": self.dtype.str}
        arrays = {name: {"dtype": dtypes[name], "count": counts[name]} for name in _ARRAYS}
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
            file.close()
        with open(self.folder / "meta.json", "w", encoding="utf-8") as described:
            json.dump({"version": VERSION, **meta, "arrays": arrays}, described, indent=1)
            described.flush()
            os.fsync(described.fileno())
        sync(self.folder)
        self.folder.rename(target)
        sync(target.parent)

    def discard(self) -> None:
        """Removes what was written."""
        for file in self._files.values():
            file.close()
        shutil.rmtree(self.folder, ignore_errors=True)
