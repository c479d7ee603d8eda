"""``wordloom convert CHECKPOINT --kv-heads N --out FOLDER``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Option

from wordloom.cli import options
from wordloom.cli.options import option
from wordloom.cli.usage import refuse


def command(
    ctx: typer.Context,
    checkpoint: options.CHECKPOINT,
    kv_heads: Annotated[
        int, Option(help="How many heads of keys and values the new model has; 1 is multi-query attention.")
    ],
    out: Annotated[Path, Option(help="The folder of the new model.")],
    merge: Literal["mean", "first", "random"] = option(
        "mean", "A new head is the mean of a group of heads, the first of them, or random."
    ),
    seed: int = option(0, "random: the seed of the new weights.", min=0, max=2**63 - 1),
    force: bool = option(False, "Replace the checkpoint in --out.", "--force"),
) -> None:
    """Let attention heads share keys and values.

    The new model has grouped-query or multi-query attention, whose cache is smaller. Train it further with
    'wordloom train RECIPE --from FOLDER model.n_kv_heads=N'.
    """
    from wordloom.run.checkpoint.convert import convert_heads
    from wordloom.run.checkpoint.kinds import next_command

    if merge != "random":
        refuse(ctx, f"merge '{merge}' draws no weights", "seed")
    before = convert_heads(checkpoint, out, kv_heads=kv_heads, merge=merge, seed=seed, overwrite=force)
    typer.echo(f"heads of keys and values: {before} in {checkpoint}, {kv_heads} in {out}, by '{merge}'")
    typer.echo(f"done: {out}")
    typer.echo(f"  {next_command(out)}")
