"""Texts with a label for each word: parts of speech, names of persons and places.

Three layouts are read:

- CoNLL: a word and its columns on each line, separated by blanks or tabs; an empty line ends a sentence.
  A line that begins with ``-DOCSTART-`` also ends a sentence, and holds no word;
- .jsonl, or .json with a list: an object for each text, with a list of words and one of labels;
- the Brown corpus (the named set ``brown``): a sentence on each line, of ``word/tag``.

A text is its words joined by single spaces, and keeps the offsets of every word.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from wordloom.data.files.json import json_objects, text_list
from wordloom.data.files.source import COMPRESSIONS, Columns, Format, Source, Sources
from wordloom.data.files.stream import EncodingErrors, Meter, check_errors, numbered_lines
from wordloom.data.rows.labelled import Column, ColumnChoice, columns_in, sorted_labels
from wordloom.data.sets.expand import JSON, task_files
from wordloom.errors import DataError, did_you_mean, position

DOCSTART = "-DOCSTART- line(s), which are not words"
_CONLL: dict[str, Format] = dict.fromkeys(
    (".conll", ".conll2003", ".bio", ".iob", ".iob2", ".txt", ".text", ".tsv"), "text"
)
_BLANKS = re.compile(r"[ \t]+")


class TaggedText(NamedTuple):
    """One text.

    Attributes:
        words: one word or more; no word is empty.
        labels: the label of each word; None if labels are not read.
        source: the file.
        line: the line of the first word, from 1 (in a .json the number of the item); 0 for no line.
        column: whether each word has a line of its own.
    """

    words: tuple[str, ...]
    labels: tuple[str, ...] | None
    source: str
    line: int
    column: bool = False

    @property
    def text(self) -> str:
        """The words, joined by single spaces."""
        return " ".join(self.words)

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The offsets of each word in :attr:`text`: its first character, and the one after its last."""
        offsets, at = [], 0
        for word in self.words:
            offsets.append((at, at + len(word)))
            at += len(word) + 1
        return offsets

    def place(self, word: int | None = None) -> str:
        """Return the position of the text, or of its ``word`` (from 0), for error messages."""
        if word is None:
            return position(self.source, self.line) if self.line else self.source
        if self.column:
            return position(self.source, self.line + word)
        return f"{position(self.source, self.line)}, word {word + 1:,}"


def tagged_texts(
    sources: Sources,
    *,
    word: int | str | None = None,
    label: int | str | None = None,
    labels: bool = True,
    encoding_errors: EncodingErrors = "strict",
    dropped: Counter[str] | None = None,
    default: ColumnChoice | None = None,
) -> Iterator[TaggedText]:
    """Yield every text of ``sources``, in order.

    Args:
        sources: files, folders (their .conll, .iob, .iob2, .bio, .txt, .tsv, .jsonl and .json, sorted),
            globs, ``"-"`` for CoNLL's layout on standard input (``"-.jsonl"`` ...), or ``brown``.  Files may
            be compressed (.gz, .xz, .bz2, .zst).
        word, label: the columns of words and labels: numbers from 1 in CoNLL's layout (default: the first and
            the last), names of fields in .jsonl (default: ``tokens`` and ``labels``).
        labels: read labels; without, the labels of each text are None.
        encoding_errors: ``"strict"`` raises on invalid UTF-8, ``"replace"`` inserts U+FFFD.
        dropped: counts the lines left out, under :data:`DOCSTART`.
        default: the columns if ``word`` and ``label`` are None: numbers in CoNLL's layout, names in .jsonl.

    Raises DataError, which names file and line: a missing file, column or field, another number of columns
    than before, unequal numbers of labels and words, an empty text, word or label.
    """
    check_errors(encoding_errors, "tagged texts")
    dropped = Counter() if dropped is None else dropped
    for file in task_files(sources, {**_CONLL, **JSON}, task="tagging", stdin=".conll"):
        if file.format == "brown":
            yield from _brown(file, labels)
            continue
        columns = _columns(file, word, label, default)
        if file.format == "text":
            at = (_number(file, columns[0], 1, "word"), _number(file, columns[1], -1, "label"))
            yield from _conll(file, at if labels else (at[0], None), encoding_errors, dropped)
        else:
            names = (_name(file, columns[0], "tokens", "word"), _name(file, columns[1], "labels", "label"))
            yield from _json(file, names if labels else names[:1], encoding_errors)


def word_columns(
    sources: Sources,
    *,
    word: Column | None = None,
    label: Column | None = None,
    default: ColumnChoice | None = None,
) -> list[Columns]:
    """Return the columns that :func:`tagged_texts` would read, each choice once, without reading texts."""
    found: dict[Columns, None] = {}
    for file in task_files(sources, {**_CONLL, **JSON}, task="tagging", stdin=".conll"):
        if file.format != "brown":
            usual: tuple[Column, Column] = (1, "last") if file.format == "text" else ("tokens", "labels")
            columns = _columns(file, word, label, default)
            words, labels = (other if one is None else one for one, other in zip(columns, usual, strict=True))
            found[Columns((words,), labels)] = None
    return list(found)


def _columns(
    file: Source, word: Column | None, label: Column | None, default: ColumnChoice | None
) -> list[Column | None]:
    """Return the columns of words and labels in ``file``; ``default`` fills in what is not given."""
    found = [word, label]
    if default is not None:
        kind = int if file.format == "text" else str
        texts = default.text if default.text is None else columns_in(default.text)[0]
        for n, other in enumerate((texts, default.answer)):
            if found[n] is None and isinstance(other, kind):
                found[n] = other
    return found


def has_words(source: str) -> bool:
    """Return whether the ending of ``source`` says that each line is a word.

    The ending of a compression is ignored. A .txt, .text or .tsv may also hold texts.
    """
    path = Path(source)
    ending = Path(path.stem).suffix if path.suffix in COMPRESSIONS else path.suffix
    return ending in _CONLL and ending not in (".txt", ".text", ".tsv")


def tag_labels(texts: Iterable[TaggedText]) -> tuple[str, ...]:
    """Return the different labels of ``texts``, sorted."""
    return sorted_labels(label for text in texts for label in text.labels or ())


def unseen_tag(text: TaggedText, word: int, known: Sequence[str]) -> DataError:
    """Return the error for a word with a label that does not occur in the training texts."""
    label = text.labels[word] if text.labels else None
    return DataError(
        f"{text.place(word)}: the label {label!r} of {text.words[word]!r} was not seen in training; "
        f"{did_you_mean(str(label), known)}"
    )


# ------------------------------------------------------------------------------------------------ CoNLL


def _number(file: Source, given: int | str | None, default: int, what: str) -> int:
    if given is None:
        return default
    if not isinstance(given, int) or given < 1:
        raise DataError(f"{file.name}: its columns have numbers, from 1; {what} is {given!r}")
    return given


def _conll(
    file: Source, columns: tuple[int, int | None], errors: EncodingErrors, dropped: Counter[str]
) -> Iterator[TaggedText]:
    width, begun = 0, 0  # columns of a line; the line where the open text begins
    words: list[str] = []
    tags: list[str] = []
    for number, line in numbered_lines(file, errors):
        cells = _BLANKS.split(line.strip(" \t\r"))
        if cells == [""] or cells[0].startswith("-DOCSTART-"):
            dropped[DOCSTART] += cells != [""]
            if words:
                yield _text(file, words, tags, columns, begun)
                words, tags = [], []
            continue
        if not width:
            width = len(cells)
            _check_columns(position(file.name, number), columns, width)
        if len(cells) != width:
            raise DataError(
                f"{position(file.name, number)}: has {len(cells)} column{'s' * (len(cells) != 1)} where the "
                f"first word has {width}; correct the file (an empty line separates sentences)"
            )
        begun = begun if words else number
        words.append(cells[columns[0] - 1])
        if columns[1] is not None:
            tags.append(cells[columns[1] - 1 if columns[1] > 0 else -1])
    if words:
        yield _text(file, words, tags, columns, begun)


def _check_columns(place: str, columns: tuple[int, int | None], width: int) -> None:
    for what, column in zip(("word", "label"), columns, strict=True):
        if column is not None and column > width:
            raise DataError(
                f"{place}: has {width} column{'s' * (width != 1)} and no column {column} for the {what}"
            )
    if columns[1] is not None and (columns[1] if columns[1] > 0 else width) == columns[0]:
        there = f"{width} column{'s' * (width != 1)}"
        raise DataError(f"{place}: of {there} number {columns[0]} is both word and label; name two")


def _text(
    file: Source, words: list[str], tags: list[str], columns: tuple[int, int | None], line: int
) -> TaggedText:
    return TaggedText(tuple(words), None if columns[1] is None else tuple(tags), file.name, line, True)


# ------------------------------------------------------------------------------------------ .jsonl, Brown


def _name(file: Source, given: int | str | None, default: str, what: str) -> str:
    if given is None:
        return default
    if not isinstance(given, str):
        raise DataError(f"{file.name}: its fields have names; {what} is the number {given}")
    return given


def _json(file: Source, names: tuple[str, ...], errors: EncodingErrors) -> Iterator[TaggedText]:
    for record in json_objects(file, errors, Meter()):
        place = position(file.name, record.line)
        found = [text_list(record.value, name, place, errors, numbers=n == 1) for n, name in enumerate(names)]
        words = found[0]
        if not words:
            raise DataError(f"{place}, field '{names[0]}': holds no word; give the text one, or remove it")
        if len(found) > 1 and len(found[1]) != len(words):
            raise DataError(
                f"{place}, field '{names[1]}': holds {len(found[1]):,} labels of {len(words):,} words; "
                "give one for each"
            )
        yield TaggedText(words, found[1] if len(found) > 1 else None, file.name, record.line)


def _brown(file: Source, labels: bool) -> Iterator[TaggedText]:
    from wordloom.data.text.brown import brown_sentences

    for name, line, pairs in brown_sentences(file):
        words, tags = zip(*pairs, strict=True)
        yield TaggedText(words, tags if labels else None, f"{file.name}/{name}", line)
