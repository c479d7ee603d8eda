"""The rows that a recipe names: its files, columns and parts."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from glob import glob
from pathlib import Path
from typing import Any, Literal, TypeVar

from wordloom.data.files.source import is_stdin
from wordloom.data.rows.labelled import ColumnChoice, CorpusPart, LabelledCorpus, Part
from wordloom.data.sets.fetch import names_dataset
from wordloom.errors import RecipeError
from wordloom.recipe import Recipe, load_recipe
from wordloom.recipe.data import Columns, LabelColumns, SentenceData, Split
from wordloom.recipe.table import Table

Corpus = TypeVar("Corpus", bound=LabelledCorpus)
Item = TypeVar("Item")


def corpus_of(recipe: Recipe, kind: type[Corpus]) -> Corpus:
    """Return the rows that ``[data]`` names as a ``kind``, such as :class:`~wordloom.data.ScoredCorpus`."""
    d, columns = recipe.data, recipe.data_as(LabelColumns)
    _check_files(recipe)
    split: Literal["tail", "hash", "files"]
    split = recipe.data_as(Split).split if d.validation is None else "files"
    return kind(
        sources=d.train,
        validation_sources=d.validation or (),
        split=split,
        validation_fraction=d.validation_fraction,
        unique=columns.unique,
        text=columns.text_column,
        label=columns.label_column,
        header=columns.header,
        encoding_errors=d.row_errors,
    )


def parts_of(recipe: Recipe, kind: type[LabelledCorpus]) -> dict[str, CorpusPart]:
    """Return the rows of :func:`corpus_of` by part: "train", and "validation" if the recipe holds out any."""
    corpus = corpus_of(recipe, kind)
    parts: tuple[Part, ...] = ("train", "validation") if recipe.data.holds_out else ("train",)
    return {part: corpus.part(part) for part in parts}


def recipe_of(folder: str | Path) -> Recipe | None:
    """Return the recipe of the run in ``folder``, or None without one."""
    path = Path(folder) / "recipe.toml"
    return load_recipe(str(path)) if path.exists() else None


def training_columns(recipe: Recipe | None, *objectives: str) -> ColumnChoice | None:
    """Return the columns that a recipe for one of ``objectives`` names; None if it names none.

    Only the first two texts of a row are compared, and the label of texts that belong together is no score.
    """
    if recipe is None or recipe.train.objective not in objectives:
        return None
    d: Table = recipe.data
    if not isinstance(d, Columns):
        return None
    is_label = isinstance(d, SentenceData) and isinstance(d.positive, str)
    answer = None if is_label else d.label_column
    if d.text_column is None and answer is None:
        return None
    text = d.text_column[:2] if isinstance(d.text_column, list) else d.text_column
    return ColumnChoice(text=text, answer=answer, header=d.header if isinstance(d, LabelColumns) else None)


def divided(
    recipe: Recipe, read: Callable[[Any], list[Item]], noun: str, group: Callable[[Item], str] | None = None
) -> dict[str, list[Item]]:
    """Return the rows of the recipe by part; ``read`` reads a source and ``noun`` is the name of its rows.

    The validation part has its own sources, or is the last share of the training rows; with ``group`` it is
    the rows of the last share of the groups, such as all questions about a text.

    Raises RecipeError for a validation part without rows.
    """
    d = recipe.data
    _check_files(recipe)
    _check_separate_files(recipe)
    rows = read(d.train)
    if d.validation is not None:
        parts = {"train": rows, "validation": read(d.validation)}
    elif not d.validation_fraction:
        return {"train": rows}
    else:
        keys: list[Any] = list(range(len(rows)) if group is None else map(group, rows))
        groups = list(dict.fromkeys(keys))
        last = set(groups[len(groups) - int(len(groups) * d.validation_fraction) :])
        parts = {"train": [], "validation": []}
        for key, row in zip(keys, rows, strict=True):
            parts["validation" if key in last else "train"].append(row)
    if not parts["validation"]:
        which = "data.validation" if d.validation else f"data.validation_fraction {d.validation_fraction:g}"
        raise RecipeError(f"{which}: holds no {noun}; give more of them, or data.validation_fraction = 0")
    return parts


def _check_separate_files(recipe: Recipe) -> None:
    """Raise RecipeError for a file that is both a training and a validation file."""
    training, held_out = (
        _real_paths(sources or ()) for sources in (recipe.data.train, recipe.data.validation)
    )
    for path, name in held_out.items():
        if any(path == other or path.startswith(other + os.sep) for other in training):
            raise RecipeError(f"{name}: is both a training and a validation file; take it from one")


def _check_files(recipe: Recipe) -> None:
    """Raise RecipeError for rows from standard input."""
    for name in ("train", "validation"):
        sources = getattr(recipe.data, name) or ()
        if any(map(is_stdin, [sources] if isinstance(sources, str) else sources)):
            raise RecipeError(
                f"data.{name}: rows are read more than once, standard input only once; name a file"
            )


def _real_paths(sources: str | Sequence[str]) -> dict[str, str]:
    """Return the name of each of ``sources`` by its real path, or for a named set by its name."""
    paths = {}
    for name in [sources] if isinstance(sources, str) else sources:
        if names_dataset(name):
            paths[name] = name
        else:
            paths |= {os.path.realpath(path): name for path in glob(os.path.expanduser(name)) or [name]}
    return paths
