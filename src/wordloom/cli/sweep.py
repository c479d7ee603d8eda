"""``wordloom sweep RECIPE key=v1,v2 [key=...]``."""

from __future__ import annotations

import json as json_module
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text
from typer import Argument

from wordloom.cli import options
from wordloom.cli.options import option
from wordloom.cli.tables import plain_table, print_unwrapped
from wordloom.errors import WordloomError


def command(
    recipe: Annotated[str, Argument(help="The name of a built-in recipe, or a .toml file.")],
    settings: Annotated[
        list[str],
        Argument(
            metavar="KEY=VALUE[,VALUE]...",
            help="Settings that replace those of the recipe. Each combination of their values is a run.",
        ),
    ],
    out: Path | None = option(None, "The folder of the runs.  [default: runs/RECIPE-sweep]"),
    start_from: Path | None = option(None, "Start each run from the weights of this checkpoint.", "--from"),
    metric: str = option("loss", "The validation metric that decides."),
    maximize: bool = option(False, "The highest value is best.", "--maximize"),
    minimize: bool = option(False, "The lowest value is best.", "--minimize"),
    median: str | None = option(
        None, "Compare medians over the values of this key, such as seed.", metavar="KEY"
    ),
    dry_run: bool = option(False, "Print the runs; train nothing.", "--dry-run"),
    json: bool = option(False, "Print the runs and the best as JSON.", "--json"),
    verbose: options.VERBOSE = False,
) -> None:
    """Train a recipe with every combination of settings.  The best is chosen by a validation metric.

    After Ctrl-C, the same command continues and trains nothing twice. To repeat a run, remove its folder. The
    exit code is 1 if a run failed.
    """
    import logging

    from wordloom.progress import TrainingProgress
    from wordloom.run.checkpoint.kinds import next_command
    from wordloom.run.sweep.grid import split_settings
    from wordloom.run.sweep.sweep import sweep

    if maximize and minimize:
        raise WordloomError("give --maximize or --minimize, not both")
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(message)s")
    grid, overrides = split_settings(settings)
    progress = TrainingProgress()
    result = sweep(
        recipe,
        grid,
        overrides,
        out=out,
        start_from=start_from,
        metric=metric,
        higher=True if maximize else False if minimize else None,
        median=median,
        dry_run=dry_run,
        progress=progress,
    )
    if json:
        print(json_module.dumps(result.as_dict(), ensure_ascii=False, indent=1, default=str))
    else:
        _print(result)
    if different := result.measured_differently:
        progress.say(
            f"note: these scores were measured differently ({different}); the best run may have "
            "had the easiest task"
        )
    for line in result.undefined:
        progress.say(f"left out: {line}")
    if dry_run:
        progress.say(f"{result.count('waiting') + result.count('stopped')} of {len(result.runs)} to train")
    elif result.stopped:
        progress.say("stopped; the same command continues")
    elif result.best is not None:
        progress.say(f"best: {shlex.quote(str(result.best.folder))}")
        progress.say(f"  {next_command(result.best.folder)}")
    for run in result.runs:
        if run.state == "failed":
            progress.say(f"failed: {run.folder.name}: {run.reason}; to repeat it, remove its folder")
    if result.count("failed") and not dry_run:
        raise typer.Exit(1)


def _print(result: Any) -> None:
    """Print the runs, and the medians over the key of ``--median``; mark the best."""
    names = list(dict.fromkeys(name for run in result.runs for name in run.metrics))
    rows = []
    for run in result.runs:
        values = [f"{run.metrics[name]:.4f}" if name in run.metrics else "" for name in names]
        measured = [f"{run.steps:,}", f"{run.seconds:.1f}"] if run.steps else ["", ""]
        state = "" if run.state == "done" else run.state
        rows.append((run.settings, [*values, *measured, state], run is result.best))
    print_unwrapped(_table([*names, "steps", "seconds", ""], rows, mark=not result.groups))
    if not result.groups:
        return
    rows = []
    for group in result.groups:
        values = ["" if v is None else f"{v:.4f}" for v in (group.median, group.low, group.high)]
        best = any(run is result.best for run in group.runs)
        rows.append((group.settings, [*values, f"{group.done} of {len(group.runs)}"], best))
    print()
    print_unwrapped(_table([f"median {result.metric}", "lowest", "highest", "runs"], rows, mark=True))


def _table(headings: list[str], rows: list[tuple[dict[str, Any], list[str], bool]], *, mark: bool) -> Table:
    """Return a table of rows of settings, values, and whether the row is the best."""
    keys = list(rows[0][0])
    table = plain_table(None, "", *(_short(key, keys) for key in keys), *headings)
    for settings, values, best in rows:
        cells = [Text(_value(value)) for value in settings.values()]
        table.add_row("*" if best and mark else "", *cells, *values, style="bold" if best else None)
    return table


def _short(key: str, keys: list[str]) -> str:
    """Return the last part of a key, or the key if another column has that name."""
    last = [*(name.rpartition(".")[2] for name in keys), "steps", "seconds"]
    part = key.rpartition(".")[2]
    return part if last.count(part) == 1 else key


def _value(value: Any) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
