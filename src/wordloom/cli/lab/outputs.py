"""The folder into which an experiment writes its picture and its measurements."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from wordloom.cli.usage import refuse, refuse_existing
from wordloom.errors import WordloomError

OUT_HELP = "A folder for the picture (.png) and all measurements (.json)."
SEED_HELP = "The random seed; the same seed gives the same result."


def check_out(ctx: typer.Context, out: Path | None, experiment: str, *, force: bool) -> None:
    """Raise WordloomError, before any work, if the files cannot be drawn or written."""
    if out is None:
        refuse(ctx, "without --out no file is written", "force")
        return
    from wordloom.inspect.figures import load_matplotlib

    if out.exists() and not out.is_dir():
        raise WordloomError(f"'{out}' is not a folder; choose another name for --out")
    load_matplotlib()
    refuse_existing(*_files(out, experiment), force=force)


def write_out(out: Path | None, experiment: str, draw: Callable[[Path], None], found: Any) -> None:
    """Write the picture and the measurements ``found`` into ``out``, and report both; None writes nothing."""
    from wordloom.files import write_text

    if out is None:
        return
    out.mkdir(parents=True, exist_ok=True)
    picture, data = _files(out, experiment)
    draw(picture)
    write_text(data, json.dumps(found) + "\n")
    for path in (picture, data):
        typer.echo(f"wrote {path}", err=True)


def _files(out: Path, experiment: str) -> tuple[Path, Path]:
    """Return the picture and the JSON file of an experiment."""
    return out / f"{experiment}.png", out / f"{experiment}.json"
