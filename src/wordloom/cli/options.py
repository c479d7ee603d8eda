"""The options and arguments that several commands share, so that each reads the same everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

from typer import Argument, Option

from wordloom.cli.usage import UsageError

T = TypeVar("T")


def option(default: T, help: str, *names: str, **settings: Any) -> T:
    """Declare an option of one command: its default value, help, flags and settings of ``typer.Option``.

    Options that commands share are the types below.
    """
    declared: Any = Option(default, *names, help=help, **settings)
    return cast(T, declared)


def argument(default: T, help: str, **settings: Any) -> T:
    """Declare an argument of one command that may be left out, with settings of ``typer.Argument``."""
    declared: Any = Argument(default, help=help, **settings)
    return cast(T, declared)


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


CHECKPOINT = Annotated[Path, Argument(help="The folder of a trained model.")]
DEVICE = Annotated[str, Option(help="The device to compute on: auto, cpu, cuda, cuda:1 or mps.")]
DTYPE = Annotated[
    str, Option(help="The precision of the weights: auto (as stored), fp32, bf16, fp16 or int8.")
]
JSON = Annotated[bool, Option("--json", help="Print JSON.")]
JSON_LINES = Annotated[
    bool, Option("--json", help="Print a JSON object for each text, with all scores or probabilities.")
]
VERBOSE = Annotated[bool, Option("--verbose", "-v", help="Log more details.")]
MOST_SEED = 2**63 - 1
FORCE = Annotated[bool, Option("--force", help="Replace existing files.")]
PLOT = Annotated[
    Path | None,
    Option("--plot", "--png", "--svg", metavar="FILE", help="Draw into this .png, .svg or .pdf file."),
]

# -- reading texts

FIELD = Annotated[str, Option(help="The field of .jsonl and .parquet rows that holds the text.")]
RUN_FIELD = Annotated[
    str | None,
    Option(
        help="The field of .jsonl and .parquet rows that holds the text.  [default: as in training; text]"
    ),
]
SOURCES = Annotated[list[str], Argument(help="Files, folders, globs, data sets, or - for standard input.")]
SEPARATOR = Annotated[
    str | None,
    Option(
        help="End of a document in a .txt file: line, blank-line, file, or the line between two documents.  "
        "[default: file; named data sets have their own]"
    ),
]
SPECIALS = Annotated[
    Literal["refuse", "text", "interpret"],
    Option(help="Special tokens that occur in the text: refuse them, or read them as text or as tokens."),
]
VIEW_SPECIALS = Annotated[
    Literal["refuse", "text", "interpret"] | None,
    Option(
        help="Special tokens that occur in the text: refuse them, or read them as text or as tokens.  "
        "[default: refuse; as in training for the data of the recipe, and as tokens for an encoder's prompt]"
    ),
]
ENCODING_ERRORS = Annotated[
    Literal["strict", "replace"],
    Option(help="Text that is not UTF-8: report an error, or replace the wrong bytes with U+FFFD."),
]
TEXT_COLUMN = Annotated[
    list[str] | None,
    Option(
        metavar="COLUMN",
        callback=parse_columns,
        help="The column of a table that holds the text: a name, or a number from 1. Repeat the option for "
        "pairs of texts.",
    ),
]
LABEL_COLUMN = Annotated[
    str | None,
    Option(
        metavar="COLUMN",
        callback=parse_column,
        help="The column of a table that holds the label or score: a name, or a number from 1. 'file' takes "
        "the names of .txt files as labels.  [default: as in training, else 'label' or 'score']",
    ),
]
HEADER = Annotated[
    bool | None,
    Option(
        "--header/--no-header",
        help="Whether the first row of a .csv or .tsv file names its columns.  [default: yes if a column is "
        "given by name]",
    ),
]
THRESHOLD = Annotated[
    float | None,
    Option(
        help="Question answering: give no answer if its score exceeds that of the best answer by more than "
        "this.  [default: 0 for models trained to give none]"
    ),
]
ENCODING_ERRORS_OR_BYTES = Annotated[
    Literal["strict", "replace", "bytes"],
    Option(
        help="Text that is not UTF-8: report an error, replace the wrong bytes with U+FFFD, or read bytes "
        "(byte tokenizers)."
    ),
]
TOO_LONG = Annotated[
    Literal["error", "cut", "window"],
    Option(
        help="Texts with more tokens than the model reads: report an error, truncate them (cut), or read "
        "them in several windows, where the task allows it."
    ),
]
BATCH_SIZE = Annotated[
    int | None, Option(help="How many texts to read at a time; fewer need less memory.", min=1)
]

# -- generating text

MAX_NEW_TOKENS = Annotated[
    int | None,
    Option(help="Stop after this many tokens.  [default: 256, or the room that max_seq_len leaves]"),
]
TEMPERATURE = Annotated[float | None, Option(help="The sampling temperature; 0 is greedy.  [default: 0.8]")]
TOP_K = Annotated[
    int | None, Option(help="Sample from the k most probable tokens; 0 means all.  [default: 50]")
]
TOP_P = Annotated[
    float | None, Option(help="Sample from the most probable tokens that reach probability p; 1 means all.")
]
SEED = Annotated[int | None, Option(help="The random seed; the same seed gives the same text.")]
PAST = Annotated[
    str | None,
    Option(
        help="Text longer than max_seq_len: error, or slide the window (exact, slower).  [default: error]"
    ),
]
SPECULATE = Annotated[
    Literal["lookup", "corpus"] | None,
    Option(
        help="Guess the next tokens from n-grams and check several at once: those of the prompt and the text "
        "so far (lookup), or of the training data (corpus). The text stays the same."
    ),
]
BEAMS = Annotated[int, Option(help="How many hypotheses the beam search keeps; 1 is greedy.", min=1)]
LENGTH_PENALTY = Annotated[
    float, Option(help="Divide scores by the length to this power; values above 1 favour long texts.")
]
TRANSLATION_TOKENS = Annotated[
    int | None,
    Option(help="Stop a translation after this many tokens.  [default: by the source's length]", min=1),
]

# -- views of models

HEAD = Annotated[int | None, Option(help="The head, from 0.  [default: the mean of all heads]", min=0)]
BESIDE = Annotated[
    list[str] | None, Option(metavar="CHECKPOINT", help="Another model to compare. Repeatable.")
]
