"""The options that every view shares, and how its result is printed, drawn and written."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text
from typer import Option

from wordloom.cli.tables import plain_table, print_unwrapped
from wordloom.cli.usage import refuse, refuse_existing
from wordloom.errors import NonFiniteError, WordloomError

if TYPE_CHECKING:
    from wordloom.inspect import View

HTML = Annotated[
    Path | None, Option(metavar="FILE", help="Write a page of HTML into this file; it needs no network.")
]


def check_outputs(ctx: typer.Context, plot: Path | None, html: Path | None, *, force: bool) -> None:
    """Raise WordloomError if ``plot`` or ``html`` cannot be written, or ``force`` has nothing to replace."""
    from wordloom.inspect.figures import FORMATS

    if plot is None and html is None:
        refuse(ctx, "without --plot and --html no file is written", "force")
    if html is not None and html.suffix.lower() in FORMATS:
        raise WordloomError(
            f"--html writes a page, and '{html}' names a picture; name a file that ends in .html"
        )
    inputs = [ctx.params.get(name) for name in ("file", "facts", "store")]
    refuse_existing(html, plot=plot, force=force, inputs=inputs, models=[Path(ctx.obj)])


def show(view: View, *, plot: Path | None, html: Path | None, json: bool) -> None:
    """Draw and write a view, and print its tables, or with ``json`` its values."""
    if plot is not None:
        view.save(plot)
    if html is not None:
        view.save_html(html)
    if json:
        try:
            text = json_module.dumps(view.as_dict(), ensure_ascii=False, allow_nan=False)
        except ValueError:
            raise NonFiniteError("a value is not finite; the model's weights are damaged") from None
        print(text)
        return
    console = Console()
    for i, table in enumerate(view.tables()):
        if i:
            console.print()
        if table.title:
            console.print(Text(table.title, style="bold"), soft_wrap=True)
        printed = plain_table(None, *table.columns)
        for row in table.rows:
            printed.add_row(*map(Text, row))  # not as markup, which tokens may look like
        print_unwrapped(printed, console)
    for note in view.notes():
        console.print(note, highlight=False, markup=False, soft_wrap=True)
    report_written(plot, html)


def report_written(*paths: Path | None) -> None:
    """Say on standard error which files were written."""
    for path in filter(None, paths):
        typer.echo(f"wrote {path}", err=True)
