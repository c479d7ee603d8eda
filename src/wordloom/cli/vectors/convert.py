"""``wordloom vectors convert SOURCE DEST``: vectors from one format into another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from wordloom.cli.vectors.output import JSON, ROWS, UNICODE_ERRORS, print_json, tell

__all__ = ["convert"]


def convert(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE",
            help="A file or folder of vectors, a fastText model, or a trained model's folder.",
        ),
    ],
    dest: Annotated[
        Path, typer.Argument(metavar="DEST", help="Where to.  .gz at the end compresses a file.")
    ],
    to: Annotated[
        Literal["folder", "word2vec", "word2vec-text", "glove", "fasttext"] | None,
        typer.Option(
            help="[default: by DEST's name: .bin is fasttext for vectors with n-grams and word2vec for "
            "others, .vec and .txt word2vec-text, no suffix folder]"
        ),
    ] = None,
    rows: ROWS = None,
    unicode_errors: UNICODE_ERRORS = "strict",
    force: Annotated[bool, typer.Option("--force", help="Replace what is at DEST.")] = False,
    json: JSON = False,
) -> None:
    """Convert vectors to another format, and report what it cannot keep."""
    from wordloom.vectors import convert_vectors

    with Console(stderr=True).status(f"converting {source}"):  # shown on a terminal alone
        done = convert_vectors(source, dest, to=to, rows=rows, unicode_errors=unicode_errors, force=force)
    if json:
        print_json(source=str(source), dest=str(dest), **done._asdict())
        return
    print(f"{dest}: {done.words:,} words of {done.dim:,} components, {done.format}")
    tell(done.notes)
