"""The training task of every model with a head: one function for all heads (Devlin et al. 2018, section 4.1;
Radford et al. 2018, section 3.2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from wordloom.errors import RecipeError
from wordloom.models import TaskConfig
from wordloom.models.building.cost import flops_per_token
from wordloom.models.task_model import SUMMARIES
from wordloom.progress import TrainingProgress
from wordloom.recipe import Recipe
from wordloom.run.models.heads import HEADS
from wordloom.run.models.heads.head import Head, ReadRows
from wordloom.run.prepare import joined_fingerprint, ledger_json
from wordloom.run.tasks.building import (
    has_task_tokens,
    head_config,
    new_model,
    set_up_blocks,
    start_tokenizer,
)
from wordloom.run.tasks.task import Task
from wordloom.training.plan import Costs
from wordloom.weights import save_model


def head_task(recipe: Recipe, start: Path | None, progress: TrainingProgress) -> Task:
    """Return the task of the head that the recipe's objective names.

    ``start`` is a checkpoint to begin with.
    """
    s, kind = recipe.train, HEADS[recipe.train.objective]
    refuse_lbfgs(recipe)
    changes: Counter[str] = Counter()
    rows = kind.rows_of(recipe, changes)
    progress.say(f"{count:,} {what}" for what, count in changes.items() if count)
    labels = kind.labels_of(rows["train"])
    tokenizer = start_tokenizer(recipe, start, kind.texts_of(rows["train"]), progress, kind.noun)
    config = head_config(recipe, tokenizer, start, task=kind.task, labels=labels)
    head = kind.for_training(recipe, tokenizer, config)
    read = read_parts(head, rows, recipe)
    batches: Any = read["train"].batches

    tokens = batches.tokens_per_sample / (2 if config.both_orders else 1)
    forward_tokens = tokens * (s.micro_batch_size or s.batch_size)
    return Task(
        settings=s,
        build_model=lambda: new_model(recipe, config, start, progress, extra_tokens=has_task_tokens(recipe)),
        set_up=lambda trainer: set_up_blocks(trainer, s, padded=config.encodes, tokens=forward_tokens),
        costs=_costs(recipe, config, tokens),
        tokenizer=tokenizer,
        **head_parts(head, read, progress, tokenizer.fingerprint),
    )


def refuse_lbfgs(recipe: Recipe) -> None:
    """Raise RecipeError for the optimizer that only a bag of words takes."""
    if recipe.train.optimizer == "lbfgs":
        raise RecipeError('train.optimizer "lbfgs" is for model.family "bag_of_words"; take adamw or muon')


def read_parts(head: Head, rows: Mapping[str, Any], recipe: Recipe) -> dict[str, ReadRows]:
    """Return the rows as batches; those of the training part are permuted."""
    seeds = {"train": recipe.seed}
    return {part: head.read(part_rows, part=part, seed=seeds.get(part)) for part, part_rows in rows.items()}


def head_parts(
    head: Head, read: Mapping[str, ReadRows], progress: TrainingProgress, fingerprint: str
) -> dict[str, Any]:
    """Return the fields of a :class:`~wordloom.run.tasks.task.Task` that its rows decide.

    ``fingerprint`` is that of the tokenizer or vocabulary.
    """
    parts = row_parts(
        read,
        lambda model, validation: replace(head, model=model).metrics(validation),
        labels=head.labels,
        signature=head.signature,
        progress=progress,
        fingerprint=fingerprint,
    )
    return {**parts, "save": partial(save_model, tokenizer=head.vocabulary)}


def row_parts(
    read: Mapping[str, ReadRows],
    metrics: Callable[[Any, ReadRows], dict[str, float]],
    *,
    signature: Mapping[str, object],
    labels: Sequence[str] = (),
    progress: TrainingProgress,
    fingerprint: str,
) -> dict[str, Any]:
    """Return batches, fingerprints, ledger and evaluation of a task's rows; the log gets the ledgers.

    Args:
        read: the rows by part, "train" and perhaps "validation".
        metrics: the metrics of a model on the validation rows.
        signature: the settings that decide the metrics.
        fingerprint: that of the tokenizer or vocabulary.
    """
    for part in read.values():
        progress.say(part.ledger.lines())
    validation = read.get("validation")
    scored: dict[str, object] = {}
    if validation is not None:
        named = {"labels": len(labels)} if labels else {}
        hashes = {"data": validation.fingerprint[:8], "text": validation.ledger.text}
        scored = {**hashes, **named, **signature}
    return {
        "batches": read["train"].batches,
        "fingerprints": {
            "data": joined_fingerprint([*labels, *(part.fingerprint for part in read.values())]),
            "tokenizer": fingerprint,
        },
        "ledger": ledger_json(read),
        "evaluate": None if validation is None else lambda model, ranks: metrics(model, validation),
        "scored": scored,
    }


def _costs(recipe: Recipe, config: TaskConfig, tokens: float) -> Costs:
    """Return the operations to train on a token of a text of ``tokens``; a summary's head reads one token."""
    flops = flops_per_token(config, context=max(1, round(tokens)))
    tokens *= 2 if config.both_orders else 1
    layers = flops.layers + flops.attention
    head = 2 * config.dim * (config.outputs + (config.dim if config.encodes else 0))
    if config.task in SUMMARIES:
        head = round(head / max(1.0, tokens))
    if recipe.train.language_model_weight and recipe.train.language_model_texts == "task":
        head += 2 * config.dim * config.vocab_size
    return Costs(flops_per_token=3 * (layers + head), tokens_per_sample=tokens, dense=True)
