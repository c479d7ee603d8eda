"""``wordloom card CHECKPOINT``."""

from __future__ import annotations

from pathlib import Path

import typer

from wordloom.cli import options
from wordloom.cli.options import option
from wordloom.cli.usage import refuse_existing


def command(
    checkpoint: options.CHECKPOINT,
    licence: str | None = option(
        None, "The licence of the model, such as apache-2.0.  [default: to be filled in]", "--license"
    ),
    language: list[str] | None = option(None, "The code of a language of its text, such as en. Repeatable."),
    scores: list[Path] | None = option(
        None, "A file that `wordloom evaluate --json` wrote. Repeatable.", metavar="FILE"
    ),
    out: Path | None = option(None, "The card.  [default: CHECKPOINT/README.md]", metavar="FILE"),
    force: options.FORCE = False,
) -> None:
    """Write a model card, the README.md that hubs read.

    It says what the folder says: model, tokenizer, data, recipe, and scores with their signatures. What the
    folder cannot say is marked to be filled in.
    """
    from wordloom.files import write_text
    from wordloom.run.share.card import NAME, model_card
    from wordloom.run.share.push import left_open

    path = out or checkpoint / NAME
    own = () if path == checkpoint / NAME else (checkpoint,)
    refuse_existing(path, force=force, inputs=scores or (), models=own)
    write_text(path, model_card(checkpoint, licence=licence, languages=language or (), scores=scores or ()))
    typer.echo(f"wrote {path}")
    if path == checkpoint / NAME:
        for gap in left_open(checkpoint):
            typer.echo(f"to fill in: {gap}")
