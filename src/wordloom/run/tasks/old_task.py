"""The old task of a run: the language model of the checkpoint, evaluated with its own head and loss during
fine-tuning, and perhaps rehearsed (McCloskey & Cohen 1989; French 1999; Robins 1995)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from wordloom.data.batches.mixed import RehearsedBatches
from wordloom.data.shards.prepared import PreparedCorpus
from wordloom.errors import CheckpointError, RecipeError
from wordloom.evaluate.reading import tokenizer_name
from wordloom.files import write_text
from wordloom.models import TaskConfig, body_config, context_limit, encodes, family_of
from wordloom.models.building.cost import flops_per_token
from wordloom.objectives import objective
from wordloom.progress import TrainingProgress
from wordloom.recipe import Recipe
from wordloom.recipe.reading import read_recipe
from wordloom.run.prepare import causal_part, joined_fingerprint, recipe_corpus
from wordloom.run.tasks.building import start_tokenizer
from wordloom.run.tasks.masked import masked_part, training_flops
from wordloom.run.tasks.task import Task, Windows, mean_loss
from wordloom.training.old_task import OldTaskLoss, WithOldTask, body_of
from wordloom.training.plan import Costs
from wordloom.training.ranks import Ranks
from wordloom.weights import load_config

FILE = "old_task.json"  # of a finished run: the losses before and after


class Measured(NamedTuple):
    """The measurement of the old task: its ``loss`` for a model without the new task's head, and the settings
    that decide the loss, for its signature."""

    loss: Callable[[Any, Ranks], float]
    scored: dict[str, object]


def check_old_head(start: Path) -> None:
    """Raise CheckpointError if the checkpoint ``start`` has no language-model head."""
    config = load_config(start)
    body = body_config(config)
    lacks = ""
    if encodes(body):
        if not body.masked_lm_head:
            lacks = "head for masked tokens (mlm_transform, mlm_norm, lm_head)"
    elif isinstance(config, TaskConfig) and not (config.language_model or body.tie_embeddings):
        lacks = "head of its language model (lm_head)"
    if lacks:
        raise CheckpointError(
            f"{start} holds no {lacks}, whose loss [old_task] measures; begin with a checkpoint that was "
            "saved with it, or leave [old_task] out"
        )


def with_old_task(
    recipe: Recipe, start: Path | None, model: Any, task: Task, progress: TrainingProgress
) -> tuple[Task, Measured]:
    """Return ``task`` with the rehearsal that ``[train]`` asks for, and the measurement of the old task.

    The old text is read with the tokenizer of the checkpoint ``start``, or of ``tokenizer.path``.
    """
    old, s, config = recipe.old_task, task.settings, body_of(model).config
    assert old is not None
    encoder, length = encodes(config), old.seq_len or s.seq_len
    _check(recipe, start, model, length)
    tokenizer = start_tokenizer(recipe, start, (), progress, "row")
    about = _as_recipe(recipe, "masked_lm" if encoder else "causal_lm")
    corpus: Any = recipe_corpus(about)
    if isinstance(corpus, PreparedCorpus):
        raise RecipeError(
            f"[old_task] reads text, and '{corpus.location}' holds prepared tokens; name the text"
        )
    if old.train is None:  # the whole text is measured
        corpus = replace(corpus, sources=(), split="files", validation_sources=corpus.sources)

    def read(part: Any, seed: int) -> Any:
        seeded = about.model_copy(update={"seed": seed})
        if encoder:
            return masked_part(seeded, corpus, tokenizer, part, length, progress)
        return causal_part(seeded, corpus, tokenizer, part, progress)

    validation = read("validation", old.seed)
    windows = Windows.of(validation, old.evaluate_windows, s)
    old_objective = objective(about.train.objective)
    scored = {
        "objective": about.train.objective,
        "data": validation.fingerprint[:8],
        "tok": tokenizer_name(tokenizer),
        "window": length,
        "windows": windows.count,
    }
    progress.say(
        f"old task    {about.train.objective} on {windows.count:,} validation windows of {length} tokens"
    )
    ledgers = {"validation": validation.ledger.as_dict()}
    parts = [task.fingerprints["data"], validation.fingerprint]
    if s.rehearsal_share is not None or (s.language_model_texts == "old" and s.language_model_weight):
        train = read("train", recipe.seed)
        ledgers["train"] = train.ledger.as_dict()
        parts.append(train.fingerprint)
        task = _beside(recipe, task, train, old_objective, model, length, progress)

    def loss(body: Any, ranks: Ranks) -> float:
        return mean_loss(body, old_objective, validation, windows.spans(), ranks)

    data = joined_fingerprint(parts)
    ledger = {**json.loads(task.ledger), "old_task": ledgers}
    task = replace(
        task,
        fingerprints={**task.fingerprints, "data": data},
        ledger=json.dumps(ledger, indent=1, ensure_ascii=False),
    )
    return task, Measured(loss, scored)


def _check(recipe: Recipe, start: Path | None, model: Any, length: int) -> None:
    """Raise RecipeError unless the old task has a head, a tokenizer, and rows that the model reads."""
    config = body_of(model).config
    if not (config.masked_lm_head if encodes(config) else hasattr(body_of(model), "lm_head")):
        raise RecipeError(
            f"[old_task] is of a language model, and the {family_of(config)} of this run has no head of one; "
            "leave it out"
        )
    longest = context_limit(config)
    if longest is not None and length > longest:
        raise RecipeError(f"rows of [old_task] have {length} tokens and the model reads {longest}; give "
                          "old_task.seq_len")  # fmt: skip
    if start is None and recipe.tokenizer.path is None:
        raise RecipeError(
            "[old_task] is read with the tokenizer of a checkpoint: begin with one (--from CHECKPOINT), or, "
            "to train both tasks from scratch, name the old task's tokenizer as tokenizer.path"
        )


def _as_recipe(recipe: Recipe, kind: str) -> Recipe:
    """Return ``[old_task]`` as a recipe for the objective ``kind``."""
    old, s = recipe.old_task, recipe.train
    assert old is not None
    text = old.model_dump(
        exclude={"masking", "seed", "seq_len", "evaluate_windows", "every_evaluation"}, exclude_none=True
    )
    values = {
        "name": recipe.name,
        "seed": old.seed,
        "data": {"train": text.pop("validation"), **text} if old.train is None else text,
        "masking": old.masking.model_dump(),
        "train": {
            "objective": kind,
            "steps": 1,
            "seq_len": old.seq_len or s.seq_len,
            "batch_size": s.batch_size,
        },
    }
    try:
        return read_recipe(Recipe, {}, values)
    except RecipeError as error:
        message = str(error).removeprefix("settings: ")
        for table in ("data.", "masking."):
            message = message.replace(table, f"old_task.{table.removeprefix('data.')}")
        raise RecipeError(message) from None


def _beside(
    recipe: Recipe,
    task: Task,
    old: Any,
    old_objective: Any,
    model: Any,
    length: int,
    progress: TrainingProgress,
) -> Task:
    """Return ``task`` with rehearsal: steps of the batches ``old``, or rows of them in every step.

    A step of the old task has about as many tokens as a step of the new task.
    """
    s = task.settings
    costs = task.costs or Costs(
        flops_per_token=flops_per_token(model, context=s.seq_len).training,
        tokens_per_sample=s.seq_len,
        dense=True,
    )
    tokens = s.batch_size * costs.tokens_per_sample
    cuts = -(-s.batch_size // (s.micro_batch_size or s.batch_size))
    rows = max(cuts, round(tokens / length))
    share, weight = s.rehearsal_share, s.language_model_weight
    auxiliary = 0.0 if share is None else weight  # of the task's own texts
    new = task.objective or objective(s.objective, language_model_weight=auxiliary)
    config, masking = body_of(model).config, recipe.old_task.masking  # type: ignore[union-attr]
    each = (
        training_flops(config, masking, length)
        if encodes(config)
        else flops_per_token(config, context=length).training
    )
    of_new, of_old = (1.0, 1.0) if share is None else (1.0 - share, share)
    together = of_new * tokens + of_old * rows * length
    flops = (of_new * tokens * costs.flops_per_token + of_old * rows * length * each) / together
    how = f"{share:.4g} of the steps" if share is not None else f"every step, by {weight:g}"
    progress.say(
        f"old task    in {how}: {rows} rows, {rows * length:,} tokens; a step of the new one has "
        f"{tokens:,.0f}"
    )
    return replace(
        task,
        batches=RehearsedBatches(task.batches, old, batch_size=s.batch_size, rows=rows, share=share),
        objective=WithOldTask(new, old_objective, weight if share is None else 1.0),
        costs=Costs(
            flops_per_token=round(flops), tokens_per_sample=together / s.batch_size, dense=costs.dense
        ),
    )


def write_losses(hook: OldTaskLoss, folder: Path, step: int, progress: TrainingProgress) -> None:
    """Write the losses before training and at ``step`` into ``folder``."""
    before, after = hook.losses[0], hook.losses[step]
    losses = {"before": before, "after": after, "step": step, "signature": hook.signature}
    write_text(folder / FILE, json.dumps(losses, indent=1) + "\n")
    progress.say(f"old task    loss {before:.4f} before, {after:.4f} after ({after - before:+.4f})")
