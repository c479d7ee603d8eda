"""``wordloom inspect FOLDER forgetting``: what runs have learnt beside what they have forgotten."""

from __future__ import annotations

import json as json_module
from pathlib import Path

import typer
from rich.console import Console
from rich.text import Text

from wordloom.cli.tables import plain_table

__all__ = ["inspect_forgetting"]


def inspect_forgetting(folders: list[str], metric: str | None, plot: Path | None, *, json: bool) -> None:
    from wordloom.run.sweep.forgetting import REMEDIES, forgetting_of

    runs = forgetting_of(folders, metric)
    if plot is not None:
        from wordloom.inspect.forgetting import draw_forgetting

        draw_forgetting(plot, runs, REMEDIES)
    if json:
        print(json_module.dumps([run.as_dict() for run in runs], ensure_ascii=False))
        return
    table = plain_table(None, "", "", "tokens", "old loss before", "after", "change", runs[0].metric, "")
    for run in runs:
        figures = (
            f"{run.before:.4f}",
            f"{run.after:.4f}",
            f"{run.after - run.before:+.4f}",
            f"{run.score:.4f}",
        )
        table.add_row(run.remedy, run.label, f"{run.tokens:,}", *figures, Text(str(run.folder), style="dim"))
    whole = Console(width=1000).measure(table).maximum
    Console(width=max(Console().width, whole), highlight=False).print(table)
    if plot is not None:
        typer.echo(f"drawn into {plot}", err=True)
