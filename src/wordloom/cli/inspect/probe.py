"""``wordloom inspect CHECKPOINT probe``: what a linear probe reads after each layer."""

from __future__ import annotations

from typing import Annotated, Literal

import typer
from typer import Option

from wordloom.cli import options
from wordloom.cli.inspect.showing import HTML, check_outputs, show
from wordloom.cli.options import option
from wordloom.errors import GenerationError


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
    from wordloom.inspect import probe
    from wordloom.run import LanguageModel, TextEncoder, load

    check_outputs(ctx, plot, html, force=force)
    loaded = load(ctx.obj)
    if not isinstance(loaded, LanguageModel | TextEncoder):
        raise GenerationError(
            f"the view 'probe' reads language models and encoders, not a {type(loaded).__name__}"
        )
    found = list(labelled_rows([file], text=text_column, label=label_column, header=header))
    if len(found) > rows:
        found = random.Random(seed).sample(found, rows)
    ids = [loaded.text_tokenizer.prompt_ids(" ".join(row.texts), specials="text") for row in found]
    if isinstance(loaded, TextEncoder):
        ids = [loaded.framed(each) for each in ids]
    view = probe(loaded.model, ids, [str(row.label) for row in found], pooling=pooling, seed=seed)
    show(view, plot=plot, html=html, json=json)
