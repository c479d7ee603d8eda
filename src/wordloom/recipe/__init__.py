"""Recipes: everything that decides a training run, as data."""

from wordloom.recipe.data import DATA, DataSettings
from wordloom.recipe.reading import shipped_recipes
from wordloom.recipe.recipe import MaskingSettings, OldTask, Recipe, Result, TokenizerSettings, load_recipe
from wordloom.recipe.training import TrainSettings

__all__ = [
    "DATA",
    "DataSettings",
    "MaskingSettings",
    "OldTask",
    "Recipe",
    "Result",
    "TokenizerSettings",
    "TrainSettings",
    "load_recipe",
    "shipped_recipes",
]
