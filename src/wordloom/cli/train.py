"""``wordloom train RECIPE [key=value ...]``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["command"]


def command(
    recipe: Annotated[str, typer.Argument(help="The name of a shipped recipe, or a .toml file.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings that replace the recipe's: train.steps=500"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder.  [default: runs/RECIPE]")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where the run in the folder stopped.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the run in the folder.")] = False,
    start_from: Annotated[
        Path | None, typer.Option("--from", help="Start from the weights and tokenizer of this checkpoint.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say more about what runs.")] = False,
) -> None:
    """Train a model from a recipe; Ctrl-C saves and stops, --resume goes on to the same bit."""
    import logging

    from wordloom.recipe.reading import refuse_repeated
    from wordloom.run import train
    from wordloom.run.checkpoint.load import next_command
    from wordloom.run.progress import TrainingProgress

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
        progress.say(f"stopped at step {result.step:,} of {result.total_steps:,}; to go on:")
        folder = shlex.quote(str(result.folder))
        progress.say(f"  wordloom train {folder} --out {folder} --resume")
    else:
        progress.say(f"done: {result.folder}")
        progress.say(f"  {next_command(result.folder)}")
