"""``wordloom inspect CHECKPOINT ablate``: which heads and layers a model needs."""

from __future__ import annotations

from typing import Literal

import typer

from wordloom.cli import options
from wordloom.cli.inspect.showing import HTML, check_outputs, show
from wordloom.cli.inspect.texts import texts_to_read
from wordloom.cli.options import option


def command(
    ctx: typer.Context,
    file: str | None = option(
        None, "A file or data set to read.  [default: the validation data of the recipe]"
    ),
    tokens: int = option(10_000, "How many tokens to read.", min=1),
    window: int | None = option(
        None, "How many tokens the model reads at once.  [default: max_seq_len]", min=1
    ),
    value: Literal["zero", "mean"] = option(
        "zero", "What replaces the activations of a part: zero, or their mean over the text."
    ),
    specials: options.VIEW_SPECIALS = None,
    plot: options.PLOT = None,
    html: HTML = None,
    force: options.FORCE = False,
    json: options.JSON = False,
) -> None:
    """Show what the model loses without each of its parts.

    Each head and feed-forward layer is removed in turn, and the change of bits per byte is shown.
    """
    from wordloom.progress import TerminalReporter
    from wordloom.run import LanguageModel, load_as
    from wordloom.run.views.ablation import ablation, n_parts

    check_outputs(ctx, plot, html, force=force)
    lm = load_as(LanguageModel, ctx.obj, purpose="the view 'ablate'")
    documents, chosen = texts_to_read(ctx.obj, file, specials=specials)
    with TerminalReporter().progress(n_parts(lm.model)) as advance:
        view = ablation(
            lm.model,
            lm.text_tokenizer,
            documents,
            value=value,
            tokens=tokens,
            window=window,
            specials=chosen,
            progress=lambda n: advance(n, "parts"),
        )
    show(view, plot=plot, html=html, json=json)
