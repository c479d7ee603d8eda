"""Gradient checkpointing, compilation and the attention kernel of a model on its device."""

from __future__ import annotations

from typing import Any

from wordloom.nn.attention import running_kernel
from wordloom.recipe import TrainSettings
from wordloom.training import Trainer
from wordloom.training.gradient_checkpointing import checkpoint_blocks
from wordloom.training.precision import compile_blocks

__all__ = ["set_up_blocks"]


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
