"""Folders of prepared tokens that a recipe names in place of text.

A location is a folder or a URL with

- the shares of many tasks, after ``wordloom data merge`` (:mod:`wordloom.data.shards.index`),
- token shards in one piece, as :func:`wordloom.data.prepare` writes them,
- the token files of datatrove (:mod:`wordloom.data.shards.datatrove`), or one such file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from wordloom.data.files.source import Document, Source
from wordloom.data.files.stream import EncodingErrors
from wordloom.data.ledgers import Ledger
from wordloom.data.shards.datatrove import (
    SUFFIX,
    DatatroveFolder,
    files_of,
    names_token_files,
    split_location,
)
from wordloom.data.shards.folders import LocalFolder, ShardFolder, is_url
from wordloom.data.shards.index import INDEX, Index, JoinedPart, Share
from wordloom.data.shards.joined import JoinedShards
from wordloom.data.shards.remote.folder import RemoteFolder
from wordloom.data.shards.storage import VERSION, TokenShards, parse_meta
from wordloom.data.text.corpus import Part, Split
from wordloom.errors import DataError

META = "meta.json"
TOKENIZER = "tokenizer"
_TASKS = "tasks.json"


def names_prepared(location: str) -> bool:
    """Return whether ``location`` is a URL or a folder of prepared tokens, even if it is not merged yet.

    A folder of text may hold files of the same names, so two names are looked for.
    """
    if is_url(location) or names_token_files(location):
        return True
    folder = Path(location).expanduser()
    pairs = ((INDEX, "shares"), (_TASKS, "shares"), (META, "tokens.bin"))
    return any(all((folder / name).exists() for name in pair) for pair in pairs)


def open_folder(location: str) -> ShardFolder:
    """Return the folder at a path or a URL."""
    return RemoteFolder(location) if is_url(location) else LocalFolder(location)


def open_prepared(location: str | Sequence[str]) -> PreparedFolder | DatatroveFolder:
    """Return the prepared tokens at a location, or those of several token files of datatrove."""
    locations = [location] if isinstance(location, str) else list(location)
    if all(each.endswith(SUFFIX) for each in locations):
        folders: dict[str, ShardFolder] = {}
        files = []
        for each in locations:
            folder, name = split_location(each)
            files.append((folders.setdefault(folder, open_folder(folder)), name))
        return DatatroveFolder(", ".join(locations), files)
    (single,) = locations
    folder_here = open_folder(single)
    if not any(folder_here.exists(name) for name in (INDEX, _TASKS, META)) and (
        names := files_of(folder_here)
    ):
        return DatatroveFolder(single, [(folder_here, name) for name in names])
    return PreparedFolder(single, folder_here)


class PreparedFolder:
    """The parts of a corpus in a folder, or behind a URL, that is prepared.

    Raises DataError for a folder without prepared tokens, or whose tasks are not merged.
    """

    def __init__(self, location: str, folder: ShardFolder | None = None) -> None:
        self.location = location
        self.folder = open_folder(location) if folder is None else folder
        self._index = self._read_index()

    def _read_index(self) -> Index:
        if self.folder.exists(INDEX):
            return Index.from_json(self.folder.read_bytes(INDEX).decode(), f"{self.location}/{INDEX}")
        if self.folder.exists(_TASKS):
            raise DataError(
                f"'{self.location}' is not merged yet; when all its tasks are complete, run: wordloom data "
                f"merge {self.location}"
            )
        if not self.folder.exists(META):
            raise DataError(
                f"'{self.location}' holds no prepared tokens; name a folder of wordloom data merge, token "
                "files of datatrove (.ds), or text"
            )
        return _one_share(parse_meta(self.folder.read_bytes(META).decode(), self.location, VERSION, "tokens"))

    @property
    def parts(self) -> list[str]:
        """The names of the parts: train, validation or all."""
        return list(self._index.parts)

    def saved_tokenizer(self) -> Path | None:
        """Return the folder of the tokenizer that was saved with the tokens, or None."""
        return self.folder.local_copy(TOKENIZER)

    def open(self, part: str, tokenizer: Any = None) -> TokenShards:
        """Return the token shards of a part."""
        if isinstance(self.folder, LocalFolder) and not self.folder.exists(INDEX):
            return TokenShards(self.location)
        return JoinedShards(self.folder, self._index, self._index.parts[part])


def _one_share(meta: dict[str, Any]) -> Index:
    """Return the index of a folder of token shards in one piece."""
    ledger = Ledger.from_dict(meta["ledger"])
    share = Share(
        folder="",
        fingerprint=meta["fingerprint"],
        tokens=meta["arrays"]["tokens"]["count"],
        documents=meta["arrays"]["ends"]["count"],
        checks=meta.get("checks"),
    )
    return Index(
        tokenizer=meta["tokenizer"],
        vocab_size=meta["vocab_size"],
        eos_id=meta["eos_id"],
        pad_id=meta["pad_id"],
        dtype=meta["arrays"]["tokens"]["dtype"],
        parts={ledger.part: JoinedPart(ledger=ledger, shares=[share])},
    )


@dataclass(frozen=True, kw_only=True)
class PreparedCorpus:
    """Prepared tokens in place of a :class:`~wordloom.data.Corpus`.

    :func:`wordloom.data.prepare` returns their shards instead of encoding text.

    Args:
        train: the location of the training part, or several token files of datatrove.
        validation: that of the validation part; by default ``train``.

    A location that has a training and a validation part gives the part that is asked for.  A location with
    one part gives that part.
    """

    train: str | tuple[str, ...]
    validation: str | tuple[str, ...] | None = None

    encoding_errors: EncodingErrors = "strict"
    split: Split = "files"
    validation_fraction: float = 0.0
    skipped: Sequence[str] = ()

    @cached_property
    def _train(self) -> PreparedFolder | DatatroveFolder:
        return open_prepared(self.train)

    @cached_property
    def _validation(self) -> PreparedFolder | DatatroveFolder:
        return self._train if self.validation is None else open_prepared(self.validation)

    @property
    def location(self) -> str:
        """The location of the training part, for messages."""
        return self._train.location

    def shards(self, part: Part, tokenizer: Any, *, end_id: int | None, any_end: bool) -> TokenShards:
        """Return the shards of ``part``.

        Raises DataError if there is no such part, and if it was prepared with another tokenizer or, unless
        ``any_end``, with another token than ``end_id`` after each document.
        """
        found = self._train if part == "train" else self._validation
        (only, *others) = found.parts
        if part not in found.parts and (others or (part == "validation" and self.validation is None)):
            raise DataError(
                f"'{found.location}' has no {part} part (it has: {', '.join(found.parts)}); "
                + (
                    "name data.validation, or set data.validation_fraction = 0 to train without one"
                    if part == "validation"
                    else "name another folder"
                )
            )
        shards = found.open(part if part in found.parts else only, tokenizer)
        if shards.tokenizer not in (None, tokenizer.fingerprint):
            raise DataError(
                f"'{found.location}' was prepared with another tokenizer than this {tokenizer.kind} one of "
                f"{tokenizer.vocab_size:,} tokens; take the one of the folder ({found.location}/{TOKENIZER})"
            )
        if not any_end and shards.eos_id != end_id:
            raise DataError(
                f"'{found.location}' was prepared with another end of a document than the objective reads; "
                "prepare it again with --end " + ("none" if end_id is None else "sep")
            )
        return shards

    def saved_tokenizer(self) -> Path | None:
        """Return the folder of the tokenizer that was saved with the tokens, or None."""
        return self._train.saved_tokenizer()

    def files(self, part: Part = "all") -> list[Source]:
        """Return no files: tokens are read instead."""
        return []

    def documents(self, part: Part = "all") -> Iterator[Document]:
        """Raise DataError."""
        self._refuse()

    def pieces(self, part: Part, **settings: Any) -> Iterator[Any]:
        """Raise DataError."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise DataError(
            f"'{self.location}' holds prepared tokens, and this needs the text; name a file of text"
        )

    def describe_split(self) -> str:
        """Return a description of the split, for the ledger."""
        return "as it was prepared"
