"""``wordloom inspect CHECKPOINT lengths|forgetting``: scores by source length, and of old and new tasks."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.text import Text

from wordloom.cli import options
from wordloom.cli.options import option
from wordloom.cli.tables import plain_table, print_unwrapped
from wordloom.cli.usage import check_plot, short_names
from wordloom.errors import DataError

if TYPE_CHECKING:
    from wordloom.evaluate import LengthBin, Score


def lengths(
    ctx: typer.Context,
    file: str | None = option(
        None, "The file or data set of source texts.  [default: the validation data of the recipe]"
    ),
    targets: str | None = option(None, "The reference translations, line by line, of --file."),
    beside: options.BESIDE = None,
    beams: options.BEAMS = 5,
    width: int = option(5, "The width of a bin, in words.", min=1),
    plot: options.PLOT = None,
    force: options.FORCE = False,
    json: options.JSON = False,
) -> None:
    """Show the BLEU of translations by the length of their sources."""
    from wordloom.inspect import draw_lengths
    from wordloom.run import Translator, load_as
    from wordloom.run.tasks.translation.scores import lengths as bleu_by_length
    from wordloom.run.tasks.translation.scores import pairs_to_score

    check_plot(ctx, plot, force=force)
    if targets is not None and file is None:
        raise DataError("--targets are the translations of --file; give --file too")
    folders = [ctx.obj, *(beside or [])]
    names = short_names(folders)
    reading = {} if targets is None else {"targets": targets}
    runs: dict[str, list[LengthBin]] = {}
    first_pairs = None  # all models must be scored on the same pairs
    for folder in folders:
        pairs = list(pairs_to_score(Path(folder), [] if file is None else [file], **reading))
        if first_pairs is not None and [pair[:2] for pair in pairs] != [pair[:2] for pair in first_pairs]:
            raise DataError(f"{folders[0]} and {folder} have different validation pairs; give --file")
        first_pairs = pairs
        translator = load_as(Translator, folder, purpose="the view 'lengths'")
        runs[names[folder]] = bleu_by_length(translator, pairs, beams=beams, width=width)
    if plot is not None:
        draw_lengths(plot, runs)
    if json:
        facts = {
            name: [{**part._asdict(), "score": part.score.as_dict()} for part in bins]
            for name, bins in runs.items()
        }
        print(json_module.dumps(facts))
        return
    print_lengths(Console(), runs)
    if plot is not None:
        typer.echo(f"wrote {plot}", err=True)


def print_lengths(console: Console, runs: dict[str, list[LengthBin]]) -> None:
    """Print the BLEU of each run by source length, with half the width of its interval."""
    table = plain_table("BLEU by the words of the source", "words", "texts", *runs)
    for parts in zip(*runs.values(), strict=True):
        cells = [_cell(part.score) for part in parts]
        table.add_row(parts[0].label, f"{parts[0].pairs:,}", *cells)
    print_unwrapped(table, console)
    signatures = dict.fromkeys(part.score.signature for bins in runs.values() for part in bins)
    notes = {
        f"note: {name} on {part.label} words: {part.score.note}": None
        for name, bins in runs.items()
        for part in bins
        if part.score.note
    }
    console.print("\n".join([*signatures, *notes]), highlight=False, markup=False, soft_wrap=True)


def _cell(score: Score) -> str:
    if score.note:  # 0 by definition
        return "–"
    half = "" if score.interval is None else f" ±{(score.interval[1] - score.interval[0]) / 2:.1f}"
    return f"{score.value:.1f}{half}"


def forgetting(
    ctx: typer.Context,
    metric: str | None = option(
        None, "The metric of the new task.  [default: accuracy, or the task's main metric]"
    ),
    beside: options.BESIDE = None,
    plot: options.PLOT = None,
    force: options.FORCE = False,
    json: options.JSON = False,
) -> None:
    """Show how fine-tuned runs forgot their old task.

    The view compares the loss on the old task, before and after, with the metric of the new task.
    """
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
        change = f"{run.after - run.before:+.4f}"
        numbers = (f"{run.tokens:,}", f"{run.before:.4f}", f"{run.after:.4f}", change, f"{run.score:.4f}")
        table.add_row(run.remedy, run.label, *numbers, Text(str(run.folder), style="dim"))
    print_unwrapped(table)
    if plot is not None:
        typer.echo(f"wrote {plot}", err=True)
