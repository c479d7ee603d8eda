"""Labelled rows: texts and a label from ``.tsv``, ``.csv``, ``.jsonl``, ``.json`` and ``.parquet`` files, or
from ``.txt`` files with one text per line, whose label is the name of the file.

Quotation marks have a meaning in ``.csv`` files (RFC 4180), but not in ``.tsv`` files, as in the public data
sets.  A row without a label, or with another number of fields than the first row, is an error; no row is
skipped.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from typing import Any, Literal, NamedTuple, Self, TypeAlias

from wordloom.data.files.json import valid_text
from wordloom.data.files.source import Columns, Format, Source, Sources, hash_position, is_stdin, suffixes
from wordloom.data.files.stream import EncodingErrors, check_errors
from wordloom.data.files.table import LISTS, cells_of
from wordloom.data.sets.expand import Accepts, expand, refuse_shared
from wordloom.data.sets.fetch import files_of, local_files
from wordloom.errors import DataError, did_you_mean, position

Column: TypeAlias = str | int
Part: TypeAlias = Literal["train", "validation"]
TABLES: dict[str, Format] = {
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
}
FILE = "file"  # the label column of a .txt file, whose name is the label
REPEATED = "row(s) with text and label of an earlier one"
DEFAULT_COLUMNS = Columns(("text",), "label")


class LabelledRow(NamedTuple):
    """One row: its texts (two for a pair of sentences), its label if labels are read, and its place."""

    texts: tuple[str, ...]
    label: str | None
    source: str
    line: int  # from 1, in a .jsonl, .csv or .tsv; the number of the row, from 1, in other files
    columns: tuple[Column, ...] = ()  # those of the texts, and of the label

    @property
    def place(self) -> str:
        """The position of the row, for error messages."""
        return position(self.source, self.line)


def labelled_rows(
    sources: Sources,
    *,
    text: Column | Sequence[Column] | None = None,
    label: Column | None = None,
    header: bool | None = None,
    encoding_errors: EncodingErrors = "strict",
    labels: bool = True,
    default: ColumnChoice | None = None,
) -> Iterator[LabelledRow]:
    """Yield every row of ``sources``, in order.

    Args:
        sources: files, folders (their tables, sorted), globs, ``"-"`` for a .tsv on standard input
            (``-.csv``, ``-.jsonl`` ... for the others), or named sets such as ``sst2/train``.  Compressed
            files (.gz, .xz, .bz2, .zst) are read as they are.
        text: the column of the text, or of several texts, by name or by number from 1.  Default: the column
            of a named set, else ``"text"``.
        label: the column of the label.  Default: the column of a named set, else ``"label"``.  ``"file"``:
            the sources are .txt files, or folders of them, with one text per line.  White space around a
            text is removed, and the label is the name of the file without its suffix.  In a table,
            ``"file"`` is a column.
        header: whether a .csv or .tsv begins with the names of its columns.  Default: True if a column is
            given by name.  If all columns are given by number, a first row that looks like names is an error.
        encoding_errors: ``"strict"`` raises an error for invalid UTF-8, ``"replace"`` reads U+FFFD.
        labels: False: read no labels; the label of each row is None.
        default: the columns of files, instead of ``"text"`` and ``"label"``, if ``text``, ``label`` or
            ``header`` is None.  Column numbers apply only to .csv and .tsv files, and the label ``"file"``
            only to .txt files.  Named sets keep their own columns.

    Raises:
        DataError: a missing file or column, another number of fields than before, an empty label or line, or
            a label that is neither text nor a whole number; the message names file and line.  Also for tables
            among .txt files.
    """
    check_errors(encoding_errors, "labelled rows")
    choice = ColumnChoice(text=text, answer=label, header=header)
    for file, columns in labelled_files(sources, choice, default, labels=labels):
        yield from table_rows(file, columns, encoding_errors)


@dataclass(frozen=True, kw_only=True)
class ColumnChoice:
    """Columns that a user or a recipe names: ``answer`` is the label or the score; None is not named."""

    text: Column | Sequence[Column] | None = None
    answer: Column | None = None
    header: bool | None = None

    def among(self, known: Columns) -> tuple[tuple[Column, ...], bool | None]:
        """Return the columns of the texts and whether there is a header; ``known`` are those of the file."""
        texts = known.texts if self.text is None else columns_in(self.text)
        if self.header is not None:
            return texts, self.header
        named = (*(() if self.text is None else texts), *(() if self.answer is None else (self.answer,)))
        return texts, None if any(isinstance(column, str) for column in named) else known.header


def columns_in(text: Column | Sequence[Column]) -> tuple[Column, ...]:
    """Return one or several columns as a tuple."""
    return (text,) if isinstance(text, str | int) else tuple(text)


def labelled_files(
    sources: Sources, choice: ColumnChoice, default: ColumnChoice | None = None, *, labels: bool = True
) -> Iterator[tuple[Source, Columns]]:
    """Yield every file of ``sources`` and the columns that :func:`labelled_rows` reads from it."""
    lists = FILE in (choice.answer, None if choice.answer or default is None else default.answer)
    for file in _of_one_kind(tables(sources, lists=lists, scored=not labels)):
        known = columns_of(file, default)
        if file.format == "text" and (choice.text is not None or choice.header is not None):
            raise DataError(f"{file.name}: each line is a text, without columns or a header; leave them out")
        texts, header = choice.among(known)
        column = known.label if choice.answer is None else choice.answer
        if labels and column is None:
            raise DataError(f"{file.name}: the column of its labels is not known; name it")
        yield file, Columns(texts, column if labels else None, header)


@dataclass(frozen=True, kw_only=True)
class LabelledCorpus:
    """Labelled rows and the rule that divides them into parts.

    ``split`` is ``"tail"``: the last ``int(rows * validation_fraction)`` rows are validation; ``"hash"``: a
    hash of the texts decides, so that equal texts are in one part; or ``"files"``: validation is
    ``validation_sources``.  ``unique`` keeps the first of the rows with equal texts and labels; a row of
    ``validation_sources`` may repeat one of ``sources``.  The other arguments are those of
    :func:`labelled_rows`.
    """

    sources: Sources
    validation_sources: Sources = ()
    split: Literal["tail", "hash", "files"] = "tail"
    validation_fraction: float = 0.1
    unique: bool = False
    text: Column | Sequence[Column] | None = None
    label: Column | None = None
    header: bool | None = None
    encoding_errors: EncodingErrors = "strict"
    default: ColumnChoice | None = None

    def columns_read(self) -> list[Columns]:
        """Return the distinct choices of columns that are read from the sources, without reading a row."""
        return list(dict.fromkeys(columns for _, columns in self._files(self.sources)))

    def part(self, name: Part) -> CorpusPart:
        """Return the rows of the part ``name``; each iteration reads the files again."""
        return CorpusPart(self, name)

    def rows(self, part: Part, dropped: Counter[str] | None = None) -> Iterator[LabelledRow]:
        """Yield the rows of ``part`` from their files; raises DataError as :func:`labelled_rows`.

        ``dropped`` counts the rows that ``unique`` leaves out, under :data:`REPEATED`.
        """
        seen = set()
        for row, inside in self._divided(part == "validation"):
            identity = (row.texts, row.label)
            if self.unique and identity in seen:
                if inside and dropped is not None:
                    dropped[REPEATED] += 1
                continue
            if self.unique:
                seen.add(identity)
            if inside:
                yield row

    def _divided(self, held_out: bool) -> Iterator[tuple[LabelledRow, bool]]:
        """Yield the rows of the part's files, and whether each is in the part."""
        if self.split == "files":
            if self.validation_sources:
                parts = (self.sources, self.validation_sources)
                refuse_shared(*(tables(each, lists=self.label == FILE, scored=True) for each in parts))
            rows = self._read(self.validation_sources if held_out else self.sources)
            yield from ((row, True) for row in rows)
            return
        rows = self._read(self.sources)
        if self.split == "hash":
            for row in rows:
                yield row, (hash_position("\x1f".join(row.texts)) < self.validation_fraction) == held_out
            return
        n = sum(1 for _ in self._read(self.sources)) if self.validation_fraction else 0
        edge = n - int(n * self.validation_fraction)
        for number, row in enumerate(rows):
            yield row, (number >= edge and bool(n)) == held_out

    def undivided(self) -> Self:
        """Return the corpus without a validation part."""
        return replace(self, split="files", validation_sources=())

    def describe_split(self) -> str:
        """The split in words."""
        if self.split == "files":
            return "files: validation is a source of its own"
        if not self.validation_fraction:
            return "everything is training"
        rule = "last rows" if self.split == "tail" else "hash of each row's text"
        return f"{self.split}: {self.validation_fraction:g} of the rows are validation, by the {rule}"

    def no_rows(self, part: Literal["train", "validation"]) -> DataError:
        """Return the error that ``part`` holds no rows, which names the sources."""
        files = self.split == "files"
        sources = self.validation_sources if files and part == "validation" else self.sources
        several = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
        names = ", ".join(f"'{os.fspath(source)}'" for source in several)
        if files or not self.validation_fraction:
            return DataError(f"{names}: there are no rows; give at least one")
        return DataError(f"{names}: the {part} part has no rows ({self.describe_split()}); give more rows")

    @property
    def _choice(self) -> ColumnChoice:
        return ColumnChoice(text=self.text, answer=self.label, header=self.header)

    def _files(self, sources: Sources) -> Iterator[tuple[Source, Columns]]:
        return labelled_files(sources, self._choice, self.default)

    @property
    def _how(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("text", "header", "encoding_errors", "default")}

    def _read(self, sources: Sources) -> Iterator[LabelledRow]:
        return labelled_rows(sources, label=self.label, **self._how)


@dataclass(frozen=True)
class CorpusPart:
    """The rows of one part of a corpus; each iteration reads the files.

    Attributes:
        corpus, name: the corpus, and the name of the part.
        dropped: rows that the last iteration left out, by description.
    """

    corpus: LabelledCorpus
    name: Part
    dropped: Counter[str] = field(default_factory=Counter)

    def __iter__(self) -> Iterator[LabelledRow]:
        self.dropped.clear()
        return self.corpus.rows(self.name, self.dropped)


def sorted_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Return the different ``labels``, sorted by number if all are whole numbers, else alphabetically.

    Raises DataError for fewer than two labels.
    """
    known = set(labels)
    if len(known) < 2:
        only = f"only the label {next(iter(known))!r}" if known else "no row"
        raise DataError(f"the training rows hold {only}; classification takes two labels or more")
    numbers = all(label.isascii() and label.removeprefix("-").isdigit() for label in known)
    return tuple(sorted(known, key=lambda label: (int(label) if numbers else 0, label)))


def unseen_label(row: LabelledRow, known: Sequence[str]) -> DataError:
    """Return the error for a row with a label that does not occur in the training rows."""
    hint = did_you_mean(str(row.label), known)
    column = row.columns[-1] if len(row.columns) > len(row.texts) else FILE
    place = row.place if column == FILE else f"{row.place}, column {column!r}"
    return DataError(f"{place}: the label {row.label!r} was not seen in training; {hint}")


def refuse_empty(row: Any) -> None:
    """Raise DataError where a text of the row is empty."""
    for text, column in zip(row.texts, row.columns, strict=False):
        if not text.strip():
            raise DataError(
                f"{row.place}, column {column!r}: the text is empty; give one, or leave the row out"
            )


# ----------------------------------------------------------------------------------------------- files


def _of_one_kind(files: list[Source]) -> list[Source]:
    """Return ``files``; raise DataError for a mixture of tables and lists of texts."""
    first = {file.format == "text": file.name for file in reversed(files)}
    if len(first) == 2:
        raise DataError(
            f"'{first[True]}' is a list of texts, with its name for a label, and '{first[False]}' a table; "
            "give one kind: name its files, or a glob such as '*.txt'"
        )
    return files


def tables(sources: Sources, *, lists: bool = False, scored: bool = False) -> list[Source]:
    """Return the tables of ``sources``.

    ``lists`` includes .txt files, ``scored`` named sets with scores instead of labels.
    """
    items = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    if any(is_stdin(item) and suffixes(os.fspath(item))[0] in LISTS for item in items):
        raise DataError("standard input has no file name to label its lines with; name a .txt file")
    accepts = Accepts(
        formats={**TABLES, **dict.fromkeys(LISTS if lists else (), "text")},
        noun="table",
        hint="" if lists else '; .txt files whose names are the labels take label_column "file"',
        stdin=".tsv",
        named=partial(_named_tables, scored=scored),
    )
    return expand(items, accepts)


def columns_of(file: Source, default: ColumnChoice | None = None) -> Columns:
    """Return the columns of a named data set, else those of ``default`` if ``file`` can have them, else the
    usual ones."""
    if file.columns is not None:
        return file.columns
    if default is None:
        return DEFAULT_COLUMNS
    if file.format == "text":
        return Columns(DEFAULT_COLUMNS.texts, FILE)
    texts = DEFAULT_COLUMNS.texts if default.text is None else columns_in(default.text)
    numbered = any(isinstance(column, int) for column in (*texts, default.answer))
    if default.answer == FILE or (numbered and file.format not in ("csv", "tsv")):
        return DEFAULT_COLUMNS
    return Columns(texts, default.answer or DEFAULT_COLUMNS.label, default.header, default.answer)


def _named_tables(item: str, *, scored: bool) -> list[Source]:
    info = files_of(item)[0]
    if info.columns is None or (info.columns.score is not None and not scored):
        raise DataError(f"'{item}' ({info.task}) holds no labelled rows but {info.layout}")
    text: Format = "text" if info.columns.label == FILE else "tsv"
    accepts = Accepts(formats={**TABLES, **dict.fromkeys(LISTS, text)}, noun="table")
    return [replace(accepts.source(str(path)), columns=info.columns) for path in local_files(item)]


# ------------------------------------------------------------------------------------------------ rows


def table_rows(file: Source, columns: Columns, errors: EncodingErrors) -> Iterator[LabelledRow]:
    """Yield the rows of one table."""
    n = len(columns.texts)
    named = columns.texts if columns.label is None else (*columns.texts, columns.label)
    for line, values in cells_of(file, columns, errors):
        place = position(file.name, line)
        texts = tuple(map(cell_text, values[:n], cell_places(place, columns.texts), repeat(errors)))
        label = None if columns.label is None else _label(values[n], *cell_places(place, [columns.label]))
        yield LabelledRow(texts, label, file.name, line, named)


def cell_places(place: str, columns: Sequence[Column]) -> list[str]:
    """Return the position of each column in the row at ``place``, for error messages."""
    return [f"{place}, column {column!r}" for column in columns]


def cell_text(value: Any, place: str, errors: EncodingErrors) -> str:
    """Return the text of a cell; raises DataError for another value."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(f"{place}: holds {value!r}, which is not text")
    return valid_text(value, errors, place)


def _label(value: Any, place: str) -> str:
    if isinstance(value, bool):
        value = str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float | list | dict):
        raise DataError(f"{place}: the label is {value!r}; a label is text or a whole number")
    label = (value or "").strip()
    if not label:
        raise DataError(f"{place}: the label is empty; give the row one, or remove the row")
    return str(label)
