"""``wordloom average RUN|CHECKPOINT... --out FOLDER``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from wordloom.cli.options import option


def command(
    sources: Annotated[
        list[Path],
        Argument(
            metavar="RUN|CHECKPOINT",
            help="Checkpoint folders, or the folders of runs, with all their checkpoints.",
        ),
    ],
    out: Annotated[Path, Option(help="The folder of the averaged model.")],
    last: int | None = option(None, "Take only the newest N checkpoints of each run.", min=2),
    force: bool = option(False, "Replace the checkpoint in --out.", "--force"),
) -> None:
    """Average the weights of checkpoints into a new checkpoint.  The new checkpoint keeps their tokenizer.

    A run keeps the last train.keep_last checkpoints, one every train.save_every steps.
    """
    from wordloom.run import average
    from wordloom.run.checkpoint.kinds import next_command

    averaged = average(sources, out, last=last, overwrite=force)
    typer.echo(f"mean of {len(averaged)} checkpoints: {', '.join(map(str, averaged))}")
    typer.echo(f"done: {out}")
    typer.echo(f"  {next_command(out)}")
