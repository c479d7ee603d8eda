"""``wordloom inspect CHECKPOINT forgetting``: how much fine-tuned runs forgot of their old task."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from wordloom.cli.options import FORCE, JSON, PLOT
from wordloom.cli.tables import plain_table, print_unwrapped
from wordloom.cli.usage import check_plot

__all__ = ["command"]


def command(
    ctx: typer.Context,
    metric: Annotated[
        str | None,
        typer.Option(help="The metric of the new task.  [default: accuracy, or the task's main metric]"),
    ] = None,
    beside: Annotated[
        list[str] | None, typer.Option(metavar="CHECKPOINT", help="Another run to compare. Repeatable.")
    ] = None,
    plot: Annotated[Path | None, PLOT] = None,
    force: Annotated[bool, FORCE] = False,
    json: JSON = False,
) -> None:
    """Show the loss of fine-tuned runs on their old task, before and after, beside the new task's metric."""
    from wordloom.run.sweep.forgetting import REMEDIES, forgetting_of

    check_plot(ctx, plot, force=force)
    runs = forgetting_of([ctx.obj, *(beside or [])], metric)
    if plot is not None:
        from wordloom.inspect.forgetting import draw_forgetting

        draw_forgetting(plot, runs, REMEDIES)
    if json:
        print(json_module.dumps([run.as_dict() for run in runs], ensure_ascii=False))
        return
    table = plain_table(None, "", "", "tokens", "old loss before", "after", "change", runs[0].metric, "")
    for run in runs:
        losses = (
            f"{run.before:.4f}",
            f"{run.after:.4f}",
            f"{run.after - run.before:+.4f}",
            f"{run.score:.4f}",
        )
        table.add_row(run.remedy, run.label, f"{run.tokens:,}", *losses, Text(str(run.folder), style="dim"))
    print_unwrapped(table)
    if plot is not None:
        typer.echo(f"wrote {plot}", err=True)
