"""``wordloom inspect CHECKPOINT alignment|lengths``: views of translation models."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text
from typer import Argument

from wordloom.cli import options
from wordloom.cli.options import option
from wordloom.cli.tables import name_width, plain_table, visible, weight_row
from wordloom.cli.usage import check_plot, refuse, short_names
from wordloom.errors import DataError

if TYPE_CHECKING:
    from wordloom.evaluate import LengthBin, Score
    from wordloom.inspect import Alignment

__all__ = ["alignment", "lengths"]

_LETTERS_ABOVE = 14  # of a source token, above its column


def alignment(
    ctx: typer.Context,
    text: Annotated[str, Argument(metavar="TEXT", help="The source text.")],
    target: str | None = option(None, "The translation to align.  [default: the model's own]"),
    beams: options.BEAMS = 5,
    layer: int | None = option(None, "The layer, from 0.  [default: the mean of all layers]", min=0),
    head: options.HEAD = None,
    plot: options.PLOT = None,
    force: options.FORCE = False,
    json: options.JSON = False,
) -> None:
    """Show how much each token of a translation attends to each token of its source."""
    from wordloom.run import Translator, load_as
    from wordloom.run.tasks.translation.views import align

    check_plot(ctx, plot, force=force)
    if json:
        refuse(ctx, "--json prints all layers and heads", *(("head",) if plot else ("layer", "head")))
    seen = align(load_as(Translator, ctx.obj, purpose="the view 'alignment'"), text, target, beams=beams)
    if plot is not None:
        seen.save(plot, layer=layer, head=head)
    if json:
        facts = {"source": seen.source, "target": seen.target, "weights": seen.weights.tolist()}
        print(json_module.dumps(facts, ensure_ascii=False))
        return
    print_alignment(Console(), seen, layer, head)
    if plot is not None:
        typer.echo(f"wrote {plot}", err=True)


def print_alignment(console: Console, seen: Alignment, layer: int | None, head: int | None) -> None:
    """Print a row for each target token, with its strongest source token; the columns are source tokens."""
    matrix, names = seen.matrix(layer, head), [visible(token) for token in seen.target]
    across = [visible(token) for token in seen.source]
    width = name_width(names)
    title = f"{seen.title(layer, head)}: target tokens (down), source tokens (across)"
    console.print(Text(f"{title}, █ up to {float(matrix.max()):.2f}", style="bold"))
    tall = min(max(map(len, across)), _LETTERS_ABOVE)
    for n in range(tall):  # each token of the source stands above its column, from top to bottom
        letters = "".join(f"{token.rjust(tall)[-tall:][n]} " for token in across)
        console.print(Text(f"{'':{width}} {letters}", style="dim"), no_wrap=True, overflow="crop")
    for name, line, row in zip(names, seen.shaded(layer, head), matrix, strict=True):
        text = weight_row("", name, width, line, across[int(row.argmax())])
        console.print(text, no_wrap=True, overflow="ellipsis")


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
    """Show the BLEU of translations by the number of words in their sources."""
    from wordloom.inspect import draw_lengths
    from wordloom.run import Translator, load_as
    from wordloom.run.tasks.translation.scores import pairs_to_score
    from wordloom.run.tasks.translation.views import lengths as bleu_by_length

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
        print(json_module.dumps({name: list(map(_plain, bins)) for name, bins in runs.items()}))
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
    console.print(table)
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


def _plain(part: LengthBin) -> dict[str, object]:
    return {"first": part.first, "last": part.last, "pairs": part.pairs, "score": part.score.as_dict()}
