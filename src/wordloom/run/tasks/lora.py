"""Adapters in a training run: the model of a task is frozen, and a low-rank adapter of it is trained."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from wordloom.errors import CheckpointError, ConfigError, RecipeError
from wordloom.files import write_text
from wordloom.models import BagOfWordsConfig, TaskModel, body_config
from wordloom.models.building.lora import add_adapter, head_modules, linear_layers, matching_layers
from wordloom.models.building.quantized import is_quantized, quantize_model
from wordloom.nn.lora import LoraSettings
from wordloom.nn.recurrent import Recurrent
from wordloom.progress import TrainingProgress
from wordloom.recipe import Recipe
from wordloom.recipe.recipe import LoraTable
from wordloom.run.tasks.building import has_task_tokens
from wordloom.run.tasks.task import Task
from wordloom.weights import load_config
from wordloom.weights.adapted import untrained_parts
from wordloom.weights.adapters import check_storable, load_adapter, save_adapter
from wordloom.weights.saving import with_special_tokens


def with_lora(
    recipe: Recipe, start: Path | None, resumed: Path | None, task: Task, progress: TrainingProgress
) -> Task:
    """Return ``task`` with the adapter of ``[lora]``, which is read from the checkpoint ``resumed`` if given.

    ``start`` is the folder of the base model, whose weights are not changed.

    Raises RecipeError for a task that adds tokens, and for a model with parts that the base lacks.
    """
    table = recipe.lora
    assert table is not None
    assert start is not None, "check_base was called"
    tokenizer = task.tokenizer
    known = body_config(load_config(start)).vocab_size
    if tokenizer is not None and tokenizer.vocab_size > known:
        cause, advice = "the template", 'take data.template "plain" or "alpaca"'
        if has_task_tokens(recipe):
            cause, advice = "data.task_tokens", "leave it out"
        raise RecipeError(
            f"{cause} adds tokens to the vocabulary of {known:,}, and [lora] trains no embeddings; {advice}, "
            "or train the whole model"
        )

    def build_model() -> Any:
        model = task.build_model()
        _check_parts(model, start)
        _adapt(model, table, recipe.seed, progress)
        if resumed is not None:
            _restore(model, resumed)
        return model

    def save(model: Any, folder: Path, *, overwrite: bool = False) -> None:
        folder = Path(folder)
        save_adapter(model, folder, base=start, overwrite=overwrite)
        if tokenizer is not None:
            with_special_tokens(model.config, tokenizer).save_pretrained(folder)
        for name, text in task.files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            write_text(folder / name, text)
        if task.generation:
            write_text(folder / "generation_config.json", json.dumps(task.generation, indent=2) + "\n")

    def load(checkpoint: Path) -> Any:
        return _restore(build_model(), checkpoint)

    return replace(task, build_model=build_model, save=save, load=load)


def check_base(recipe: Recipe, start: Path | None) -> None:
    """Raise RecipeError if the recipe needs a base model and ``start`` is none that it can tune."""
    if recipe.train.objective == "preference" and start is None:
        raise RecipeError(
            'train.objective "preference" tunes a trained model; name it with --from CHECKPOINT'
        )
    if recipe.lora is None:
        return
    if start is None:
        raise RecipeError("[lora] adapts a trained model; name it with --from CHECKPOINT")
    if isinstance(load_config(start), BagOfWordsConfig):
        raise RecipeError(
            f"{start} holds a bag of words, whose only matrix is its head; [lora] adapts the layers below a "
            "head, so leave it out"
        )


def _check_parts(model: Any, start: Path) -> None:
    """Raise RecipeError if ``model`` has parts that the base ``start`` lacks and that no adapter holds."""
    advice = "[lora] trains no new parts; begin with a checkpoint that has all, or leave [lora] out"
    try:
        missing = untrained_parts(model.config, start)
    except CheckpointError as error:
        raise RecipeError(f"{error}; {advice}") from None
    if missing:
        raise RecipeError(f"{start} lacks {', '.join(missing)}, which this run needs; {advice}")


def _quantize(model: Any) -> None:
    """Give the base 8 bits; a head stays as it is."""
    if is_quantized(model):
        return
    try:
        quantize_model(model.body if isinstance(model, TaskModel) else model)
    except ConfigError as error:
        reason = str(error).replace("dtype 'int8'", "lora.base int8").rpartition("; ")[0]
        raise RecipeError(f"{reason}; leave lora.base out") from None


def _check_recurrent(model: Any, layers: list[str]) -> None:
    """Raise RecipeError for an adapter of a recurrent matrix whose weights are dropped in training."""
    for name, module in model.named_modules():
        if isinstance(module, Recurrent) and module.weight_drop and f"{name}.hidden_proj" in layers:
            raise RecipeError(
                f"an adapter of hidden_proj does not go with the base's weight_drop {module.weight_drop:g}; "
                'set lora.targets = ["input_proj"]'
            )


def _adapt(model: Any, table: LoraTable, seed: int, progress: TrainingProgress) -> None:
    """Freeze ``model``, in 8 bits if the recipe asks for it, and add the adapter to train."""
    if table.base == "int8":
        _quantize(model)
    settings = LoraSettings(
        rank=table.rank,
        alpha=table.alpha,
        dropout=table.dropout,
        rank_stabilised=table.rank_stabilised,
        dora=table.dora,
    )
    layers = matching_layers(model, table.targets)
    _check_recurrent(model, layers)
    try:
        check_storable(model, layers)
    except CheckpointError as error:
        raise RecipeError(f"lora.targets {list(table.targets)}: {error}") from None
    total = sum(p.numel() for p in model.parameters())
    add_adapter(model, settings, layers, generator=torch.Generator().manual_seed(seed))
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    heads = head_modules(model.config)
    head = f" and the head ({', '.join(heads)})" if heads else ""
    total -= sum(p.numel() for name in heads for p in model.get_submodule(name).parameters())
    progress.say(
        f"adapter     {len(layers)} of {len(linear_layers(model))} linear modules{head}: {trained:,} "
        f"parameters are trained, {total:,} are not"
        + (" (without those in 8 bits)" if table.base == "int8" else "")
    )


def _restore(model: Any, checkpoint: Path) -> Any:
    """Copy the adapter of ``checkpoint`` into that of ``model``."""
    load_adapter(model, checkpoint, replace_existing=True)
    return model
