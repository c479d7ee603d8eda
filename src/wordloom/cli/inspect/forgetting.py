"""``wordloom inspect CHECKPOINT forgetting``: how much fine-tuned runs forgot of their old task."""

from __future__ import annotations

import json as json_module

import typer
from rich.text import Text

from wordloom.cli import options
from wordloom.cli.options import option
from wordloom.cli.tables import plain_table, print_unwrapped
from wordloom.cli.usage import check_plot

__all__ = ["command"]


def command(
    ctx: typer.Context,
    metric: str | None = option(
        None, "The metric of the new task.  [default: accuracy, or the task's main metric]"
    ),
    beside: options.BESIDE = None,
    plot: options.PLOT = None,
    force: options.FORCE = False,
    json: options.JSON = False,
) -> None:
    """Show the loss of fine-tuned runs on their old task, before and after, beside the new task's metric."""
    from wordloom.run.sweep.forgetting import REMEDIES, forgetting_of

    check_plot(ctx, plot, force=force)
    runs = forgetting_of([ctx.obj, *(beside or [])], metric)
    if plot is not None:
        from wordloom.inspect.score_plots import draw_forgetting

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
