"""The model of a recipe: a family with settings, or a preset with changes."""

from __future__ import annotations

from typing import Any

from wordloom.errors import RecipeError, did_you_mean
from wordloom.models import PRESETS, family_of
from wordloom.nn.recurrent import CELLS
from wordloom.recipe import Recipe

__all__ = ["model_settings"]


def model_settings(recipe: Recipe) -> tuple[str, dict[str, Any]]:
    """Return the family that ``[model]`` names, and its settings: a preset's with the recipe's changes.

    A preset's ``forget_bias`` is dropped if the recipe's ``cell`` has no forget gate, or its gates no bias.

    Raises RecipeError unless the recipe names either a family or a preset, and for an unknown preset.
    """
    table = dict(recipe.model)
    preset, family = table.pop("preset", None), table.pop("family", None)
    if (preset is None) == (family is None):
        raise RecipeError("give either model.family with its settings, or model.preset")
    if preset is None:
        return str(family), table
    if preset not in PRESETS:
        raise RecipeError(f"unknown model.preset {preset!r}; {did_you_mean(preset, PRESETS)}")
    settings = dict(vars(PRESETS[preset]))
    gates = CELLS.get(str(table.get("cell")), ("f",))
    if "f" not in gates or table.get("bias") is False:
        settings.pop("forget_bias", None)
    return family_of(PRESETS[preset]), {**settings, **table}
