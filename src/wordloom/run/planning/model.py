"""The model that a recipe would train, as shapes: without data and weights, and mostly without tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from wordloom.errors import CheckpointError, RecipeError, did_you_mean
from wordloom.models import MODELS, PRESETS, body_config, config_from, skeleton
from wordloom.models.building.lora import add_adapter, matching_layers
from wordloom.nn.attention import Approximation
from wordloom.nn.lora import LoraSettings
from wordloom.recipe import Recipe, load_recipe
from wordloom.recipe.data import TextData
from wordloom.recipe.reading import shipped_recipes
from wordloom.run.planning.shapes import ModelShape, shape_of
from wordloom.run.prepared import prepared_corpus, tokenizer_of_prepared
from wordloom.run.tasks.building import (
    check_length,
    model_settings,
    takes_model_of_start,
    with_recipe_attention,
)
from wordloom.text import Tokenizer
from wordloom.text.training.train import TOKENIZERS
from wordloom.weights import load_config

TOKENS_PER_PARAMETER = 20  # the budget of a preset (Hoffmann et al. 2022, arXiv:2203.15556)


def recipe_called(
    name: str, overrides: Sequence[str], *, gpus: int, say: Callable[[str], None] | None = None
) -> Recipe:
    """Return the recipe called ``name``: a shipped one, a file, a run, or a preset of a model.

    A preset is planned with one row of its longest length on each GPU, and 20 tokens per parameter.
    """
    if name not in PRESETS or name in shipped_recipes() or Path(name).exists():
        is_name = not (name.endswith(".toml") or "/" in name or Path(name).exists())
        if is_name and name not in shipped_recipes():
            close = did_you_mean(name, [*PRESETS, *shipped_recipes()])
            presets = f"give a .toml file, a recipe, or a preset: {', '.join(PRESETS)}"
            advice = close if close.startswith("did you mean") else presets
            raise RecipeError(f"no recipe or preset is called '{name}'; {advice}")
        return load_recipe(name, overrides, say=say)
    config: Any = PRESETS[name]
    shape = shape_of(skeleton(config))  # refuses families that no plan knows
    recipe = Recipe.model_validate({
        "name": name,
        "data": {"train": "any text"},
        "model": {"preset": name, "vocab_size": config.vocab_size},
        "train": {
            "tokens": TOKENS_PER_PARAMETER * shape.parameters,
            "seq_len": config.max_seq_len,
            "batch_size": gpus,
            "micro_batch_size": 1,
        },
    })  # fmt: skip
    return load_recipe(recipe, overrides, say=say)


def recipe_shape(recipe: Recipe) -> ModelShape:
    """Return the shapes of the model of ``recipe``, with the adapter of ``[lora]``.

    Raises RecipeError for a run that a plan does not know, and CheckpointError for a start that is missing.
    """
    if recipe.train.objective not in ("causal_lm", "instruction"):
        raise RecipeError(
            "wordloom plan knows the train.objectives 'causal_lm' and 'instruction', and the recipe has "
            f"'{recipe.train.objective}'; wordloom train reports its memory and time before the first step"
        )
    if recipe.old_task is not None:
        raise RecipeError(
            "wordloom plan does not know [old_task]; take that table out of a copy of the recipe"
        )
    config = _config(recipe)
    check_length(config, recipe.train.seq_len)
    model: Any = skeleton(config)
    shape = shape_of(model)
    if any(isinstance(kind, Approximation) for kind in config.patterns):
        raise RecipeError(
            f"wordloom plan knows exact attention, and model.attention is '{config.attention}'; "
            'set model.attention = "full", or a pattern'
        )
    if recipe.lora is None:
        return shape
    table = recipe.lora
    if table.base == "int8":
        raise RecipeError(
            'wordloom plan does not know lora.base "int8", whose weights ranks do not share out; '
            "set lora.base=full"
        )
    settings = LoraSettings(rank=table.rank, alpha=table.alpha, dora=table.dora)
    with torch.device("meta"):
        add_adapter(model, settings, matching_layers(model, table.targets))
    return shape_of(model)


def _config(recipe: Recipe) -> Any:
    start = None if recipe.start_from is None else Path(recipe.start_from)
    if start is not None and takes_model_of_start(recipe, start):
        return with_recipe_attention(recipe, body_config(_config_of_start(str(start))))
    family, settings = model_settings(recipe)
    preset = settings.get("vocab_size")
    settings["vocab_size"] = recipe.model.get("vocab_size") or _tokenizer_size(recipe) or preset
    if settings["vocab_size"] is None:
        raise RecipeError(
            "the size of the vocabulary is not known before the tokenizer is trained or the prepared folder "
            "is here; give model.vocab_size=NUMBER"
        )
    if family in MODELS and hasattr(MODELS[family].config, "max_seq_len"):
        settings.setdefault("max_seq_len", recipe.train.seq_len)
    return config_from(family, **settings)


def _config_of_start(start: str) -> Any:
    """Return the config of the checkpoint ``start``; where it is missing, that of the preset of this name."""
    if not Path(start).exists() and start in PRESETS:
        return PRESETS[start]
    if not Path(start).exists():
        raise CheckpointError(
            f"the run starts from {start}, which does not exist; put it there, or name the model instead, "
            "such as model.preset=llama-7b"
        )
    return load_config(start)


def _tokenizer_size(recipe: Recipe) -> int | None:
    """Return the size of the vocabulary, as far as the recipe says; the text may turn out to have fewer."""
    t = recipe.tokenizer
    if t.path is not None and Path(t.path).exists():
        return Tokenizer.from_pretrained(t.path).vocab_size
    if isinstance(recipe.data, TextData) and (prepared := prepared_corpus(recipe)) is not None:
        return tokenizer_of_prepared(prepared, recipe).vocab_size
    if t.kind is None:
        return None
    kind = TOKENIZERS[t.kind]
    if t.kind == "byte":
        return 256 + len(kind.special_tokens if t.special_tokens is None else t.special_tokens)
    return t.vocab_size or kind.vocab_size
