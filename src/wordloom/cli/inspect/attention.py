"""``wordloom inspect CHECKPOINT attention|alignment``: the attention weights of a prompt or a translation."""

from __future__ import annotations

import json as json_module
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text
from typer import Argument, Option

from wordloom.cli import options
from wordloom.cli.inspect.showing import HTML, check_outputs, report_written
from wordloom.cli.inspect.texts import ids_to_read, load_reader
from wordloom.cli.options import option
from wordloom.cli.usage import check_plot, refuse
from wordloom.inspect.token_names import visible

if TYPE_CHECKING:
    from wordloom.inspect import Alignment, AttentionMap
    from wordloom.text import Specials

_LETTERS_ABOVE = 14  # of a source token, above its column


def attention(
    ctx: typer.Context,
    prompt: Annotated[str, Option(help="The text that the model reads.")],
    layer: int | None = option(None, "The layer, from 0.  [default: the last; with --plot all]", min=0),
    head: options.HEAD = None,
    specials: options.VIEW_SPECIALS = None,
    plot: options.PLOT = None,
    html: HTML = None,
    force: options.FORCE = False,
    json: options.JSON = False,
) -> None:
    """Show how much each token attends to the others."""
    from wordloom.inspect import attention_map
    from wordloom.inspect.token_names import namer
    from wordloom.run import TextEncoder

    check_outputs(ctx, plot, html, force=force)
    _check_json(ctx, plot, json=json)
    loaded = load_reader(ctx.obj, "attention")
    usual: Specials = "interpret" if isinstance(loaded, TextEncoder) else "refuse"  # a text may have masks
    ids = ids_to_read(loaded, prompt, specials or usual)
    seen = attention_map(loaded.model, ids, list(map(namer(loaded.text_tokenizer), ids)))
    chosen = len(seen.weights) - 1 if layer is None else layer
    seen.head(chosen, head)  # report a wrong layer or head before any work
    if plot is not None:
        seen.save(plot, layer=layer)
    if html is not None:
        replace(seen, shown=(chosen, head)).save_html(html)
    if json:
        print(json_module.dumps({"tokens": seen.tokens, "ids": ids, "weights": seen.weights.tolist()}))
        return
    _print_attention(Console(), seen, layer=chosen, head=head)
    report_written(plot, html)


def _print_attention(console: Console, seen: AttentionMap, *, layer: int, head: int | None) -> None:
    """Print a row for each query token; the columns are the key tokens, in the same order."""
    T = len(seen.tokens)
    names = [visible(token) for token in seen.tokens]
    width = _width(names)
    room = (console.width - width - 5) // 2
    first = max(0, T - room) if room < T else 0
    which = "mean of all heads" if head is None else f"head {head}"
    console.print(Text(f"layer {layer}, {which}: query tokens (down), key tokens (across)", style="bold"))
    if first:
        console.print(f"(columns {first} to {T - 1}; a wider terminal shows all {T})", style="dim")
    for t, (name, line) in enumerate(zip(names, seen.shaded(layer, head), strict=True)):
        strongest = names[int(seen.head(layer, head)[t].argmax())]
        _print_row(console, f"{t:>3} ", name, width, line[2 * first :], strongest)
    for note in seen.notes():
        console.print(Text(note, style="dim"), soft_wrap=True)


def alignment(
    ctx: typer.Context,
    text: Annotated[str, Argument(metavar="TEXT", help="The source text.")],
    target: str | None = option(None, "The translation to align.  [default: the model's own]"),
    beams: options.BEAMS = 5,
    layer: int | None = option(None, "The layer, from 0.  [default: the mean of all layers]", min=0),
    head: options.HEAD = None,
    plot: options.PLOT = None,
    force: options.FORCE = False,
    json: options.JSON = False,
) -> None:
    """Show how much a translation attends to its source, by token."""
    from wordloom.run import Translator, load_as
    from wordloom.run.tasks.translation.scores import align

    check_plot(ctx, plot, force=force)
    _check_json(ctx, plot, json=json)
    seen = align(load_as(Translator, ctx.obj, purpose="the view 'alignment'"), text, target, beams=beams)
    if plot is not None:
        seen.save(plot, layer=layer, head=head)
    if json:
        facts = {"source": seen.source, "target": seen.target, "weights": seen.weights.tolist()}
        print(json_module.dumps(facts, ensure_ascii=False))
        return
    _print_alignment(Console(), seen, layer, head)
    if plot is not None:
        typer.echo(f"wrote {plot}", err=True)


def _print_alignment(console: Console, seen: Alignment, layer: int | None, head: int | None) -> None:
    """Print a row for each target token, with its strongest source token; the columns are source tokens."""
    matrix, names = seen.matrix(layer, head), [visible(token) for token in seen.target]
    across = [visible(token) for token in seen.source]
    width = _width(names)
    title = f"{seen.title(layer, head)}: target tokens (down), source tokens (across)"
    console.print(Text(f"{title}, █ up to {float(matrix.max()):.2f}", style="bold"))
    tall = min(max(map(len, across)), _LETTERS_ABOVE)
    for n in range(tall):  # each token of the source stands above its column, from top to bottom
        letters = "".join(f"{token.rjust(tall)[-tall:][n]} " for token in across)
        console.print(Text(f"{'':{width}} {letters}", style="dim"), no_wrap=True, overflow="crop")
    for name, line, row in zip(names, seen.shaded(layer, head), matrix, strict=True):
        _print_row(console, "", name, width, line, across[int(row.argmax())])


def _check_json(ctx: typer.Context, plot: Path | None, *, json: bool) -> None:
    if json:
        refuse(ctx, "--json prints all layers and heads", *(("head",) if plot else ("layer", "head")))


def _width(names: Sequence[str]) -> int:
    """Return the width of the column of names."""
    return min(max(map(len, names)), 16)


def _print_row(console: Console, prefix: str, name: str, width: int, weights: str, strongest: str) -> None:
    """Print a name, its shaded weights, and the token with the largest weight."""
    label = name if len(name) <= width else name[: width - 1] + "…"
    row = Text(f"{prefix}{label:>{width}} ")
    row.append(weights, style="cyan").append(f" {strongest}", style="dim")
    console.print(row, no_wrap=True, overflow="ellipsis")
