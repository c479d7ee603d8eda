"""``wordloom inspect CHECKPOINT|PRESET pattern``: which keys each query sees."""

from __future__ import annotations

import json as json_module
import string
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.text import Text

from wordloom.cli import options
from wordloom.cli.inspect.parameters import config_of
from wordloom.cli.options import option
from wordloom.cli.usage import check_plot

if TYPE_CHECKING:
    from wordloom.inspect.pattern_plots import LayerPattern

_UNSEEN = "·"  # a key that is not seen
_MARKS = "█▓▒░#*+ox" + string.ascii_uppercase  # the kinds of a pattern; more of them share marks


def command(
    ctx: typer.Context,
    tokens: int = option(24, "How many tokens the text has.", min=1, max=512),
    attention: str | None = option(
        None, "Another attention, such as band:256+global:4.  [default: the model's]", metavar="PATTERN"
    ),
    plot: options.PLOT = None,
    force: options.FORCE = False,
    json: options.JSON = False,
) -> None:
    """Show which keys each token attends to, by layer."""
    from wordloom.inspect.pattern_plots import draw_patterns, layer_patterns
    from wordloom.models.building.attention import with_attention

    check_plot(ctx, plot, force=force)
    config = config_of(ctx.obj)
    chosen = getattr(getattr(config, "body", config), "attention", "full") if attention is None else attention
    patterns = layer_patterns(with_attention(config, chosen))
    if plot is not None:
        draw_patterns(plot, patterns, tokens)
    if json:
        facts = [
            {
                "layers": each.layers,
                "pattern": str(each.pattern),
                "keys_per_query": each.pattern.n_pairs(tokens) / tokens,
            }
            for each in patterns
        ]
        print(json_module.dumps({"tokens": tokens, "patterns": facts}))
        return
    for each in patterns:
        _print(Console(), each, tokens)
    if plot is not None:
        typer.echo(f"wrote {plot}", err=True)


def _print(console: Console, each: LayerPattern, tokens: int) -> None:
    """Print a row for each query; the columns are keys, with the mark of the kind that lets them be seen."""
    from wordloom.nn.attention import Approximation

    kinds = ", ".join(f"{_mark(number)} {kind}" for number, kind in enumerate(each.pattern.kinds, 1))
    keys = each.pattern.n_pairs(tokens) / tokens
    console.print(
        Text(f"{each.layers}: queries (down), keys (across), {kinds}", style="bold"), soft_wrap=True
    )
    for row in each.kinds(tokens):
        console.print(Text("".join(2 * _mark(kind) for kind in row)), soft_wrap=True)
    approximates = isinstance(each.pattern, Approximation)
    cost = f"{keys:,.1f} keys"
    if approximates:
        cost = f"{each.pattern} approximates attention to these keys by as many operations as {cost}"
    console.print(f"{cost} per query of {tokens:,} tokens\n", highlight=False)


def _mark(number: int) -> str:
    """Return the mark of kind ``number``, from 1; 0 stands for a key that is not seen."""
    return _MARKS[(number - 1) % len(_MARKS)] if number else _UNSEEN
