"""Tables on a terminal."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text


class PlainTable(Table):
    """A table whose strings are shown as they are: brackets of names and texts are no markup."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        super().add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells), **options)


def plain_table(title: str | None, *columns: str) -> PlainTable:
    """Return a table whose first column holds names and the others numbers."""
    shown = None if title is None else Text(title)
    table = PlainTable(
        title=shown, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_edge=False
    )
    for i, column in enumerate(columns):
        table.add_column(Text(column), justify="right" if i else "left", no_wrap=True)
    return table


def print_unwrapped(table: Table, console: Console | None = None) -> None:
    """Print a table at its full width, also in a narrow window or a pipe without a width."""
    console = console or Console()
    table.width = console.measure(table, options=console.options.update_width(1000)).maximum
    with console.capture() as printed:
        console.print(table, crop=False, highlight=False)
    for line in printed.get().splitlines():
        text = Text.from_ansi(line)
        text.rstrip()
        console.print(text, soft_wrap=True, highlight=False)
