"""``wordloom inspect CHECKPOINT patch``: which vector carries the difference between two texts."""

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
    clean: Annotated[str, Option(help="A text with the right answer.")],
    corrupt: Annotated[str, Option(help="A text with another answer and as many tokens.")],
    target: str | None = option(
        None, "The answer to the first text.  [default: the most probable token]", metavar="TOKEN"
    ),
    foil: str | None = option(
        None, "The answer to the second text.  [default: the most probable token]", metavar="TOKEN"
    ),
    plot: options.PLOT = None,
    html: HTML = None,
    force: options.FORCE = False,
    json: options.JSON = False,
) -> None:
    """Show which vector carries the difference of two texts.

    Each vector of the first text in turn is put into the second; the effect is 1 if it brings back the answer
    to the first text, and 0 if it changes nothing.
    """
    from wordloom.inspect import patching
    from wordloom.inspect.token_names import namer
    from wordloom.run import LanguageModel, load_as

    check_outputs(ctx, plot, html, force=force)
    lm = load_as(LanguageModel, ctx.obj, purpose="the view 'patch'")
    tokenizer = lm.text_tokenizer
    goals = [
        None if token is None else token_of(tokenizer, token, name)
        for token, name in ((target, "--target"), (foil, "--foil"))
    ]
    first, second = (tokenizer.prompt_ids(text, specials="text") for text in (clean, corrupt))
    view = patching(lm.model, first, second, namer(tokenizer), target=goals[0], foil=goals[1])
    show(view, plot=plot, html=html, json=json)
