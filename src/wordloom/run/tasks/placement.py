"""What is done to a model of attention blocks where it will run."""

from __future__ import annotations

from typing import Any

from wordloom.nn.attention import running_kernel
from wordloom.recipe import TrainSettings
from wordloom.training import Trainer
from wordloom.training.gradient_checkpointing import checkpoint_blocks
from wordloom.training.precision import compile_blocks

__all__ = ["settle_blocks"]


def settle_blocks(
    trainer: Trainer, settings: TrainSettings, *, masked: bool = False, padded: bool = False, tokens: float
) -> str:
    """Gradient checkpointing and compilation as ``settings`` ask; says what runs, and which attention kernel
    for about so many ``tokens`` of a forward pass, ``masked`` and ``padded`` as of
    :func:`~wordloom.nn.attention.running_kernel`."""
    model: Any = trainer.model
    if settings.gradient_checkpointing:
        checkpoint_blocks(model)
    compiled = compile_blocks(model, settings, trainer.device)
    attention = model.blocks[0].attention
    elsewhere = compiled.startswith("compiled")  # whose attention is PyTorch's to choose
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
