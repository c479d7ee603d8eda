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

    from wordloom.errors import RankError, RecipeError
    from wordloom.progress import RankProgress, TrainingProgress
    from wordloom.recipe.reading import refuse_repeated
    from wordloom.run import train
    from wordloom.run.checkpoint.kinds import next_command

    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(message)s")
    rank = int(os.environ.get("RANK", "0"))  # of torchrun
    try:
        refuse_repeated(overrides or ())
    except RecipeError as error:
        raise (RankError(str(error)) if rank else error) from None  # the first rank says it for all
    progress = RankProgress(rank) if rank else TrainingProgress()
    result = train(
        recipe, overrides or (), out=out, resume=resume, force=force, start_from=start_from, progress=progress
    )
    if rank:
        return
    folder = shlex.quote(str(result.folder))
    if result.stopped:
        progress.say(f"stopped at step {result.step:,} of {result.total_steps:,}; to continue:")
        progress.say(f"  {_start()} train {folder} --resume")
    else:
        progress.say(f"done: {result.folder}")
        progress.say(f"  {next_command(result.folder)}")
        progress.say(f"  wordloom serve {folder}   # in a browser")


def _start() -> str:
    """Return how the command was started: alone, or by torchrun with a number of ranks for each machine."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks == 1:
        return "wordloom"
    each = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    machines = f"--nnodes {ranks // each} " if ranks > each else ""
    return f"torchrun {machines}--nproc-per-node {each} -m wordloom"
