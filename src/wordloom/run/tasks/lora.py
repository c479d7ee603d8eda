"""Adapters in a training run: the model of a task is frozen, and a low-rank adapter of it is trained."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from wordloom.errors import RecipeError
from wordloom.files import write_text
from wordloom.models import body_config
from wordloom.models.building.lora import add_adapter, linear_layers, matching_layers
from wordloom.models.building.quantized import quantize_model
from wordloom.nn.lora import LoraSettings
from wordloom.progress import TrainingProgress
from wordloom.recipe import Recipe
from wordloom.recipe.recipe import LoraTable
from wordloom.run.tasks.task import Task
from wordloom.weights import load_config
from wordloom.weights.adapters import load_adapter, save_adapter


def with_lora(
    recipe: Recipe, start: Path | None, resumed: Path | None, task: Task, progress: TrainingProgress
) -> Task:
    """Return ``task`` with the adapter of ``[lora]``, which is read from the checkpoint ``resumed`` if given.

    ``start`` is the folder of the base model, whose weights are not changed.

    Raises RecipeError without a base, and for a task that adds tokens, which an adapter does not have.
    """
    table = recipe.lora
    assert table is not None
    if start is None:
        raise RecipeError("[lora] adapts a trained model; name it with --from CHECKPOINT")
    tokenizer = task.tokenizer
    assert tokenizer is not None
    known = body_config(load_config(start)).vocab_size
    if tokenizer.vocab_size > known:
        raise RecipeError(
            f"the template adds tokens to the vocabulary of {known:,}, and [lora] trains no embeddings; take "
            'data.template "plain" or "alpaca", or train the whole model'
        )

    def build_model() -> Any:
        model = task.build_model()
        _adapt(model, table, recipe.seed, progress)
        if resumed is not None:
            _restore(model, resumed)
        return model

    def save(model: Any, folder: Path, *, overwrite: bool = False) -> None:
        save_adapter(model, folder, base=start, overwrite=overwrite)
        tokenizer.save_pretrained(folder)
        if task.generation:
            write_text(Path(folder) / "generation_config.json", json.dumps(task.generation, indent=2) + "\n")

    def load(checkpoint: Path) -> Any:
        return _restore(build_model(), checkpoint)

    return replace(task, build_model=build_model, save=save, load=load)


def _adapt(model: Any, table: LoraTable, seed: int, progress: TrainingProgress) -> None:
    """Freeze ``model``, in 8 bits if the recipe asks for it, and add the adapter to train."""
    if table.base == "int8":
        quantize_model(model)
    settings = LoraSettings(
        rank=table.rank,
        alpha=table.alpha,
        dropout=table.dropout,
        rank_stabilised=table.rank_stabilised,
        dora=table.dora,
    )
    layers = matching_layers(model, table.targets)
    total = sum(p.numel() for p in model.parameters())
    add_adapter(model, settings, layers, generator=torch.Generator().manual_seed(seed))
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    progress.say(
        f"adapter     {len(layers)} of {len(linear_layers(model))} linear modules: {trained:,} parameters "
        f"are trained, {total:,} are not" + (" (without those in 8 bits)" if table.base == "int8" else "")
    )


def _restore(model: Any, checkpoint: Path) -> Any:
    """Copy the adapter of ``checkpoint`` into that of ``model``."""
    load_adapter(model, checkpoint, replace_existing=True)
    return model
