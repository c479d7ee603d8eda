"""``wordloom inspect CHECKPOINT lens``: what the model would predict after each layer."""

from __future__ import annotations

import typer

from wordloom.cli import options
from wordloom.cli.inspect.showing import HTML, check_outputs, show
from wordloom.cli.inspect.texts import windows_to_read
from wordloom.cli.options import option
from wordloom.cli.usage import refuse
from wordloom.errors import GenerationError


def command(
    ctx: typer.Context,
    prompt: str | None = option(None, "Show each token of this text."),
    file: str | None = option(
        None,
        "Without --prompt, measure the tokens of this file or data set.  [default: the validation data of "
        "the recipe]",
    ),
    tokens: int = option(10_000, "How many tokens to measure.", min=1),
    window: int | None = option(
        None, "How many tokens the model reads at once.  [default: max_seq_len]", min=1
    ),
    top_k: int = option(5, "How many predictions of each token --json and --html hold.", min=1),
    specials: options.VIEW_SPECIALS = None,
    plot: options.PLOT = None,
    html: HTML = None,
    force: options.FORCE = False,
    json: options.JSON = False,
) -> None:
    """Show what the model would predict after each layer.

    With --prompt, for each token of a text. Otherwise over many tokens: bits per token, and how often the
    prediction is right.
    """
    from wordloom.inspect import lens, lens_summary
    from wordloom.inspect.token_names import namer
    from wordloom.progress import TerminalReporter
    from wordloom.run import LanguageModel, load_as

    check_outputs(ctx, plot, html, force=force)
    if prompt is None:
        refuse(ctx, "--top-k is for one text: give --prompt", "top_k")
    else:
        refuse(ctx, "--prompt shows one text", "tokens", "window", "specials")
        if file is not None:
            raise GenerationError("both --prompt and --file name a text to read; give one of them")
    lm = load_as(LanguageModel, ctx.obj, purpose="the view 'lens'")
    tokenizer = lm.text_tokenizer
    if prompt is not None:
        ids = tokenizer.prompt_ids(prompt, specials="text")
        view = lens(lm.model, ids, namer(tokenizer), top_k=top_k)
        show(view, plot=plot, html=html, json=json)
        return
    with TerminalReporter().progress(tokens) as advance:
        windows = windows_to_read(lm, ctx.obj, file, tokens=tokens, window=window, specials=specials)
        summary = lens_summary(lm.model, windows, progress=lambda n: advance(n, ""))
    show(summary, plot=plot, html=html, json=json)
