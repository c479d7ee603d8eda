"""``wordloom inspect RUN alignment|lengths``: views of models that turn one text into another."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.text import Text

from wordloom.cli.tables import plain_table, visible
from wordloom.cli.usage import names_of
from wordloom.errors import DataError, GenerationError

if TYPE_CHECKING:
    from wordloom.evaluate import LengthBin, Score
    from wordloom.inspect import Alignment

__all__ = ["inspect_alignment", "inspect_lengths"]

_TALL = 14  # letters of a token that stand above its column


def inspect_alignment(
    folder: str,
    source: str | None,
    target: str | None,
    beams: int,
    layer: int | None,
    head: int | None,
    plot: Path | None,
    *,
    json: bool,
) -> None:
    if source is None:
        raise GenerationError(
            'alignment needs a source: give the text behind it, as in alignment "Ein Hund."'
        )
    from wordloom.run import load_translator
    from wordloom.run.tasks.translation.views import align

    seen = align(load_translator(folder), source, target, beams=beams)
    if plot is not None:
        seen.save(plot, layer=layer, head=head)
    if json:
        facts = {"source": seen.source, "target": seen.target, "weights": seen.weights.tolist()}
        print(json_module.dumps(facts, ensure_ascii=False))
        return
    print_alignment(Console(), seen, layer, head)
    if plot is not None:
        typer.echo(f"drawn into {plot}", err=True)


def print_alignment(console: Console, seen: Alignment, layer: int | None, head: int | None) -> None:
    """A line per token written, and the token of the source that it looks at most; columns are the source."""
    matrix, names = seen.matrix(layer, head), [visible(token) for token in seen.target]
    across = [visible(token) for token in seen.source]
    width = min(max(map(len, names)), 16)
    title = f"{seen.title(layer, head)}: written (down) from what is read (across)"
    console.print(Text(f"{title}, █ up to {float(matrix.max()):.2f}", style="bold"))
    tall = min(max(map(len, across)), _TALL)
    for n in range(tall):  # each token of the source stands above its column, from top to bottom
        letters = "".join(f"{token.rjust(tall)[-tall:][n]} " for token in across)
        console.print(Text(f"{'':{width}} {letters}", style="dim"), no_wrap=True, overflow="crop")
    for name, line, row in zip(names, seen.shaded(layer, head), matrix, strict=True):
        label = name if len(name) <= width else name[: width - 1] + "…"
        text = Text(f"{label:>{width}} ")
        text.append(line, style="cyan")
        text.append(f" {across[int(row.argmax())]}", style="dim")
        console.print(text, no_wrap=True, overflow="ellipsis")


def inspect_lengths(
    folders: list[str],
    file: str | None,
    targets: str | None,
    beams: int,
    width: int,
    plot: Path | None,
    *,
    json: bool,
) -> None:
    if targets is not None and file is None:
        raise DataError("--targets stand beside --file, the sources; give that too")
    from wordloom.inspect import draw_lengths
    from wordloom.run import load_translator
    from wordloom.run.tasks.translation.scores import pairs_to_score
    from wordloom.run.tasks.translation.views import lengths

    runs: dict[str, list[LengthBin]] = {}
    reading = {} if targets is None else {"targets": targets}
    sources = [] if file is None else [file]
    same = None  # the pairs of the first, which all must have
    names = names_of(folders)
    for folder in folders:
        pairs = list(pairs_to_score(Path(folder), sources, **reading))
        if same is not None and [pair[:2] for pair in pairs] != [pair[:2] for pair in same]:
            raise DataError(f"{folders[0]} and {folder} read different pairs; name one set by --file")
        same = pairs
        runs[names[folder]] = lengths(load_translator(folder), pairs, beams=beams, width=width)
    if plot is not None:
        draw_lengths(plot, runs)
    if json:
        print(json_module.dumps({name: list(map(_plain, found)) for name, found in runs.items()}))
        return
    print_lengths(Console(), runs)
    if plot is not None:
        typer.echo(f"drawn into {plot}", err=True)


def print_lengths(console: Console, runs: dict[str, list[LengthBin]]) -> None:
    """BLEU of each run by the words of the source, with half the width of its interval."""
    table = plain_table("BLEU by the words of the source", "words", "texts", *runs)
    for parts in zip(*runs.values(), strict=True):
        cells = [_cell(part.score) for part in parts]
        table.add_row(parts[0].label, f"{parts[0].pairs:,}", *cells)
    console.print(table)
    signatures = dict.fromkeys(part.score.signature for found in runs.values() for part in found)
    notes = {
        f"note: {name} on {part.label} words: {part.score.note}": None
        for name, found in runs.items()
        for part in found
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
