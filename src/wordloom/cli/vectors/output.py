"""What the commands of ``wordloom vectors`` share: options, opening vectors, tables and notes."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from wordloom.vectors import KeyedVectors

__all__ = [
    "JSON",
    "RESTRICT",
    "ROWS",
    "TOP_K",
    "UNICODE_ERRORS",
    "VECTORS",
    "made_table",
    "namesakes",
    "opened",
    "print_json",
    "shown",
    "tell",
    "whether_stopped",
]

VECTORS = Annotated[
    Path,
    typer.Argument(
        metavar="VECTORS",
        help="A file or folder of word vectors, or the folder of a trained model: its token vectors.",
    ),
]
ROWS = Annotated[
    Literal["embedding", "head"] | None,
    typer.Option(help="Of a model: its token embedding, or the rows of its head.  [default: embedding]"),
]
UNICODE_ERRORS = Annotated[
    Literal["strict", "ignore", "replace", "surrogateescape"],
    typer.Option(help="What to do with words of a file that are not UTF-8; strict refuses them."),
]
TOP_K = Annotated[int, typer.Option(help="How many words.", min=1)]
RESTRICT = Annotated[
    int | None,
    typer.Option(help="Look at the first so many words alone, the most frequent as a rule.", min=1),
]
JSON = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def opened(
    path: Path, rows: Literal["embedding", "head"] | None = None, unicode_errors: str = "strict"
) -> KeyedVectors:
    """The vectors at ``path``; a terminal is told what takes so long."""
    from wordloom.vectors import open_vectors

    with Console(stderr=True).status(f"reading {path}"):  # shown on a terminal alone
        found = open_vectors(path, rows=rows, unicode_errors=unicode_errors)
    tell(whether_stopped(path))
    return found


def whether_stopped(path: Path) -> list[str]:
    """A note on vectors whose training stopped before its end."""
    from wordloom.vectors.files.saved_state import how_to_go_on, stopped_at

    share = stopped_at(path)
    return [] if share is None else [f"training stopped at {share:.0%}; to go on: {how_to_go_on(path)}"]


def namesakes(wv: KeyedVectors, words: Iterable[str]) -> list[str]:
    """A note on each word that another token of a model may be meant by."""
    from wordloom.vectors import TokenVectors

    notes: list[str] = []
    if not isinstance(wv, TokenVectors):
        return notes
    for word in dict.fromkeys(words):
        if others := wv.namesakes(word):
            taken = wv.index_to_key[wv.get_index(word)]
            also = " and ".join(map(repr, others))
            notes.append(f"{word!r} is taken for the token {taken!r}; there is {also} too")
    return notes


def made_table(*columns: str, left: int = 1) -> Table:
    """A plain table: the first ``left`` columns hold names, the others numbers."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for place, column in enumerate(columns):
        header = Text(column)  # a word in brackets is no markup
        if place < left:
            table.add_column(header, overflow="fold")
        else:
            table.add_column(header, justify="right", no_wrap=True)
    return table


def shown(word: str) -> Text:
    """A word as it can be typed again: one with a space at an end in quotes."""
    return Text(repr(word) if word != word.strip() else word)


def tell(notes: Iterable[str]) -> None:
    """Notes, on standard error."""
    for note in notes:
        print(f"note: {note}", file=sys.stderr)


def print_json(**facts: Any) -> None:
    """One line of JSON; what is not a number is null."""
    print(json_module.dumps(facts, ensure_ascii=False))
