"""The group ``wordloom data`` and its commands."""

from __future__ import annotations

import typer

from wordloom.cli.data.merge import merge
from wordloom.cli.data.prepare import DashedSources, prepare
from wordloom.cli.data.sets import fetch, list_

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.command("list")(list_)
app.command()(fetch)
app.command(cls=DashedSources)(prepare)
app.command()(merge)
