"""``wordloom vectors convert SOURCE DEST``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from rich.console import Console
from typer import Argument

from wordloom.cli import options
from wordloom.cli.options import option
from wordloom.cli.vectors.output import ROWS, UNICODE_ERRORS, print_json, print_notes


def convert(
    source: Annotated[
        Path,
        Argument(
            metavar="SOURCE",
            help="A file or folder of vectors, a fastText model, or a trained model's folder.",
        ),
    ],
    dest: Annotated[Path, Argument(metavar="DEST", help="The new file or folder; .gz compresses a file.")],
    to: Literal["folder", "word2vec", "word2vec-text", "glove", "fasttext"] | None = option(
        None,
        "Format.  [default: by the suffix: .bin is fasttext for vectors with n-grams and otherwise "
        "word2vec, .vec and .txt are word2vec-text, none is folder]",
    ),
    rows: ROWS = None,
    unicode_errors: UNICODE_ERRORS = "strict",
    force: bool = option(False, "Replace DEST if it exists.", "--force"),
    json: options.JSON = False,
) -> None:
    """Convert vectors to another format.  Report what that format cannot store."""
    from wordloom.vectors import convert_vectors

    with Console(stderr=True).status(f"converting {source}"):  # shown on a terminal only
        done = convert_vectors(source, dest, to=to, rows=rows, unicode_errors=unicode_errors, force=force)
    if json:
        print_json(source=str(source), dest=str(dest), **done._asdict())
        return
    print(f"{dest}: {done.words:,} words of {done.dim:,} components, {done.format}")
    print_notes(done.notes)
