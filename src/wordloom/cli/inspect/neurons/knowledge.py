"""``wordloom inspect CHECKPOINT knowledge``: how many of some facts a model knows."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Option

from wordloom.cli import options
from wordloom.cli.inspect.showing import HTML, check_outputs, show


def command(
    ctx: typer.Context,
    facts: Annotated[
        str,
        Option(
            metavar="FILE",
            help="A .jsonl or .json file of facts: prompt, answer and alternatives, a list of other possible "
            "answers.",
        ),
    ],
    plot: options.PLOT = None,
    html: HTML = None,
    force: options.FORCE = False,
    json: options.JSON = False,
) -> None:
    """Show how many of some facts the model knows, in bits."""
    from wordloom.data.rows.facts import facts_of
    from wordloom.progress import TerminalReporter
    from wordloom.run import LanguageModel, load_as
    from wordloom.run.views.knowledge import knowledge

    check_outputs(ctx, plot, html, force=force)
    found = facts_of(facts)
    lm = load_as(LanguageModel, ctx.obj, purpose="the view 'knowledge'")
    with TerminalReporter().progress(len(found)) as advance:
        view = knowledge(lm, found, progress=lambda n: advance(n, "facts"))
    show(view, plot=plot, html=html, json=json)
