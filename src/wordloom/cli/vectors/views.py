"""``wordloom vectors neighbours|axis``: words on a map, and on named axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer import Argument

from wordloom.cli import options
from wordloom.cli.options import option
from wordloom.cli.usage import refuse, refuse_existing
from wordloom.cli.vectors import output

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from wordloom.vectors import Axis

_BAR = 12  # characters from zero to the largest value

WORDS = Annotated[list[str], Argument(metavar="WORD...", help="Words, taken literally.")]


def neighbours(
    ctx: typer.Context,
    vectors: output.VECTORS,
    words: WORDS,
    top_k: int = option(8, "Number of neighbours of each word; 0: only the words.", min=0),
    plot: options.PLOT = None,
    force: options.FORCE = False,
    method: Literal["pca", "tsne"] = option("pca", "Projection of the map: principal components, or t-SNE."),
    seed: int = option(0, "Random seed of t-SNE."),
    restrict_vocab: output.RESTRICT = None,
    rows: output.ROWS = None,
    unicode_errors: output.UNICODE_ERRORS = "strict",
    json: options.JSON = False,
) -> None:
    """Find the nearest words of each word, and plot a map of them."""
    from wordloom.vectors import word_map

    if plot is None and not json:
        refuse(ctx, "without --plot or --json there is no map", "method", "seed")
    if method == "pca":
        refuse(ctx, "principal components are not random", "seed")
    refuse_existing(plot=plot, force=force)
    wv = output.opened(vectors, rows, unicode_errors)
    result = word_map(wv, words, topn=top_k, restrict_vocab=restrict_vocab, method=method, seed=seed)
    if plot is not None:
        from wordloom.inspect import draw_map

        draw_map(result, plot)
    notes = output.namesakes(wv, words)
    if json:
        output.print_json(
            vectors=str(vectors),
            neighbours={
                word: [{"word": near, "cosine": cosine} for near, cosine in nearest]
                for word, nearest in result.neighbours.items()
            },
            method=method,
            explained=result.explained,
            points=dict(zip(result.words, result.points.tolist(), strict=True)),
            plot=None if plot is None else str(plot),
            notes=notes,
        )
        return
    console = Console()
    for word, nearest in result.neighbours.items():
        table = output.new_table(output.shown(word).plain, "cosine")
        for near, cosine in nearest:
            table.add_row(output.shown(near), f"{cosine:.4f}")
        console.print(table)
        console.print()
    output.print_notes([*notes, *([f"plotted to {plot}"] if plot is not None else [])])


def axis(
    vectors: output.VECTORS,
    words: WORDS,
    toward: list[str] | None = option(
        None,
        "End of an axis, such as newborn.  A comma starts another axis, and + averages words: "
        "newborn,human or man+he.  May be repeated.",
    ),
    start: list[str] | None = option(
        None, "Start of an axis, written as in --toward; each needs a --to.", "--from"
    ),
    end: list[str] | None = option(None, "End of an axis with a --from.", "--to"),
    plot: options.PLOT = None,
    force: options.FORCE = False,
    rows: output.ROWS = None,
    unicode_errors: output.UNICODE_ERRORS = "strict",
    json: options.JSON = False,
) -> None:
    """Project words on axes, such as from male to female.

    The number is the cosine with the axis: 1 along it, 0 across it, -1 against it.
    """
    from wordloom.vectors import project
    from wordloom.vectors.use.axes import parse_axes

    refuse_existing(plot=plot, force=force)
    wv = output.opened(vectors, rows, unicode_errors)
    axes = parse_axes(wv, toward=toward or (), start=start or (), end=end or ())
    values = project(wv, words, axes)
    if plot is not None:
        from wordloom.inspect import draw_axes

        draw_axes(words, values, [axis.name for axis in axes], plot)
    notes = output.namesakes(wv, [*words, *(word for axis in axes for word in (*axis.away, *axis.toward))])
    if json:
        output.print_json(
            vectors=str(vectors),
            axes=[{"name": a.name, "from": list(a.away), "to": list(a.toward)} for a in axes],
            words=[{"word": word, "cosines": row} for word, row in zip(words, values.tolist(), strict=True)],
            plot=None if plot is None else str(plot),
            notes=notes,
        )
        return
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    table.add_column("word", overflow="fold")
    for named in axes:
        table.add_column(Text(named.name), justify="right")
        table.add_column(no_wrap=True)
    console = Console()
    bar = _bars(console.width, words, axes, values)
    listed = list(zip(words, values.tolist(), strict=True))
    if len(axes) == 1:
        listed.sort(key=lambda row: -row[1][0])
    for word, row in listed:
        cells = [cell for value in row for cell in (f"{value:+.3f}", bar(value))]
        table.add_row(output.shown(word), *cells)
    console.print(table)
    output.print_notes([*notes, *([f"plotted to {plot}"] if plot is not None else [])])


def _bars(
    width: int, words: Sequence[str], axes: Sequence[Axis], values: NDArray[np.float32]
) -> Callable[[float], Text]:
    """Return a function that draws a number as a bar, to the left if it is negative.

    The bars fit into ``width`` characters.
    """
    most = float(abs(values).max()) or 1.0
    halves = 2 if values.min() < 0 else 1
    names = max(cell_len(word) + 2 for word in words)
    numbers = sum(max(6, *map(cell_len, axis.name.split())) for axis in axes)  # long names break at spaces
    room = width - names - numbers - 6 * len(axes) - 4
    length = min(_BAR, max(1, room // (halves * len(axes))))

    def bar(value: float) -> Text:
        filled = "█" * round(abs(value) / most * length)
        left, right = (filled.rjust(length), "") if value < 0 else (" " * length, filled)
        text = Text(left if halves == 2 else "", style="yellow")
        text.append("│", style="dim")
        return text.append(right, style="blue")

    return bar
