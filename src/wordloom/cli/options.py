"""The options and arguments that several commands share, so that each reads the same everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from wordloom.cli.usage import UsageError

__all__ = [
    "BATCH_SIZE",
    "BEAMS",
    "CHECKPOINT",
    "DEVICE",
    "DTYPE",
    "ENCODING_ERRORS",
    "FIELD",
    "FORCE",
    "HEADER",
    "JSON",
    "LABEL_COLUMN",
    "LENGTH_PENALTY",
    "MAX_NEW_TOKENS",
    "PAST",
    "PLOT",
    "SEED",
    "SEPARATOR",
    "SOURCES",
    "SPECIALS",
    "TEMPERATURE",
    "TEXT_COLUMN",
    "THRESHOLD",
    "TOP_K",
    "TOP_P",
    "VERBOSE",
    "parse_column",
    "parse_columns",
]


def parse_column(given: str | None) -> str | int | None:
    """Return a column by name, or by number if only digits are given."""
    return int(given) if given is not None and given.isdecimal() else given


def parse_columns(given: Sequence[str] | None) -> list[str | int] | None:
    """Return the columns of a repeated option, each with several columns between commas.

    Raises UsageError for an empty name and for column 0.
    """
    if not given:
        return None
    columns = [parse_column(name.strip()) for one in given for name in one.split(",")]
    if not all(columns):
        raise UsageError(
            f"--text-column names a column, or several with commas between, not {' '.join(given)!r}; columns "
            "are numbered from 1"
        )
    return [column for column in columns if column is not None]


CHECKPOINT = Annotated[Path, typer.Argument(help="The folder of a trained model.", show_default=False)]
DEVICE = Annotated[str, typer.Option(help="The device to compute on: auto, cpu, cuda, cuda:1 or mps.")]
DTYPE = Annotated[
    str, typer.Option(help="The precision of the weights: auto (as stored), fp32, bf16 or fp16.")
]
JSON = Annotated[bool, typer.Option("--json", help="Print JSON.")]
VERBOSE = Annotated[bool, typer.Option("--verbose", "-v", help="Log more details.")]
FORCE = typer.Option("--force", help="Replace existing files.")
PLOT = typer.Option(metavar="FILE", help="Draw into this .png, .svg or .pdf file.")

# -- reading texts

FIELD = Annotated[str, typer.Option(help="The field of .jsonl and .parquet rows that holds the text.")]
SOURCES = Annotated[
    list[str],
    typer.Argument(help="Files, folders, globs, data sets, or - for standard input.", show_default=False),
]
SEPARATOR = Annotated[
    str | None,
    typer.Option(
        help="What separates the documents of a .txt file: 'line', 'blank-line', or the text of a line."
    ),
]
SPECIALS = Annotated[
    Literal["refuse", "text", "interpret"],
    typer.Option(
        help="Special tokens that occur in the text: refuse them, or read them as text or as tokens."
    ),
]
ENCODING_ERRORS = Annotated[
    Literal["strict", "replace"],
    typer.Option(help="Text that is not UTF-8: report an error, or replace the wrong bytes with U+FFFD."),
]
TEXT_COLUMN = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN",
        callback=parse_columns,
        help="The column of a table that holds the text: a name, or a number from 1. Repeat the option for "
        "pairs of texts.",
    ),
]
LABEL_COLUMN = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        callback=parse_column,
        help="The column of a table that holds the label or score: a name, or a number from 1. 'file' takes "
        "the names of .txt files as labels.  [default: as in training, else 'label' or 'score']",
    ),
]
HEADER = Annotated[
    bool | None,
    typer.Option(
        "--header/--no-header",
        help="Whether the first row of a .csv or .tsv file names its columns.  [default: yes if a column is "
        "given by name]",
    ),
]
THRESHOLD = Annotated[
    float | None,
    typer.Option(
        help="Question answering: give no answer if its score exceeds that of the best answer by more than "
        "this.  [default: 0 for models trained to give none]"
    ),
]
BATCH_SIZE = Annotated[
    int | None,
    typer.Option(help="How many texts to read at a time; fewer need less memory.", min=1),
]

# -- generating text

MAX_NEW_TOKENS = Annotated[
    int | None,
    typer.Option(help="Stop after this many tokens.  [default: 256, or the room that max_seq_len leaves]"),
]
TEMPERATURE = Annotated[
    float | None, typer.Option(help="The sampling temperature; 0 is greedy.  [default: 0.8]")
]
TOP_K = Annotated[
    int | None,
    typer.Option(help="Sample from the k most probable tokens; 0 means all.  [default: 50]"),
]
TOP_P = Annotated[
    float | None,
    typer.Option(help="Sample from the most probable tokens that reach probability p; 1 means all."),
]
SEED = Annotated[int | None, typer.Option(help="The random seed; the same seed gives the same text.")]
PAST = Annotated[
    str | None,
    typer.Option(
        help="Text longer than max_seq_len: error, or slide the window (exact, slower).  [default: error]"
    ),
]
BEAMS = Annotated[int, typer.Option(help="How many hypotheses the beam search keeps; 1 is greedy.", min=1)]
LENGTH_PENALTY = Annotated[
    float,
    typer.Option(help="Divide scores by the length to this power; values above 1 favour long texts."),
]
