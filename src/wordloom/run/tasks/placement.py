"""Build the model of a training run, and set it up on its device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from wordloom.models import build
from wordloom.nn import set_attention_backend
from wordloom.nn.attention import running_kernel
from wordloom.progress import TrainingProgress
from wordloom.recipe import Recipe, TrainSettings
from wordloom.training import Trainer
from wordloom.training.gradient_checkpointing import checkpoint_blocks
from wordloom.training.plan import check_fits
from wordloom.training.precision import compile_blocks
from wordloom.weights import start_from

__all__ = ["new_model", "set_up_blocks"]


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
