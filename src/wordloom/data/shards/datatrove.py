"""Read the tokens that datatrove's DocumentTokenizer and its mergers write, where they lie.

::

    NAME.ds             the ids of all documents, little-endian, of 2 or 4 bytes
    NAME.ds.index       uint64 per document: position after its last token
    NAME.ds.metadata    text: "TOKENIZER|BYTES", the number of tokens, and that number for people

The index and the metadata may be missing.  The text of the documents is not there, so its bytes are unknown.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from wordloom.data.ledgers import Ledger
from wordloom.data.shards.arrays import ArrayFile, FileRange, JoinedArray
from wordloom.data.shards.folders import ShardFolder, is_url
from wordloom.data.shards.remote.files import RemoteFile
from wordloom.data.shards.storage import TokenShards, check_ids
from wordloom.errors import DataError

SUFFIX = ".ds"
_REQUESTS = 16  # files opened at a time
_SAMPLE = 1 << 16  # first tokens of a file that its fingerprint holds
_ENDS = 16  # documents whose last token tells what ends a document


class TokenFile(NamedTuple):
    """One file of datatrove: its folder, its name there, and what was read about it."""

    folder: ShardFolder
    name: str
    tokens: ArrayFile
    ends: ArrayFile
    tokenizer: str | None

    @property
    def place(self) -> str:
        """The path or URL of the file."""
        return f"{self.folder.location}/{self.name}"


def names_token_files(location: str) -> bool:
    """Return whether a location is a ``.ds`` file, or a folder that has one."""
    if location.endswith(SUFFIX):
        return is_url(location) or Path(location).expanduser().is_file()
    return not is_url(location) and any(Path(location).expanduser().glob(f"*{SUFFIX}"))


def split_location(location: str) -> tuple[str, str]:
    """Return the folder and the name of a file at a path or a URL."""
    if is_url(location):
        folder, _, name = location.rpartition("/")
        return folder, name
    path = Path(location).expanduser()
    return os.fspath(path.parent), path.name


def files_of(folder: ShardFolder) -> list[str]:
    """Return the names of the token files of a folder, sorted."""
    return [name for name in folder.names(SUFFIX) if "/" not in name]


def open_file(folder: ShardFolder, name: str, vocab_size: int) -> TokenFile:
    """Return a token file and its index; raise DataError if their sizes do not belong together.

    ``vocab_size`` decides between 2 and 4 bytes for a file that has neither an index nor a description.
    """
    place, size = f"{folder.location}/{name}", folder.size(name)
    described = _description(folder, f"{name}.metadata", place)
    ends, last = _ends(folder, f"{name}.index")
    if described is not None:
        itemsize = described[1]
    elif last:
        itemsize = size // last
    else:
        itemsize = 2 if vocab_size <= 1 << 16 else 4
    count = size // itemsize if itemsize in (2, 4) else -1
    for source, expected in (("index", last), ("metadata", described and described[2])):
        if count < 0 or size % itemsize or (expected is not None and expected != count):
            raise DataError(
                f"'{place}' is damaged: {size:,} bytes, where its {source} has {expected or 0:,} tokens of "
                f"{itemsize} bytes; copy it again"
            )
    tokens = folder.array(name, "<u2" if itemsize == 2 else "<u4", count)
    if ends is None:
        ends = _OneEnd(count)
    return TokenFile(folder, name, tokens, ends, None if described is None else described[0])


def _ends(folder: ShardFolder, name: str) -> tuple[ArrayFile | None, int | None]:
    """Return the ends of the documents and the last of them, or None without an index."""
    if not folder.exists(name):
        return None, None
    if (size := folder.size(name)) % 8:
        raise DataError(f"'{folder.location}/{name}' is damaged: {size:,} bytes are no 64-bit numbers")
    ends = folder.array(name, "<i8", size // 8)
    return ends, int(ends.read(len(ends) - 1, len(ends))[0]) if len(ends) else 0


def _description(folder: ShardFolder, name: str, place: str) -> tuple[str, int, int] | None:
    """Return the tokenizer, the bytes of a token and the number of tokens; None without a description."""
    if not folder.exists(name):
        return None
    try:
        first, count, *_ = folder.read_bytes(name).decode().splitlines()
        tokenizer, _, itemsize = first.rpartition("|")
        if itemsize in ("2", "4"):
            return tokenizer, int(itemsize), int(count)
    except ValueError:
        pass
    raise DataError(f"'{place}.metadata' is not a description by datatrove; copy it again, or remove it")


class _OneEnd:
    """The end of a file without an index, which counts as one document."""

    def __init__(self, count: int) -> None:
        self._ends = np.array([count] if count else [], np.int64)
        self.dtype = self._ends.dtype

    def __len__(self) -> int:
        return len(self._ends)

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        return self._ends[start:stop]

    def take(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._ends[index]

    def search(self, values: NDArray[np.int64], side: Any) -> NDArray[np.int64]:
        return self._ends.searchsorted(values, side)


class DatatroveShards(TokenShards):
    """The token files of datatrove, one after another; ``tokenizer`` is the one that they were written with.

    Raises DataError for damaged files, files of different tokenizers, and ids outside the vocabulary.
    """

    def __init__(self, location: str, files: Sequence[TokenFile], tokenizer: Any) -> None:
        self.folder, self.reused = location, True
        self._files = files
        self.tokenizer = None
        self.vocab_size, self.pad_id = tokenizer.vocab_size, tokenizer.pad_id
        dtype = _same(files)
        remote = any(isinstance(file.tokens, RemoteFile) for file in files)
        lasts = np.cumsum([len(file.tokens) for file in files]).tolist()
        fetch = fetch_from_all if remote else None
        self._ids = JoinedArray([file.tokens for file in files], dtype, fetch=fetch)
        self.ends = JoinedArray(
            [file.ends for file in files], "<i8", added=[0, *lasts[:-1]], lasts=lasts, fetch=fetch
        )
        self._starts = np.cumsum([0, *(len(file.ends) for file in files)])  # [files + 1]
        if not len(self._ids):
            raise DataError(f"'{location}' holds no tokens; give more files")
        check_ids(self._ids, self.vocab_size, location, blocks=4 if remote else None)
        self.eos_id = self._end(tokenizer)
        self.fingerprint = self._fingerprint(dtype)
        self.ledger = self._ledger()

    def _end(self, tokenizer: Any) -> int | None:
        """Return the token that ends the first documents, if it is the tokenizer's end or separator."""
        ends = self.ends[: min(_ENDS, len(self.ends))]
        last = np.unique(self._ids[ends[ends > 0] - 1])
        known = [id for id in (tokenizer.eos_id, tokenizer.sep_id) if id is not None]
        return int(last[0]) if len(last) == 1 and last[0] in known else None

    def _fingerprint(self, dtype: str) -> str:
        facts: list[Any] = [dtype]
        for file in self._files:
            sample = file.tokens.read(0, min(_SAMPLE, len(file.tokens))).tobytes()
            facts.append([file.name, len(file.tokens), len(file.ends), zlib.crc32(sample)])
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def _ledger(self) -> Ledger:
        tokenizers = dict.fromkeys(file.tokenizer for file in self._files if file.tokenizer)
        notes = [f"written by datatrove with the tokenizer {name}" for name in tokenizers]
        if self.eos_id is not None:
            notes.append("an end-of-document token follows each document")
        if unknown := [file.name for file in self._files if isinstance(file.ends, _OneEnd)]:
            notes.append(f"without an index, read as one document each: {len(unknown):,} file(s)")
        return Ledger(
            part="all",
            split="as it was prepared",
            files=len(self._files),
            documents=len(self.ends),
            tokens=len(self._ids),
            bytes=0,
            notes=tuple(notes),
        )

    @property
    def document_bytes(self) -> NoReturn:  # type: ignore[override]
        """Unknown: raises DataError."""
        raise DataError(f"'{self.folder}' does not say how many bytes its documents have")

    @cached_property
    def origins(self) -> NDArray[np.int64]:  # type: ignore[override]
        """[documents, 2], the file of each document and its number within the file."""
        counts = np.diff(self._starts)
        numbers = np.arange(self._starts[-1]) - np.repeat(self._starts[:-1], counts)
        return np.stack([np.repeat(np.arange(len(counts)), counts), numbers], axis=1)

    @cached_property
    def sources(self) -> list[str]:  # type: ignore[override]
        """The paths or URLs of the files."""
        return [file.place for file in self._files]

    def document_name(self, document: int) -> str:
        """Return ``file#number`` of ``document``."""
        number = int(self._starts.searchsorted(document, "right")) - 1
        return f"{self._files[number].place}#{document - int(self._starts[number])}"


def _same(files: Sequence[TokenFile]) -> str:
    """Return the type of the ids; raise DataError for files of different types or tokenizers."""
    first = files[0]
    for file in files:
        if file.tokens.dtype != first.tokens.dtype or len({file.tokenizer, first.tokenizer} - {None}) > 1:
            raise DataError(
                f"'{file.place}' was written with another tokenizer than '{first.place}'; name files of one"
            )
    return first.tokens.dtype.str


def fetch_from_all(ranges: Sequence[FileRange]) -> None:
    """Read ranges of remote files, those of each folder at once."""
    by_reader: dict[Any, list[FileRange]] = {}
    for each in ranges:
        if isinstance(each.file, RemoteFile):
            by_reader.setdefault(each.file.reader, []).append(each)
    for reader, some in by_reader.items():
        reader.fetch(some)


class DatatroveFolder:
    """Token files of datatrove, as a corpus with one part; see
    :class:`~wordloom.data.shards.prepared.PreparedFolder`.
    """

    parts = ("all",)

    def __init__(self, location: str, files: Sequence[tuple[ShardFolder, str]]) -> None:
        self.location = location
        self._files = files

    def open(self, part: str, tokenizer: Any) -> TokenShards:
        """Return the token shards."""

        def opened(each: tuple[ShardFolder, str]) -> TokenFile:
            return open_file(*each, tokenizer.vocab_size)

        with ThreadPoolExecutor(_REQUESTS, thread_name_prefix="open") as threads:
            files = list(threads.map(opened, self._files))
        return DatatroveShards(self.location, files, tokenizer)

    def saved_tokenizer(self) -> Path | None:
        """Return None: datatrove saves the name of a tokenizer alone."""
        return None
