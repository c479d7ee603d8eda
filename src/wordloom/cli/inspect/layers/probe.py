"""``wordloom inspect CHECKPOINT probe``: what a linear probe reads after each layer."""

from __future__ import annotations

from typing import Annotated, Literal

import typer
from typer import Option

from wordloom.cli import options
from wordloom.cli.inspect.showing import HTML, check_outputs, show
from wordloom.cli.inspect.texts import ids_to_read, load_reader
from wordloom.cli.options import option


def command(
    ctx: typer.Context,
    file: Annotated[
        str, Option(help="A file or data set of labelled texts: .tsv, .csv, .jsonl, .parquet, .txt.")
    ],
    text_column: options.TEXT_COLUMN = None,
    label_column: options.LABEL_COLUMN = None,
    header: options.HEADER = None,
    rows: int = option(2000, "Draw this many rows, if the file has more.", min=2),
    pooling: Literal["mean", "last", "first"] = option(
        "mean", "The vector of a text: the mean of its tokens' vectors, the last one, or the first one."
    ),
    seed: int = option(0, "The seed of the split and of the control.", min=0),
    plot: options.PLOT = None,
    html: HTML = None,
    force: options.FORCE = False,
    json: options.JSON = False,
) -> None:
    """Show what a linear probe reads after each layer."""
    import random

    from wordloom.data.rows.labelled import labelled_rows
    from wordloom.errors import GenerationError
    from wordloom.inspect import probe
    from wordloom.inspect.layers.states import row_of

    check_outputs(ctx, plot, html, force=force)
    loaded = load_reader(ctx.obj, "probe")
    found = list(labelled_rows([file], text=text_column, label=label_column, header=header))
    if len(found) > rows:
        found = random.Random(seed).sample(found, rows)
    ids = [ids_to_read(loaded, " ".join(row.texts)) for row in found]
    for row, each in zip(found, ids, strict=True):
        try:
            row_of(loaded.model, each)
        except GenerationError as error:
            raise GenerationError(f"{row.place}: {error}") from None
    view = probe(loaded.model, ids, [str(row.label) for row in found], pooling=pooling, seed=seed)
    show(view, plot=plot, html=html, json=json)
