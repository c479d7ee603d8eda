"""``wordloom inspect CHECKPOINT words``: one word in several sentences."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Argument, Option

from wordloom.cli import options
from wordloom.cli.inspect.showing import HTML, check_outputs, show
from wordloom.cli.inspect.texts import load_reader


def command(
    ctx: typer.Context,
    texts: Annotated[list[str], Argument(metavar="TEXT...", help="Two or more texts with the word.")],
    word: Annotated[str, Option(help="The word, such as mole.")],
    plot: options.PLOT = None,
    html: HTML = None,
    force: options.FORCE = False,
    json: options.JSON = False,
) -> None:
    """Show how the vectors of a word differ between texts."""
    from wordloom.run.views.words import compare_word

    check_outputs(ctx, plot, html, force=force)
    view = compare_word(load_reader(ctx.obj, "words"), word, texts)
    show(view, plot=plot, html=html, json=json)
