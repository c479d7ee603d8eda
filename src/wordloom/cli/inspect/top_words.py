"""``wordloom inspect CHECKPOINT top-words``: the words that speak most for each label."""

from __future__ import annotations

import json as json_module

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wordloom.cli import options
from wordloom.cli.options import option
from wordloom.inspect.token_names import visible


def command(
    ctx: typer.Context,
    top_k: int = option(10, "How many words of each label to show.", min=1),
    json: options.JSON = False,
) -> None:
    """Show the words with the highest weights, by label."""
    from wordloom.run import TextClassifier, load_as

    words = load_as(TextClassifier, ctx.obj, purpose="the view 'top-words'").top_words(top_k)
    if json:
        print(json_module.dumps(words, ensure_ascii=False))
        return
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for label in words:
        table.add_column(Text(label))
        table.add_column("weight", justify="right")
    for row in zip(*words.values(), strict=True):
        table.add_row(*(cell for word, weight in row for cell in (Text(visible(word)), f"{weight:.3f}")))
    Console().print(table)
