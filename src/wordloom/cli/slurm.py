"""``wordloom slurm RECIPE --nodes N``: a script for sbatch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from wordloom.cli.options import argument, option


def command(
    recipe: Annotated[str, Argument(help="The name of a built-in recipe, or a .toml file.")],
    overrides: list[str] | None = argument(
        None, "Settings that replace those of the recipe, such as train.shard=full.", metavar="[KEY=VALUE]..."
    ),
    nodes: Annotated[int, Option(help="The number of machines.", min=1)] = 1,
    gpus_per_machine: int = option(8, "The GPUs of each machine.", min=1),
    time: str = option("24:00:00", "The time limit of the job, as Slurm writes it."),
    out: Path | None = option(
        None, "The folder of the run, on a disk that all machines share.  [default: runs/RECIPE]"
    ),
    partition: str | None = option(None, "The partition of Slurm."),
    account: str | None = option(None, "The account of Slurm."),
    setup: list[str] | None = option(
        None, "A line of shell to run first, such as 'source .venv/bin/activate'. Repeatable.", metavar="LINE"
    ),
    sbatch: list[str] | None = option(
        None, "A further option of sbatch, such as --mem=0. Repeatable.", metavar="OPTION"
    ),
    grace: int = option(300, "Seconds before the time limit at which the ranks save and stop.", min=10),
) -> None:
    """Print a script for sbatch that trains on many machines.

    A job at its time limit, or one that is preempted, saves, goes back into the queue and continues.
    """
    from wordloom.recipe import load_recipe
    from wordloom.run.slurm import sbatch_script

    loaded = load_recipe(recipe, overrides or (), say=lambda line: typer.echo(line, err=True))
    typer.echo(
        sbatch_script(
            recipe,
            overrides or (),
            name=loaded.name,
            out=out or Path("runs") / loaded.name,
            nodes=nodes,
            gpus=gpus_per_machine,
            time=time,
            partition=partition,
            account=account,
            setup=setup or (),
            grace=grace,
            more=sbatch or (),
        ),
        nl=False,
    )
