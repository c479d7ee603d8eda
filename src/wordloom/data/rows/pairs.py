"""Pairs of texts, such as sentences and their translations, and the rule that divides them.

Sources are parallel files (line n of one translates line n of the other), the columns of a table (.tsv, .csv,
.jsonl, .json, .parquet), or a named set such as ``multi30k/train``.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any, Literal, NamedTuple, TypeAlias

from wordloom.data.files.source import Columns, Source, Sources, hash_position, suffixes
from wordloom.data.files.stream import EncodingErrors, Meter, check_errors
from wordloom.data.rows.labelled import TABLES, Column, table_rows, tables
from wordloom.data.sets.catalogue import DATASETS
from wordloom.data.sets.expand import expand, refuse_shared, report_repeated
from wordloom.data.sets.fetch import names_dataset
from wordloom.data.text.corpus import PARTS, Part, check_split, source_hash
from wordloom.data.text.documents import pieces
from wordloom.errors import DataError, did_you_mean, position

PairSplit: TypeAlias = Literal["hash", "files"]
SPLITS = ("hash", "files")
_COLUMNS = ("source", "target")  # the default columns of a table


class Pair(NamedTuple):
    """A text and its translation, with the file of the text and the line there, from 1."""

    source: str
    target: str
    file: str
    line: int

    @property
    def place(self) -> str:
        """The position of the pair, for error messages."""
        return position(self.file, self.line)


class _Files(NamedTuple):
    """The files of pairs: two parallel files, or a table of both sides if ``target`` is None."""

    source: Source
    target: Source | None

    @property
    def both(self) -> list[Source]:
        return [self.source] if self.target is None else [self.source, self.target]


@dataclass(frozen=True, kw_only=True)
class PairCorpus:
    """Pairs from ``sources``, and the rule that divides them.

    Args:
        sources: text files of the source side, one text per line (or folders, globs, sets such as
            ``multi30k/train.de``). Without ``targets``: tables with both sides, or sets such as
            ``multi30k/train``.  Files may be compressed (.gz, .xz, .bz2, .zst).
        targets: as many text files; line n of each is the translation of line n of its source file.
        source_column, target_column: columns of tables by name or by number from 1, or the languages of a
            named set (``"de"``, ``"en"``).  Default: ``"source"`` and ``"target"``.
        header: whether a .csv or .tsv begins with the names of its columns.  Default: it does where a column
            is given by name.
        encoding_errors: ``"strict"`` raises on invalid UTF-8, ``"replace"`` inserts U+FFFD.
        split: ``"hash"``: a hash of the source text decides, so that all translations of one text are in one
            part.  ``"files"``: validation is ``validation_sources``.
        validation_fraction: share of the hashes that are validation, 0 <= fraction < 1; for ``"hash"`` only.
        validation_sources, validation_targets: the validation part for ``split="files"``.

    Raises:
        DataError: a setting that is not allowed, or (found when first read) files that do not exist.
    """

    sources: Sources
    targets: Sources = ()
    source_column: Column = _COLUMNS[0]
    target_column: Column = _COLUMNS[1]
    header: bool | None = None
    encoding_errors: EncodingErrors = "strict"
    split: PairSplit = "hash"
    validation_fraction: float = 0.1
    validation_sources: Sources = ()
    validation_targets: Sources = ()

    def __post_init__(self) -> None:
        for name in ("sources", "targets", "validation_sources", "validation_targets"):
            value = getattr(self, name)
            items = value if isinstance(value, (list, tuple)) else (value,)
            object.__setattr__(self, name, tuple(os.fspath(item) for item in items))
        if not self.sources:
            raise DataError("no source of pairs given; name at least one file, table or data set")
        if self.source_column == self.target_column:
            raise DataError(f"both sides of the pairs are column {self.source_column!r}; name two")
        check_errors(self.encoding_errors, "pairs")
        validation = (self.validation_sources, self.validation_targets)
        check_split(self.split, SPLITS, self.validation_fraction, *validation)
        parallel = self.targets and (self.validation_targets or not self.validation_sources)
        if parallel and (self.source_column, self.target_column, self.header) != (*_COLUMNS, None):
            raise DataError(
                "source_column, target_column and header are settings of tables with both sides; leave them "
                "out with separate target files"
            )

    # ------------------------------------------------------------------------------------- reading

    def pairs(self, part: Part = "all", *, meter: Meter | None = None) -> Iterator[Pair]:
        """Yield the pairs of ``part``, in order, also those with an empty side; ``meter`` counts bytes read.

        Raises DataError for parallel files of unequal length, with both counts, and as the readers do.
        """
        meter = meter or Meter()
        undivided = part == "all" or self.split == "files"
        for files in self._of(part):
            for pair in self._read(files, meter):
                if undivided or (hash_position(pair.source) < self.validation_fraction) == (
                    part == "validation"
                ):
                    yield pair

    def _read(self, files: _Files, meter: Meter) -> Iterator[Pair]:
        if files.target is not None:
            yield from _parallel(files.source, files.target, self.encoding_errors, meter)
            return
        for row in table_rows(files.source, self._columns, self.encoding_errors):
            yield Pair(row.texts[0], row.texts[1], row.source, row.line)
        meter.read += os.path.getsize(files.source.path)  # the readers of tables do not report progress

    @property
    def _columns(self) -> Columns:
        return Columns((self.source_column, self.target_column), None, self.header)

    # --------------------------------------------------------------------------------------- files

    def files(self, part: Part = "all") -> list[Source]:
        """Return the files of both sides that hold ``part``."""
        return _both(self._of(part))

    def sides(self, part: Part = "all") -> tuple[list[Source], list[Source]]:
        """Return the files with the sources of ``part``, and those with the targets, in one order."""
        both = self._of(part)
        return [files.source for files in both], [files.target or files.source for files in both]

    def _of(self, part: Part) -> list[_Files]:
        if part not in PARTS:
            raise DataError(f"part='{part}' is not known; {did_you_mean(part, PARTS)}")
        training, validation = self._found
        if self.split != "files" or part == "train":
            return training
        return validation if part == "validation" else training + validation

    @cached_property
    def _found(self) -> tuple[list[_Files], list[_Files]]:
        """The files of both parts, found before anything is read, so that errors in both appear at once."""
        training = self._open(self.sources, self.targets)
        validation = self._open(self.validation_sources, self.validation_targets)
        refuse_shared(_both(training), _both(validation))
        return training, validation

    def _open(self, sources: Any, targets: Any) -> list[_Files]:
        if targets:
            opened = _side_by_side(sources, targets)
        else:
            opened = [files for item in sources for files in self._without_targets(item)]
            report_repeated(files.source for files in opened)
        for source in _both(opened):
            if source.is_stdin:
                raise DataError("pairs are read twice, standard input can be read once; write it to a file")
        return opened

    def _without_targets(self, item: str) -> list[_Files]:
        if names_dataset(item) and (languages := _translations(item)):
            return self._of_languages(item, languages)
        path = os.path.expanduser(item)
        if os.path.isfile(path) and suffixes(path)[0] not in TABLES:
            raise DataError(
                f"'{item}' holds one side of the pairs; give the other as targets (validation_targets), or "
                f"name tables of both ({', '.join(TABLES)})"
            )
        return [_Files(table, None) for table in tables(item)]

    def _of_languages(self, item: str, languages: list[str]) -> list[_Files]:
        """The parallel files of a named set, each side chosen by its language."""
        chosen = (self.source_column, self.target_column)
        for side, language in zip(_COLUMNS, chosen, strict=True):
            if language not in languages:
                raise DataError(
                    f"'{item}' holds the languages {', '.join(languages)}, not {language!r}; name the "
                    f"language of the {side} ({side}_column)"
                )
        return _side_by_side(*((f"{item}.{language}",) for language in chosen))

    # ----------------------------------------------------------------------------------- identity

    def part_fingerprint(self, part: Part) -> str:
        """Return the SHA-256 of the files of ``part``, in order and without names, and of its settings."""
        settings: dict[str, Any] = {
            "encoding_errors": self.encoding_errors,
            "files": [
                [(source_hash(file, self._hashes), file.format, file.compression) for file in files.both]
                for files in self._of(part)
            ],
        }
        if any(files.target is None for files in self._of(part)):
            settings["columns"] = self._columns
        if self.split != "files":
            settings |= {"split": self.split, "validation_fraction": self.validation_fraction}
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()

    @cached_property
    def _hashes(self) -> dict[str, str]:
        return {}

    def describe_split(self) -> str:
        """The split in words, for the ledger."""
        if self.split == "files":
            return f"files: validation is {', '.join(self.validation_sources)}"  # type: ignore[arg-type]
        if self.validation_fraction == 0:
            return "hash, fraction 0: everything is training"
        return f"hash of each source text, {self.validation_fraction:g} of the hashes validation"


def _both(files: list[_Files]) -> list[Source]:
    return [source for pair in files for source in pair.both]


def _side_by_side(sources: Sources, targets: Sources) -> list[_Files]:
    """Pair the source files with the target files, in order."""
    left, right = expand(sources), expand(targets)
    if len(left) != len(right):
        named = [", ".join(source.name for source in side[:3]) for side in (left, right)]
        raise DataError(
            f"{len(left)} source file(s) ({named[0]}) have {len(right)} target file(s) ({named[1]}); give "
            "one for each"
        )
    for source, target in zip(left, right, strict=True):
        if os.path.realpath(source.path) == os.path.realpath(target.path):
            raise DataError(f"{source.name}: is given for both sides; name the translations as targets")
    for source in (*left, *right):
        if source.format != "text":
            raise DataError(
                f"{source.name}: is not a file of one text per line; give a table of both sides without "
                "targets"
            )
    return [_Files(*both) for both in zip(left, right, strict=True)]


def _translations(item: str) -> list[str]:
    """Return the languages of a part of a named set of translations; empty for any other set.

    Raises DataError if the set has no part of that name.
    """
    name, _, part = item.partition("/")
    if DATASETS[name].task != "translation":
        return []
    languages: dict[str, list[str]] = {}
    for known in DATASETS[name].parts:
        stem, _, language = known.rpartition(".")
        languages.setdefault(stem, []).append(language)
    if part not in languages:
        parts = ", ".join(f"{name}/{stem}" for stem in languages)
        side = part.rpartition(".")[0] in languages
        what = "is one side of the pairs; give the other as targets, or" if side else "has not both sides;"
        raise DataError(f"'{item}' {what} name one of {parts}, and its languages as columns")
    return languages[part]


def _parallel(source: Source, target: Source, errors: EncodingErrors, meter: Meter) -> Iterator[Pair]:
    """Yield the pairs of lines of two files."""
    left, right = (
        (str(piece.text) for piece in pieces([file], separator="line", encoding_errors=errors, meter=meter))
        for file in (source, target)
    )
    for line, (text, other) in enumerate(zip_longest(left, right), 1):
        if text is None or other is None:
            counts = [
                line - 1 + (first is not None) + sum(1 for _ in further)
                for first, further in ((text, left), (other, right))
            ]
            raise DataError(
                f"{source.name} has {counts[0]:,} lines and {target.name} has {counts[1]:,}; line n of one "
                "must translate line n of the other: correct the files"
            )
        yield Pair(text, other, source.name, line)
