"""Files that a verb writes: their options, and what is refused before any work."""

from __future__ import annotations

from pathlib import Path

import typer

from wordloom.errors import WordloomError

__all__ = ["FORCE", "PLOT", "refuse_existing"]

FORCE = typer.Option("--force", help="Replace files that are there already.")
PLOT = typer.Option(metavar="FILE", help="Draw into this .png, .svg or .pdf file.")


def refuse_existing(*paths: Path | None, force: bool, plot: Path | None = None) -> None:
    """Raise WordloomError where one of the files to write is there already, unless ``force``; and where the
    ending of ``plot``, which is written too, names no format of pictures."""
    if plot is not None:
        from wordloom.inspect.figures import check_format

        check_format(plot)
    for path in (*paths, plot):
        if path is not None and path.is_dir():
            raise WordloomError(f"'{path}' is a folder; name a file")
        if path is not None and path.exists() and not force:
            raise WordloomError(f"'{path}' is there already; choose another name, or replace it with --force")
