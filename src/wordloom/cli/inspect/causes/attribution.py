"""``wordloom inspect CHECKPOINT attribution``: which tokens of a text a score depends on."""

from __future__ import annotations

from typing import Annotated, Literal

import typer
from typer import Option

from wordloom.cli import options
from wordloom.cli.inspect.showing import HTML, check_outputs, show
from wordloom.cli.inspect.texts import token_of
from wordloom.cli.options import option


def command(
    ctx: typer.Context,
    prompt: Annotated[str, Option(help="The text; for an encoder it has one mask, such as [MASK].")],
    target: str | None = option(
        None,
        "The token, or the label of a classifier, whose logit is explained.  [default: the most probable]",
        metavar="TOKEN|LABEL",
    ),
    method: Literal["integrated-gradients", "gradient", "occlusion"] = option(
        "integrated-gradients",
        "integrated-gradients: sums to the logit less its value without tokens. gradient: times the input. "
        "occlusion: the change when a token's embedding is zero, easier to read for a LLaMA.",
    ),
    most_steps: int = option(
        4096, "The most points that integrated gradients compute; they end when the sum is right.", min=32
    ),
    plot: options.PLOT = None,
    html: HTML = None,
    force: options.FORCE = False,
    json: options.JSON = False,
) -> None:
    """Show which tokens of a text a prediction depends on."""
    from wordloom.cli.usage import refuse
    from wordloom.run import TextClassifier, load
    from wordloom.run.views.attribution import attribute

    check_outputs(ctx, plot, html, force=force)
    if method != "integrated-gradients":
        refuse(ctx, f"--method {method} computes one point", "most_steps")
    loaded = load(ctx.obj)
    goal: str | int | None = target
    if target is not None and not isinstance(loaded, TextClassifier) and hasattr(loaded, "text_tokenizer"):
        goal = token_of(loaded.text_tokenizer, target, "--target")
    view = attribute(loaded, prompt, target=goal, method=method, most_steps=most_steps)
    show(view, plot=plot, html=html, json=json)
