"""``wordloom merge CHECKPOINT --adapter ADAPTER --out FOLDER``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from wordloom.cli import options


def command(
    checkpoint: options.CHECKPOINT,
    adapter: Annotated[Path, Option(help="The folder of the adapter, as Wordloom and peft write it.")],
    out: Annotated[Path, Option(help="The folder of the new model.")],
    force: options.FORCE = False,
) -> None:
    """Merge an adapter into the weights of its base model.

    The sum is computed in fp32 and stored in the precision of the base.
    """
    from wordloom.run.checkpoint.kinds import next_command
    from wordloom.run.checkpoint.merge import merge_into_base

    merged = merge_into_base(checkpoint, adapter, out, overwrite=force)
    typer.echo(merged.adapter.line())
    typer.echo(
        f"largest change of a logit by merging: {merged.largest:.2g} in fp32, {merged.stored:.2g} as stored"
    )
    typer.echo(f"done: {out}")
    typer.echo(f"  {next_command(out)}")
