"""``wordloom inspect CHECKPOINT memories``: what triggers a neuron, and which words it promotes."""

from __future__ import annotations

from pathlib import Path

import typer

from wordloom.cli import options
from wordloom.cli.inspect.showing import HTML, check_outputs, show
from wordloom.cli.inspect.texts import windows_to_read
from wordloom.cli.options import option
from wordloom.cli.usage import UsageError, refuse, refuse_existing


def command(
    ctx: typer.Context,
    neuron: list[str] | None = option(
        None,
        "A neuron to show, such as 3.120: layer 3, number 120. Repeatable.  [default: those that promote one "
        "word most]",
        metavar="LAYER.NUMBER",
    ),
    most: int = option(10, "How many neurons to show without --neuron.", min=1),
    file: str | None = option(
        None, "A file or data set to read.  [default: the validation data of the recipe]"
    ),
    tokens: int = option(100_000, "How many tokens to read.", min=1),
    window: int | None = option(
        None, "How many tokens the model reads at once.  [default: max_seq_len]", min=1
    ),
    top_k: int = option(25, "How many contexts of each neuron to keep.", min=1, max=1000),
    store: Path | None = option(
        None,
        "Keep the contexts in this file. A run that was interrupted goes on from it, and a finished one is "
        "shown at once.",
        metavar="FILE",
    ),
    specials: options.VIEW_SPECIALS = None,
    plot: options.PLOT = None,
    html: HTML = None,
    force: options.FORCE = False,
    json: options.JSON = False,
) -> None:
    """Show what activates a neuron, and which words it promotes."""
    from wordloom.inspect.memories.memories import check_neurons, memories
    from wordloom.inspect.memories.triggers import find_triggers, fingerprint
    from wordloom.inspect.token_names import namer
    from wordloom.progress import TerminalReporter
    from wordloom.run import LanguageModel, load_as

    check_outputs(ctx, plot, html, force=force)
    if neuron:
        refuse(ctx, "--neuron names the neurons to show", "most")
    chosen = [_neuron(text) for text in neuron or ()]
    if store is not None:
        refuse_existing(store, html, plot=plot, force=True)  # three files
    lm = load_as(LanguageModel, ctx.obj, purpose="the view 'memories'")
    check_neurons(lm.model, chosen)
    windows = windows_to_read(lm, ctx.obj, file, tokens=tokens, window=window, specials=specials)
    weights = "" if store is None else fingerprint(lm.model)
    with TerminalReporter().progress(tokens) as advance:
        triggers = find_triggers(
            lm.model, windows, top_k=top_k, store=store, weights=weights,
            progress=lambda n: advance(n, ""),
        )  # fmt: skip
    view = memories(lm.model, triggers, namer(lm.text_tokenizer), chosen=chosen, most=most)
    show(view, plot=plot, html=html, json=json)


def _neuron(text: str) -> tuple[int, int]:
    layer, _, number = text.partition(".")
    if not (layer.isdecimal() and number.isdecimal()):
        raise UsageError(f"--neuron is a layer and a number, such as 3.120, not {text!r}")
    return int(layer), int(number)
