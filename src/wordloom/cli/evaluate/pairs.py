"""``wordloom evaluate`` for models that turn one text into another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from wordloom.cli.progress import progress_bar

if TYPE_CHECKING:
    from wordloom.evaluate import Scores

__all__ = ["evaluate_pairs"]


def evaluate_pairs(
    checkpoint: Path,
    sources: list[str],
    *,
    reading: dict[str, Any],
    search: dict[str, Any],
    first: int | None,
    device: str,
    dtype: str,
    out: Path | None,
) -> Scores:
    """The scores of a translator on pairs; ``out`` is where its translations go."""
    from wordloom.recipe.data import TranslationData
    from wordloom.run import load_translator, translation_scores
    from wordloom.run.tasks.labelled import recipe_of
    from wordloom.run.tasks.translation.scores import pairs_to_score

    given = {name: value for name, value in reading.items() if value is not None}
    recipe = recipe_of(checkpoint)
    if sources and recipe is not None and isinstance(recipe.data, TranslationData) and "targets" not in given:
        named = {"source": recipe.data.source_column, "target": recipe.data.target_column}
        read = {name: given.get(f"{name}_column", column) for name, column in named.items()}
        if any(column is not None for column in named.values()):
            told = "; ".join(f"{name} {column or name!r}" for name, column in read.items())
            typer.echo(f"columns: {told} (by default those in {checkpoint / 'recipe.toml'})", err=True)
    translator = load_translator(checkpoint, device=device, dtype=dtype)
    pairs = list(pairs_to_score(checkpoint, sources, **given))[:first]  # all read: counts must agree
    with progress_bar(len(pairs)) as advance:
        done = 0

        def progress() -> None:
            nonlocal done
            done += 1
            advance(1, f"{done:,} of {len(pairs):,} texts translated")

        scores, found = translation_scores(translator, pairs, progress=progress, **search)
    if out is not None:
        out.write_text("".join(f"{line}\n" for line in found), encoding="utf-8")
        typer.echo(f"translations written to {out}", err=True)
    return scores
