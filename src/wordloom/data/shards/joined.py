"""Token shards in many folders, read as one."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from wordloom.data.shards.arrays import ArrayFile, IntArray, JoinedArray
from wordloom.data.shards.folders import ShardFolder
from wordloom.data.shards.index import Index, JoinedPart, Share
from wordloom.data.shards.storage import BLOCK, TokenShards, check_ids
from wordloom.errors import DataError


class JoinedShards(TokenShards):
    """The token shards of several shares of a corpus, one after another.

    Batches over them are those over the shards of the whole corpus, bit for bit.  Opening them checks the
    sizes of the files.  Their content is read when it is needed.

    Raises DataError if a file is missing or has another size than the index says.
    """

    def __init__(self, folder: ShardFolder, index: Index, part: JoinedPart) -> None:
        self.folder = folder.location
        self._folder, self._shares = folder, part.shares
        self.reused = True
        self.fingerprint = part.fingerprint
        self.tokenizer = index.tokenizer
        self.vocab_size, self.eos_id, self.pad_id = index.vocab_size, index.eos_id, index.pad_id
        self.ledger = part.ledger
        self._starts = np.cumsum([0, *(share.documents for share in part.shares)])  # [shares + 1]
        lasts = np.cumsum([share.tokens for share in part.shares]).tolist()
        self._ids_dtype = np.dtype(index.dtype)
        self._checks = [None if each.checks is None else ShareChecks(folder, each) for each in part.shares]
        tokens, ends = self._files("tokens", index.dtype), self._files("ends", "<i8")
        folder.check([*tokens, *ends])
        self._ids = JoinedArray(tokens, index.dtype, fetch=folder.fetch)
        self.ends = JoinedArray(ends, "<i8", added=[0, *lasts[:-1]], lasts=lasts, fetch=folder.fetch)
        if folder.fetch is None:  # over a network, each block is checked
            for checks in filter(None, self._checks):
                checks.verified()
            check_ids(self._ids, self.vocab_size, folder.location)

    def _files(self, name: str, dtype: str) -> list[ArrayFile]:
        """Return the array ``name`` of each share."""
        return [self._file(n, name, dtype) for n in range(len(self._shares))]

    def _file(self, number: int, name: str, dtype: str) -> ArrayFile:
        share, checks, first = self._shares[number], self._checks[number], 0
        for array, itemsize, count in share.arrays(self._ids_dtype.itemsize):
            if array == name:
                found = None if checks is None else ArrayChecks(checks, first)
                return self._folder.array(share.path(f"{name}.bin"), dtype, count, checks=found)
            first += -(-count * itemsize // BLOCK)
        raise ValueError(f"no array {name!r}")

    @cached_property
    def document_bytes(self) -> IntArray:  # type: ignore[override]  # an attribute of one folder
        """[documents], bytes of each document's text."""
        return JoinedArray(self._files("bytes", "<i8"), "<i8", fetch=self._folder.fetch)

    @cached_property
    def origins(self) -> NDArray[np.int64]:  # type: ignore[override]
        """[documents, 2], the file of each document and its number within the file; they are read at once."""
        read = [self._origins(n, 0, share.documents) for n, share in enumerate(self._shares)]
        return np.concatenate(read)

    def _origins(self, number: int, start: int, stop: int) -> NDArray[np.int64]:
        """Return the origins of documents ``start`` to ``stop`` (excluded) of a share, [documents, 2]."""
        share = self._shares[number]
        file = self._file(number, "origins", "<i8")
        origins = np.array(file.read(2 * start, 2 * stop), np.int64).reshape(-1, 2)
        origins[:, 1] += np.where(origins[:, 0] == 0, share.first_document, 0)
        origins[:, 0] += share.first_file
        return origins

    @cached_property
    def sources(self) -> list[str]:  # type: ignore[override]
        """The names of the files, in order."""
        names: list[str] = []
        for share in self._shares:
            names[share.first_file :] = self._sources_of(share)
        return names

    def document_name(self, document: int) -> str:
        """Return ``file#number`` of ``document``; the number counts the file's documents from 0."""
        number = int(self._starts.searchsorted(document, "right")) - 1
        share, local = self._shares[number], document - int(self._starts[number])
        ((file, index),) = self._origins(number, local, local + 1).tolist()
        return f"{self._sources_of(share)[file - share.first_file]}#{index}"

    def _sources_of(self, share: Share) -> list[str]:
        sources: list[str] = json.loads(self._folder.read_bytes(share.path("meta.json")))["sources"]
        return sources


class ShareChecks:
    """The checks of the blocks of a share, read from its folder when the first one is needed."""

    def __init__(self, folder: ShardFolder, share: Share) -> None:
        assert share.checks is not None
        self.identity = share.checks
        self._folder, self._name = folder, share.path("checks.bin")

    @cached_property
    def blocks(self) -> NDArray[np.uint32]:
        """The CRC-32 of each block."""
        return np.frombuffer(self.verified(), "<u4")

    def verified(self) -> bytes:
        """Return the file of the checks; raise DataError if it is not the one that the index knows."""
        content = self._folder.read_bytes(self._name)
        if hashlib.sha256(content).hexdigest() != self.identity:
            raise DataError(
                f"'{self._folder.location}/{self._name}' differs from the index of its folder: the share was "
                "prepared again; merge the folder again"
            )
        return content


class ArrayChecks:
    """The checks of one array of a share, whose first block has the number ``first`` in the share."""

    def __init__(self, share: ShareChecks, first: int) -> None:
        self._share, self._first = share, first
        self.identity = share.identity

    def of_block(self, block: int) -> int:
        """Return the CRC-32 of a block of the array."""
        return int(self._share.blocks[self._first + block])
