"""``wordloom inspect CHECKPOINT contributions``: how much each part of the model adds to a logit."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Option

from wordloom.cli import options
from wordloom.cli.inspect.showing import HTML, check_outputs, show
from wordloom.cli.inspect.texts import token_of
from wordloom.cli.options import option


def command(
    ctx: typer.Context,
    prompt: Annotated[str, Option(help="The text that the model reads.")],
    target: str | None = option(
        None, "The token whose logit is taken apart.  [default: the most probable one]", metavar="TOKEN"
    ),
    against: str | None = option(None, "Subtract the logit of this token.", metavar="TOKEN"),
    at: int | None = option(
        None, "The position, from 0, after which the token comes.  [default: the last]", min=0
    ),
    plot: options.PLOT = None,
    html: HTML = None,
    force: options.FORCE = False,
    json: options.JSON = False,
) -> None:
    """Show what each head and layer adds to the next token's logit."""
    from wordloom.inspect import contributions
    from wordloom.inspect.token_names import namer
    from wordloom.run import LanguageModel, load_as

    check_outputs(ctx, plot, html, force=force)
    lm = load_as(LanguageModel, ctx.obj, purpose="the view 'contributions'")
    tokenizer = lm.text_tokenizer
    goal, other = (
        None if token is None else token_of(tokenizer, token, name)
        for token, name in ((target, "--target"), (against, "--against"))
    )
    ids = tokenizer.prompt_ids(prompt, specials="text")
    view = contributions(lm.model, ids, namer(tokenizer), at=at, target=goal, against=other)
    show(view, plot=plot, html=html, json=json)
