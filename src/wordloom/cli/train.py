"""``wordloom train RECIPE [key=value ...]``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from wordloom.cli.options import VERBOSE

__all__ = ["command"]


def command(
    recipe: Annotated[
        str,
        typer.Argument(
            help="The name of a built-in recipe, a .toml file, or the folder of a run.", show_default=False
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Settings that replace those of the recipe, such as train.steps=500.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The folder of the run.  [default: runs/RECIPE]")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the folder.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the run in the folder.")] = False,
    start_from: Annotated[
        Path | None, typer.Option("--from", help="Start from the weights and tokenizer of this checkpoint.")
    ] = None,
    verbose: VERBOSE = False,
) -> None:
    """Train a model from a recipe. Ctrl-C saves and stops; --resume continues with an identical result."""
    import logging

    from wordloom.progress import TrainingProgress
    from wordloom.recipe.reading import refuse_repeated
    from wordloom.run import train
    from wordloom.run.checkpoint.load import next_command

    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(message)s")
    refuse_repeated(overrides or ())
    progress = TrainingProgress()
    result = train(
        recipe,
        overrides or (),
        out=out,
        resume=resume,
        force=force,
        start_from=start_from,
        progress=progress,
    )
    if result.stopped:
        progress.say(f"stopped at step {result.step:,} of {result.total_steps:,}; to continue:")
        folder = shlex.quote(str(result.folder))
        progress.say(f"  wordloom train {folder} --resume")
    else:
        progress.say(f"done: {result.folder}")
        progress.say(f"  {next_command(result.folder)}")
