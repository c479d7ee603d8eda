"""A corpus: its sources, and its division into training and validation."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

from wordloom.data.files.source import Document, Fields, Source, Sources, hash_position
from wordloom.data.files.stream import EncodingErrors, Meter, open_stream
from wordloom.data.sets.expand import expand, refuse_shared
from wordloom.data.text.documents import Piece, joined
from wordloom.data.text.documents import pieces as read_pieces
from wordloom.data.text.shares import ShareNumber, share_of
from wordloom.data.text.wiki import require_parser
from wordloom.errors import DataError, did_you_mean

Part: TypeAlias = Literal["train", "validation", "all"]
Split: TypeAlias = Literal["tail", "hash", "files"]
PARTS = ("train", "validation", "all")
SPLITS = ("tail", "hash", "files")

CUT = "document(s) divided by the split"
EMPTY = "empty document(s)"
_HASHED = 1 << 16  # characters (bytes) at the start of a document that decide its part in a hash split


@dataclass
class Tally:
    """Counts of documents that reading a part dropped or truncated, by reason."""

    dropped: Counter[str] = field(default_factory=Counter)
    cut: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Documents from ``sources``, and the rule that divides them.

    Args:
        sources, field, separator, encoding_errors: see :func:`wordloom.data.documents`.
        split: ``"tail"`` takes the end of the corpus for validation: training is the first
            ``int(n * (1 - validation_fraction))`` of n characters (bytes under ``encoding_errors="bytes"``),
            and a document across the edge is cut.  ``"hash"`` divides documents by a hash of their first
            65,536 characters, so the part of a document depends on its text alone.  ``"files"`` takes
            ``validation_sources``.
        validation_fraction: share of the validation part, 0 <= fraction < 1; unused by ``"files"``.
        validation_sources: files of the validation part, for ``split="files"``; ``sources`` may then be empty
            if no other part is read.
        share: read one of several equal shares of the files, see :mod:`wordloom.data.text.shares`.

    Raises DataError for a setting that is not allowed and, when first read, for sources that do not exist.
    """

    sources: Sources
    field: Fields = "text"
    separator: str | None = None
    encoding_errors: EncodingErrors = "strict"
    split: Split = "tail"
    validation_fraction: float = 0.1
    validation_sources: Sources = ()
    share: ShareNumber | None = None

    def __post_init__(self) -> None:
        for name in ("sources", "validation_sources"):
            sources = getattr(self, name)
            sources = sources if isinstance(sources, (list, tuple)) else (sources,)
            object.__setattr__(self, name, tuple(map(str, sources)))
        if not isinstance(self.field, str):
            object.__setattr__(self, "field", tuple(self.field))
        check_split(self.split, SPLITS, self.validation_fraction, self.validation_sources)
        if self.share is not None and self.split == "tail" and self.validation_fraction:
            raise DataError(
                "split='tail' (--split) needs the length of the whole corpus, which a task does not read; "
                "take 'hash', or name files for validation"
            )

    # ------------------------------------------------------------------------------------- reading

    def documents(self, part: Part = "all") -> Iterator[Document]:
        """Yield the documents of ``part``, in order, without empty ones."""
        yield from joined(self.pieces(part))

    def pieces(
        self,
        part: Part,
        *,
        tally: Tally | None = None,
        meter: Meter | None = None,
        workers: int | None = None,
    ) -> Iterator[Piece]:
        """Yield the documents of ``part`` in pieces; ``tally`` counts those dropped or cut."""
        if part not in PARTS:
            raise DataError(f"part='{part}' is not known; {did_you_mean(part, PARTS)}")
        tally = Tally() if tally is None else tally
        if not (files := self.files(part)):  # of a share
            return
        pieces = read_pieces(
            files,
            field=self.field,
            separator=self.separator,
            encoding_errors=self.encoding_errors,
            tally=tally.dropped,
            meter=meter,
            workers=workers,
        )
        if part != "all" and self.split == "tail" and (part, self.validation_fraction) != ("train", 0):
            pieces = _tail(pieces, self._training_size, part, tally)
        elif part != "all" and self.split == "hash":
            pieces = _hashed(pieces, self.validation_fraction, part)
        fresh = True
        for piece in pieces:
            if fresh and piece.last and not piece.text:
                tally.dropped[EMPTY] += 1
            else:
                yield piece
            fresh = piece.last

    @cached_property
    def size(self) -> int:
        """The characters of the corpus (bytes under ``encoding_errors="bytes"``), which is read once."""
        return sum(len(piece.text) for piece in self.pieces("all"))

    @property
    def _training_size(self) -> int:
        return int(self.size * (1 - self.validation_fraction))

    # --------------------------------------------------------------------------------------- files

    def files(self, part: Part = "all") -> list[Source]:
        """Return the files that hold ``part``."""
        if self.split != "files" or part == "train":
            return self._training_files
        training = [] if part == "validation" else self._training_files
        return training + self._validation_files

    @cached_property
    def skipped(self) -> list[str]:
        """The files in folders that were skipped because of an unknown suffix."""
        skipped: list[str] = []
        for sources in (self.sources, self.validation_sources):
            if sources:
                expand(sources, skipped=skipped)
        return skipped

    @cached_property
    def _found(self) -> tuple[list[Source], list[Source]]:
        """The files of both parts; expanding both at once finds mistakes in either before reading."""
        training = expand(self.sources) if self.sources or not self.validation_sources else []
        validation = expand(self.validation_sources) if self.validation_sources else []
        refuse_shared(training, validation)
        if self.share is None:
            return training, validation
        parts = (share_of(files, self.share, self.separator) for files in (training, validation))
        return next(parts), next(parts)

    @cached_property
    def _training_files(self) -> list[Source]:
        return [self._spooled(source) for source in self._found[0]]

    @cached_property
    def _validation_files(self) -> list[Source]:
        return [self._spooled(source) for source in self._found[1]]

    def _spooled(self, source: Source) -> Source:
        """Return ``source``, or a temporary file with standard input, which can be read only once."""
        if not source.is_stdin:
            return source
        file = tempfile.NamedTemporaryFile(prefix="wordloom-stdin-")  # noqa: SIM115  lives as long as self
        shutil.copyfileobj(sys.stdin.buffer, file)
        file.flush()
        self.__dict__.setdefault("_spools", []).append(file)
        return replace(source, path=file.name)

    # ----------------------------------------------------------------------------------- identity

    def part_fingerprint(self, part: Part) -> str:
        """Return the SHA-256 of the files of ``part``, in order and without names, and of its settings."""
        files = [
            {
                "sha256": source_hash(source, self._hashes),
                "format": source.format,
                "compression": source.compression,
                "field": source.field if self.field == "text" else self.field,
                "separator": source.separator if self.separator is None else self.separator,
            }
            for source in self.files(part)
        ]
        settings: dict[str, Any] = {"encoding_errors": self.encoding_errors, "files": files}
        if self.split != "files":
            settings |= {"split": self.split, "validation_fraction": self.validation_fraction}
        if any(source.format == "wikipedia" for source in self.files(part)):
            settings["mwparserfromhell"] = require_parser()
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()

    @cached_property
    def _hashes(self) -> dict[str, str]:
        return {}

    def describe_split(self) -> str:
        """Return a description of the split, for the ledger."""
        unit = "bytes" if self.encoding_errors == "bytes" else "characters"
        match self.split:
            case "tail":
                if self.validation_fraction == 0:
                    return "tail, fraction 0: everything is training"
                return (
                    f"tail: training is the first {self._training_size:,} of {self.size:,} {unit}, "
                    f"validation the last {self.validation_fraction:g}"
                )
            case "hash":
                return (
                    f"hash of each document's content, {self.validation_fraction:g} of the hashes validation"
                )
        return f"files: validation is {', '.join(map(str, self.validation_sources))}"  # type: ignore[arg-type]


def check_split(split: str, allowed: Sequence[str], fraction: float, *validation: object) -> None:
    """Raise DataError for a split that is not allowed; ``validation`` are the sources of validation."""
    if split not in allowed:
        raise DataError(f"split='{split}' is not known; {did_you_mean(split, allowed)}")
    if not 0 <= fraction < 1:
        raise DataError(f"validation_fraction={fraction} is not allowed; 0 <= fraction < 1")
    if split == "files" and not validation[0]:
        others = " or ".join(repr(name) for name in allowed if name != "files")
        raise DataError(f"split='files' needs validation_sources; or choose split={others}")
    if split != "files" and any(validation):
        raise DataError(f"validation_sources need split='files'; split='{split}' divides the sources")


def source_hash(source: Source, known: dict[str, str]) -> str:
    """Return the SHA-256 of the bytes that are read of a file.

    ``known`` are the hashes computed before, by path and span.
    """
    key = source.path if source.span is None else f"{source.path}{source.span}"
    if key not in known:
        try:
            with open_stream(replace(source, compression=None)) as file:
                known[key] = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
        except OSError as error:
            raise DataError(f"{source.name}: cannot be opened: {error.strerror}") from error
    return known[key]


def _tail(pieces: Iterator[Piece], edge: int, part: Part, tally: Tally) -> Iterator[Piece]:
    """Yield the pieces before (``train``) or from (``validation``) character ``edge`` of the corpus."""
    stop = 0
    whole = True  # the piece before ended its document
    for piece in pieces:
        start, stop = stop, stop + len(piece.text)
        if part == "train":
            if start >= edge:
                return
            if stop > edge or (stop == edge and not piece.last):
                tally.cut[CUT] += 1
                yield piece._replace(text=piece.text[: edge - start], last=True, cut=True)
                return
            yield piece
        elif start >= edge or stop > edge:
            if start < edge or (start == edge and not whole):
                tally.cut[CUT] += 1
            yield piece._replace(text=piece.text[max(0, edge - start) :])
        whole = piece.last


def _hashed(pieces: Iterator[Piece], fraction: float, part: Part) -> Iterator[Piece]:
    """Yield the pieces of the documents whose hash falls into ``part``."""
    held: list[Piece] = []  # the first pieces of a document whose part is not decided yet
    chosen: bool | None = None
    for piece in pieces:
        if chosen is None:
            held.append(piece)
            if not piece.last and sum(len(p.text) for p in held) < _HASHED:
                continue
            texts: list[Any] = [p.text for p in held]
            content: str | bytes = type(texts[0])().join(texts)[:_HASHED]
            chosen = (hash_position(content) < fraction) == (part == "validation")
            if chosen:
                yield from held
            held = []
        elif chosen:
            yield piece
        if piece.last:
            chosen = None
