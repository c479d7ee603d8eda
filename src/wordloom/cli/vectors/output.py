"""Options, tables and notes of the commands of ``wordloom vectors``."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

if TYPE_CHECKING:
    from wordloom.vectors import KeyedVectors

VECTORS = Annotated[
    Path,
    Argument(
        metavar="VECTORS",
        help="A file or folder of word vectors, or the folder of a trained model (its token vectors).",
    ),
]
ROWS = Annotated[
    Literal["embedding", "head"] | None,
    Option(help="Tensor of a trained model: its token embedding or its head.  [default: embedding]"),
]
UNICODE_ERRORS = Annotated[
    Literal["strict", "ignore", "replace", "surrogateescape"],
    Option(help="Treatment of words of a file that are not UTF-8; strict refuses them."),
]
TOP_K = Annotated[int, Option(help="Number of words.", min=1)]
RESTRICT = Annotated[
    int | None, Option(help="Search only this many words, from the start (usually the most frequent).", min=1)
]


def opened(
    path: Path, rows: Literal["embedding", "head"] | None = None, unicode_errors: str = "strict"
) -> KeyedVectors:
    """Open the vectors at ``path``, with a status line on a terminal."""
    from wordloom.vectors import open_vectors

    with Console(stderr=True).status(f"reading {path}"):  # shown on a terminal only
        vectors = open_vectors(path, rows=rows, unicode_errors=unicode_errors)
    print_notes(stopped_notes(path))
    return vectors


def stopped_notes(path: Path) -> list[str]:
    """Return a note if the training of the vectors stopped early."""
    from wordloom.vectors.files.saved_state import resume_command, stopped_at

    share = stopped_at(path)
    return [] if share is None else [f"training stopped at {share:.0%}; to resume: {resume_command(path)}"]


def namesakes(wv: KeyedVectors, words: Iterable[str]) -> list[str]:
    """Return a note for each word that may refer to another token of a model."""
    from wordloom.vectors import TokenVectors

    notes: list[str] = []
    if not isinstance(wv, TokenVectors):
        return notes
    for word in dict.fromkeys(words):
        if others := wv.namesakes(word):
            token = wv.index_to_key[wv.get_index(word)]
            also = " and ".join(map(repr, others))
            notes.append(f"{word!r} refers to the token {token!r}; there is also {also}")
    return notes


def new_table(*columns: str, left: int = 1) -> Table:
    """Return a table whose first ``left`` columns hold names, and the others numbers."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for place, column in enumerate(columns):
        header = Text(column)  # Text, so that a word in brackets is not read as markup
        if place < left:
            table.add_column(header, overflow="fold")
        else:
            table.add_column(header, justify="right", no_wrap=True)
    return table


def shown(word: str) -> Text:
    """Return a word for a table, in quotes if it begins or ends with a space."""
    return Text(repr(word) if word != word.strip() else word)


def print_notes(notes: Iterable[str]) -> None:
    """Print notes on standard error."""
    for note in notes:
        print(f"note: {note}", file=sys.stderr)


def print_json(**facts: Any) -> None:
    """Print one line of JSON."""
    print(json_module.dumps(facts, ensure_ascii=False))
