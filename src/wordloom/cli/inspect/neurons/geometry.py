"""``wordloom inspect CHECKPOINT geometry``: how many directions share the vectors' space."""

from __future__ import annotations

import typer

from wordloom.cli import options
from wordloom.cli.inspect.showing import HTML, check_outputs, show
from wordloom.cli.options import MOST_SEED, option


def command(
    ctx: typer.Context,
    seed: int = option(0, "The seed of the random directions.", min=0, max=MOST_SEED),
    plot: options.PLOT = None,
    html: HTML = None,
    force: options.FORCE = False,
    json: options.JSON = False,
) -> None:
    """Show the angles between embeddings and between neurons.

    Their cosines stand beside those of random directions, with the bounds of both.
    """
    from wordloom.inspect import geometry
    from wordloom.run import load

    check_outputs(ctx, plot, html, force=force)
    show(geometry(load(ctx.obj).model, seed=seed), plot=plot, html=html, json=json)
