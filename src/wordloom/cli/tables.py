"""How tables and tokens look on a terminal."""

from __future__ import annotations

from rich import box
from rich.table import Table

__all__ = ["plain_table", "visible"]


def plain_table(title: str | None, *columns: str) -> Table:
    """A plain table: the first column names, the others hold numbers."""
    made = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_edge=False)
    for i, column in enumerate(columns):
        made.add_column(column, justify="right" if i else "left", no_wrap=True)
    return made


def visible(token: str) -> str:
    """A token with its white space to be seen."""
    return token.replace(" ", "␣").replace("\n", "↵") or "∅"
