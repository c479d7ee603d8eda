"""``wordloom inspect CHECKPOINT heads``: which pattern each attention head follows."""

from __future__ import annotations

import typer

from wordloom.cli import options
from wordloom.cli.inspect.showing import HTML, check_outputs, show
from wordloom.cli.options import MOST_SEED, option
from wordloom.cli.usage import refuse


def command(
    ctx: typer.Context,
    length: int | None = option(
        None, "How many random tokens are repeated.  [default: 50, or half of max_seq_len]", min=2
    ),
    rows: int = option(8, "How many texts of them.", min=1, max=1000),
    seed: int = option(0, "The seed of the tokens.", min=0, max=MOST_SEED),
    history: bool = option(
        False, "Show how the patterns formed: read what train.inspect wrote into the run.", "--history"
    ),
    plot: options.PLOT = None,
    html: HTML = None,
    force: options.FORCE = False,
    json: options.JSON = False,
) -> None:
    """Show which pattern each attention head follows.

    The patterns are the previous token, repetitions, and the first token.
    """
    from wordloom.inspect import View, head_history, head_scores
    from wordloom.run import load

    check_outputs(ctx, plot, html, force=force)
    if history:
        refuse(ctx, "--history reads scores that training measured", "length", "rows", "seed")
        view: View = head_history(ctx.obj)
    else:
        view = head_scores(load(ctx.obj).model, length=length, rows=rows, seed=seed)
    show(view, plot=plot, html=html, json=json)
