"""Recipes: everything that decides a training run, as data."""

from wordloom.recipe.reading import shipped_recipes
from wordloom.recipe.recipe import (
    DataSettings,
    MaskingSettings,
    OldTask,
    Recipe,
    Result,
    TokenizerSettings,
    load_recipe,
)
from wordloom.recipe.training import TrainSettings, without_effect

__all__ = [
    "DataSettings",
    "MaskingSettings",
    "OldTask",
    "Recipe",
    "Result",
    "TokenizerSettings",
    "TrainSettings",
    "load_recipe",
    "shipped_recipes",
    "without_effect",
]
