"""``wordloom average RUN|CHECKPOINT... --out FOLDER``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["command"]


def command(
    sources: Annotated[
        list[Path],
        typer.Argument(metavar="RUN|CHECKPOINT...", help="Checkpoint folders, or runs: all that they keep."),
    ],
    out: Annotated[Path, typer.Option(help="The folder of the averaged model.")],
    last: Annotated[
        int | None, typer.Option(help="Only the newest so many checkpoints of a run.", min=2)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a checkpoint in --out.")] = False,
) -> None:
    """Average the weights of checkpoints into a model of its own, with their tokenizer.

    A run keeps train.keep_last checkpoints, one each train.save_every steps.
    """
    from wordloom.run import average
    from wordloom.run.checkpoint.load import next_command

    found = average(sources, out, last=last, overwrite=force)
    typer.echo(f"mean of {len(found)} checkpoints: {', '.join(map(str, found))}")
    typer.echo(f"done: {out}")
    typer.echo(f"  {next_command(out)}")
