"""The contents of a checkpoint folder that decide how it is loaded and used."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from wordloom.errors import CheckpointError
from wordloom.recipe import Recipe, load_recipe
from wordloom.weights import load_config

__all__ = ["Checkpoint", "read_checkpoint"]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder and the model's config from its ``config.json``."""

    folder: Path
    config: Any

    @cached_property
    def recipe(self) -> Recipe | None:
        """The recipe of the run that wrote the folder; None if the folder has no ``recipe.toml``."""
        path = self.folder / "recipe.toml"
        return load_recipe(str(path)) if path.exists() else None

    @property
    def validation_recipe(self) -> Recipe:
        """The recipe, which names the validation data; raises CheckpointError without a ``recipe.toml``."""
        if self.recipe is None:
            raise CheckpointError(f"{self.folder} has no recipe.toml that names validation data; give a file")
        return self.recipe


def read_checkpoint(folder: str | Path) -> Checkpoint:
    """Read the config of the model in ``folder``; raises CheckpointError if there is none."""
    return Checkpoint(Path(folder), load_config(folder))
