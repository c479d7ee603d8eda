"""``wordloom train RECIPE [key=value ...]``."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

from typer import Argument

from wordloom.cli import options
from wordloom.cli.options import argument, option


def command(
    recipe: Annotated[
        str, Argument(help="The name of a built-in recipe, a .toml file, or the folder of a run.")
    ],
    overrides: list[str] | None = argument(
        None, "Settings that replace those of the recipe, such as train.steps=500.", metavar="[KEY=VALUE]..."
    ),
    out: Path | None = option(None, "The folder of the run.  [default: runs/RECIPE]"),
    resume: bool = option(False, "Continue the run in the folder.", "--resume"),
    force: bool = option(False, "Replace the run in the folder.", "--force"),
    start_from: Path | None = option(
        None, "Start from the weights and tokenizer of this checkpoint.", "--from"
    ),
    verbose: options.VERBOSE = False,
) -> None:
    """Train a model from a recipe. Ctrl-C saves and stops; --resume continues with an identical result."""
    import logging

    from wordloom.progress import RankProgress, TrainingProgress
    from wordloom.recipe.reading import refuse_repeated
    from wordloom.run import train
    from wordloom.run.checkpoint.kinds import next_command

    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(message)s")
    refuse_repeated(overrides or ())
    rank = int(os.environ.get("RANK", "0"))  # of torchrun
    progress = RankProgress(rank) if rank else TrainingProgress()
    result = train(
        recipe, overrides or (), out=out, resume=resume, force=force, start_from=start_from, progress=progress
    )
    folder = shlex.quote(str(result.folder))
    if result.stopped:
        progress.say(f"stopped at step {result.step:,} of {result.total_steps:,}; to continue:")
        progress.say(f"  wordloom train {folder} --resume")
    else:
        progress.say(f"done: {result.folder}")
        progress.say(f"  {next_command(result.folder)}")
        progress.say(f"  wordloom serve {folder}   # in a browser")
