"""Build the model of a training run from its recipe, and set it up on its device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from wordloom.errors import RecipeError, did_you_mean
from wordloom.models import MODELS, PRESETS, build, config_from, context_limit, family_of
from wordloom.nn import set_attention_backend
from wordloom.nn.attention import running_kernel
from wordloom.nn.recurrent import CELLS
from wordloom.progress import TrainingProgress
from wordloom.recipe import Recipe, TrainSettings
from wordloom.text import Tokenizer
from wordloom.training import Trainer
from wordloom.training.gradient_checkpointing import checkpoint_blocks
from wordloom.training.plan import check_fits
from wordloom.training.precision import compile_blocks
from wordloom.weights import start_from


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


def new_config(recipe: Recipe, tokenizer: Tokenizer, seq_len: int, *, without: str = "") -> Any:
    """Return the config of the recipe's model for a tokenizer, and by default for rows of ``seq_len`` tokens.

    ``without`` is a setting of ``[model]`` that the config does not have.
    """
    family, settings = model_settings(recipe)
    settings.pop(without, None)
    settings["vocab_size"] = recipe.model.get("vocab_size", tokenizer.vocab_size)
    if family in MODELS and hasattr(MODELS[family].config, "max_seq_len"):
        settings.setdefault("max_seq_len", seq_len)
    return config_from(family, **settings)


def check_length(config: Any, seq_len: int) -> None:
    """Raise RecipeError unless the model reads rows of ``seq_len`` tokens."""
    longest = context_limit(config)
    if longest is not None and seq_len > longest:
        raise RecipeError(
            f"rows of {seq_len} tokens are longer than model.max_seq_len {longest}; lower train.seq_len "
            "(train.long_seq_len), or raise model.max_seq_len"
        )


def check_vocabulary_size(config: Any, tokenizer: Tokenizer) -> None:
    """Raise RecipeError unless the model has an embedding for each token."""
    if config.vocab_size < tokenizer.vocab_size:
        raise RecipeError(
            f"model.vocab_size {config.vocab_size} is below the tokenizer's {tokenizer.vocab_size}; raise "
            "it, or leave it out"
        )


def new_model(
    recipe: Recipe, config: Any, start: Path | None, progress: TrainingProgress, *, extra_tokens: bool = False
) -> Any:
    """Return the model of ``config``: from scratch, or with the weights that the checkpoint ``start`` has.

    ``extra_tokens`` is that of :func:`wordloom.weights.start_from`.
    """
    check_fits(config, recipe.train)
    model = build(config, generator=torch.Generator().manual_seed(recipe.seed))
    if start is not None:
        progress.say(start_from(model, start, extra_tokens=extra_tokens).lines())
    set_attention_backend(model, recipe.train.attention_backend)
    return model


def set_up_blocks(
    trainer: Trainer, settings: TrainSettings, *, masked: bool = False, padded: bool = False, tokens: float
) -> str:
    """Apply gradient checkpointing and compilation as ``settings`` ask; return a few words on what runs.

    They name the attention kernel for a forward pass of about ``tokens`` tokens. ``masked`` and ``padded``
    are those of :func:`~wordloom.nn.attention.running_kernel`.
    """
    model: Any = trainer.model
    if settings.gradient_checkpointing:
        checkpoint_blocks(model)
    compiled = compile_blocks(model, settings, trainer.device)
    attention = model.blocks[0].attention
    elsewhere = compiled.startswith("compiled")  # then PyTorch chooses the attention kernel
    kernel = running_kernel(
        settings.attention_backend,
        head_dim=attention.head_dim,
        device=trainer.device,
        dtype=trainer.precision.compute_dtype,
        dropout=attention.dropout,
        masked=masked,
        padded=padded,
        elements=0 if elsewhere else int(tokens) * attention.n_heads * attention.head_dim,
    )
    return f"{compiled}, attention kernel '{kernel}'"
