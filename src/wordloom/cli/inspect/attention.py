"""``wordloom inspect CHECKPOINT attention``: the attention weights of a prompt."""

from __future__ import annotations

import json as json_module
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text
from typer import Option

from wordloom.cli import options
from wordloom.cli.options import option
from wordloom.cli.tables import name_width, visible, weight_row
from wordloom.cli.usage import check_plot, refuse

if TYPE_CHECKING:
    from wordloom.inspect import AttentionMap

__all__ = ["command", "print_attention"]


def command(
    ctx: typer.Context,
    prompt: Annotated[str, Option(help="The text that the model reads.")],
    layer: int | None = option(None, "The layer, from 0.  [default: the last; with --plot all]", min=0),
    head: options.HEAD = None,
    plot: options.PLOT = None,
    force: options.FORCE = False,
    json: options.JSON = False,
) -> None:
    """Show how much each token of a prompt attends to each earlier token."""
    from wordloom.inspect import attention_map
    from wordloom.run import LanguageModel, load_as

    check_plot(ctx, plot, force=force)
    if json:
        refuse(ctx, "--json prints all layers and heads", *(("head",) if plot else ("layer", "head")))
    lm = load_as(LanguageModel, ctx.obj, purpose="the view 'attention'")
    tokenizer = lm.text_tokenizer
    ids = tokenizer.prompt_ids(prompt)
    seen = attention_map(lm.model, ids, [tokenizer.decode([i]) for i in ids])
    if plot is not None:
        seen.save(plot, layer=layer)
    chosen = len(seen.weights) - 1 if layer is None else layer
    if json:
        print(json_module.dumps({"tokens": seen.tokens, "ids": ids, "weights": seen.weights.tolist()}))
        return
    print_attention(Console(), seen, layer=chosen, head=head)
    if plot is not None:
        typer.echo(f"wrote {plot}", err=True)


def print_attention(console: Console, seen: AttentionMap, *, layer: int, head: int | None) -> None:
    """Print a row for each query token; the columns are the key tokens, in the same order."""
    T = len(seen.tokens)
    names = [visible(token) for token in seen.tokens]
    width = name_width(names)
    room = (console.width - width - 5) // 2
    first = max(0, T - room) if room < T else 0
    which = "mean of all heads" if head is None else f"head {head}"
    console.print(Text(f"layer {layer}, {which}: query tokens (down), key tokens (across)", style="bold"))
    if first:
        console.print(f"(columns {first} to {T - 1}; a wider terminal shows all {T})", style="dim")
    for t, (name, line) in enumerate(zip(names, seen.shaded(layer, head), strict=True)):
        strongest = int(seen.head(layer, head)[t].argmax())
        row = weight_row(f"{t:>3} ", name, width, line[2 * first :], names[strongest])
        console.print(row, no_wrap=True, overflow="ellipsis")
