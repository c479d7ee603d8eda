"""The contents of a checkpoint folder that decide how it is loaded and used, and reports on what is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from wordloom.data.files.source import Columns
from wordloom.data.rows.labelled import Column
from wordloom.errors import CheckpointError
from wordloom.recipe import Recipe
from wordloom.run.recipe_rows import recipe_of
from wordloom.weights import load_config

Sources: TypeAlias = Sequence[str]
ColumnNames: TypeAlias = Sequence[Column] | None


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder and the model's config from its ``config.json``."""

    folder: Path
    config: Any

    @cached_property
    def recipe(self) -> Recipe | None:
        """The recipe of the run that wrote the folder; None if the folder has no ``recipe.toml``."""
        return recipe_of(self.folder)

    @property
    def validation_recipe(self) -> Recipe:
        """The recipe, which names the validation data; raises CheckpointError without a ``recipe.toml``."""
        if self.recipe is None:
            raise CheckpointError(f"{self.folder} has no recipe.toml that names validation data; give a file")
        return self.recipe


def read_checkpoint(folder: str | Path) -> Checkpoint:
    """Read the config of the model in ``folder``; raises CheckpointError if there is none."""
    return Checkpoint(Path(folder), load_config(folder))


class Reporter(Protocol):
    """Receives lines for the user and the progress of long work."""

    def say(self, line: str) -> None:
        """Show one line."""
        ...

    def progress(self, total: float) -> AbstractContextManager[Callable[[float, str], None]]:
        """Return a context whose ``advance(amount, state)`` moves a bar of length ``total``."""
        ...


def report_columns(reporter: Reporter, checkpoint: Checkpoint, read: Iterable[Columns]) -> None:
    """Report the columns that are read; the recipe of ``checkpoint`` names those that were not given."""
    for columns in read:
        texts = ", ".join(map(repr, columns.texts))
        what, answer = ("label", columns.label) if columns.score is None else ("score", columns.score)
        recipe = checkpoint.folder / "recipe.toml"
        reporter.say(f"columns: text {texts}; {what} {answer!r} (by default those in {recipe})")
