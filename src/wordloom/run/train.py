"""Train a recipe: the composition of text, data, model, objective, loop and checkpoints."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import nn

from wordloom.errors import CheckpointError, DeviceError, NonFiniteError, RankError, RecipeError
from wordloom.files import sync_tree
from wordloom.models.building.build import without_weights
from wordloom.objectives import objective
from wordloom.progress import RankProgress, TrainingProgress
from wordloom.recipe import Recipe, load_recipe
from wordloom.recipe.reading import shipped_recipes
from wordloom.run.folder import RunFolder, resumed_recipe
from wordloom.run.hooks import add_hooks, check_metric, tensorboard
from wordloom.run.models.heads import HEADS
from wordloom.run.ranks import check_equal, describe, is_sent_weights, refuse_alone
from wordloom.run.resuming import Resumed, check_facts, restore
from wordloom.run.tasks.building import check_model, ways_to_tune
from wordloom.run.tasks.causal import causal_task
from wordloom.run.tasks.classifiers import classification_task
from wordloom.run.tasks.head_task import head_task
from wordloom.run.tasks.instruction import instruction_task
from wordloom.run.tasks.lora import check_base, with_lora
from wordloom.run.tasks.masked import masked_task
from wordloom.run.tasks.old_task import Measured, check_old_head, with_old_task, write_losses
from wordloom.run.tasks.preference import preference_task
from wordloom.run.tasks.sentence_embeddings import sentence_task
from wordloom.run.tasks.task import Task, total_steps
from wordloom.run.tasks.translation.task import translation_task
from wordloom.run.views.watching import check_watched, watched
from wordloom.training import Evaluate, Plan, Save, Trainer, make_plan, tune_allocator
from wordloom.training.checkpoint import (
    checkpoint_steps,
    latest_checkpoint,
    read_state,
)
from wordloom.training.hooks import cut_metrics, saved_weights
from wordloom.training.old_task import OldTaskLoss
from wordloom.training.plan import TuningMemory, smaller
from wordloom.training.ranks import Ranks, joined_ranks
from wordloom.training.stopping import sigterm_interrupts
from wordloom.weights.loading import weights_fingerprint


@dataclass(frozen=True)
class TrainResult:
    """The folder of a run and how it ended; ``metrics`` are those of the last evaluation.

    ``stopped``: a signal ended it before its last step.  ``interrupted``: a signal asked to stop, perhaps
    after the last step, so that a program that trains several models must not begin another.
    """

    folder: Path
    step: int
    total_steps: int
    stopped: bool
    metrics: dict[str, float] = field(default_factory=dict)
    plan: Plan | None = None
    interrupted: bool = False


def train(
    recipe: str | Path | Recipe,
    overrides: Sequence[str] = (),
    *,
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    start_from: str | Path | None = None,
    progress: TrainingProgress | None = None,
) -> TrainResult:
    """Train ``recipe`` into the folder ``out`` (by default ``runs/NAME``, or the folder of a resumed run).

    The finished folder holds ``config.json``, ``model.safetensors``, ``tokenizer.json``, ``recipe.toml``,
    ``metrics.jsonl``, and what resuming needs in ``checkpoints/step-N``.  ``start_from`` begins with the
    weights and tokenizer of a checkpoint instead of new ones.

    Raises WordloomError for errors that the user can correct, NonFiniteError when the loss diverges.
    """
    with joined_ranks() as ranks:
        progress = progress or (TrainingProgress() if ranks.is_first else RankProgress(ranks.rank))
        with ranks.together():
            loaded, path = _chosen(recipe, overrides, out, start_from, resume=resume, say=progress.say)
            if ranks.size > 1:
                refuse_alone(loaded, ranks)
        try:
            return _locked(loaded, path, ranks, resume=resume, force=force, progress=progress)
        except NonFiniteError as error:
            if ranks.is_first:
                raise
            raise RankError(str(error)) from error  # all ranks know it, and one says it


def _chosen(
    recipe: str | Path | Recipe,
    overrides: Sequence[str],
    out: str | Path | None,
    start_from: str | Path | None,
    *,
    resume: bool,
    say: Callable[[str], None],
) -> tuple[Recipe, Path]:
    """Return the recipe to train and the folder of the run."""
    if not isinstance(recipe, Recipe) and str(recipe) not in shipped_recipes() and Path(recipe).is_dir():
        if resume and out is None:
            out = recipe
        if not (Path(recipe) / "recipe.toml").exists():
            if not checkpoint_steps(Path(recipe)):
                raise CheckpointError(f"{recipe} holds no run; give a recipe or the folder of a run")
            recipe = RunFolder(Path(recipe), resume=True, force=False).saved_recipe(Recipe)
    loaded = load_recipe(recipe, overrides, say=say)
    if start_from is not None:
        loaded = loaded.model_copy(update={"start_from": str(start_from)})
    return loaded, Path(out) if out is not None else Path("runs") / loaded.name


def _locked(
    loaded: Recipe, path: Path, ranks: Ranks, *, resume: bool, force: bool, progress: TrainingProgress
) -> TrainResult:
    """Train into ``path``, which the first rank locks for all."""
    if force and loaded.start_from and Path(loaded.start_from).resolve().is_relative_to(path.resolve()):
        raise CheckpointError(
            f"--force would remove the checkpoint {loaded.start_from} that --from names; choose another --out"
        )
    with RunFolder(path, resume=resume, force=force, owner=ranks.is_first) as folder:
        checkpoint = None
        if resume and ranks.is_first:
            checkpoint = latest_checkpoint(path)
        ranks.barrier()  # the folder is checked and locked, and has no incomplete checkpoint
        if resume and not ranks.is_first:
            checkpoint = latest_checkpoint(path)
        if resume:
            for name in folder.missing():
                instead = (
                    "taken from the checkpoint" if name == "recipe.toml" else "the run starts an empty one"
                )
                progress.say(f"{path / name} is missing: {instead}")
            loaded = resumed_recipe(loaded, folder.saved_recipe(Recipe))
            if checkpoint is None:
                progress.say("no checkpoint was written yet: starting at step 0")
        resumed = None
        if checkpoint is not None:
            with ranks.together():
                resumed = Resumed(checkpoint, *read_state(checkpoint))
        try:
            with sigterm_interrupts():
                return _train(loaded, folder, resumed, ranks, progress)
        except KeyboardInterrupt:  # outside a step; inside one, the trainer finishes the step and stops
            saved = latest_checkpoint(path) if folder.begun or resume else None
            if saved is None:
                progress.say("stopped before anything was saved")
                raise
            values = read_state(saved)[1]
            return TrainResult(path, values["step"], values["total_steps"], stopped=True, interrupted=True)


def _train(
    recipe: Recipe, run: RunFolder, resumed: Resumed | None, ranks: Ranks, progress: TrainingProgress
) -> TrainResult:
    """Build what ``recipe`` names, train, and leave the finished model in the folder of ``run``."""
    if recipe.train.threads is not None:
        torch.set_num_threads(recipe.train.threads)
    with ranks.together():
        if ranks.is_first:
            check_watched(recipe.train.inspect)
    is_tuned = recipe.train.allocator == "tuned" and tune_allocator()
    with ranks.first_before_others(), without_weights(is_sent_weights(recipe)):
        task, model, old = _build(recipe, resumed, progress)
    s = task.settings
    facts = {"recipe": recipe.as_dict(), **task.fingerprints}
    if (base := _base(recipe)) is not None:
        facts["base"] = weights_fingerprint(base)
    if resumed is not None:
        check_facts(facts, resumed.values, run.path)
    if ranks.size > 1:
        check_equal(ranks, facts)
    trainer = Trainer(
        model,
        task.objective
        or objective(
            s.objective, label_smoothing=s.label_smoothing, language_model_weight=s.language_model_weight
        ),
        task.batches,
        s,
        total_steps=total_steps(task, None),
        seed=recipe.seed,
        ranks=ranks,
    )
    placement = task.set_up(trainer)
    threads = torch.get_num_threads()
    progress.say(
        f"running     {trainer.device}, {trainer.precision.mode}, {placement}, "
        f"{threads} thread{'s' * (threads != 1)}, allocator {'tuned' if is_tuned else 'system'}"
    )
    if ranks.size > 1:
        progress.say(f"ranks       {ranks.size}, {describe(s.shard, ranks)}")
    plan = _plan(trainer, task, recipe, resumed, run.path, progress)
    if s.keep_best and s.best_metric != "loss" and resumed is None:
        check_metric(trainer, task)
    writer = tensorboard() if s.tensorboard and ranks.is_first else None
    views = watched(s.inspect, task.tokenizer, trainer.model) if ranks.is_first else []
    if views:
        progress.say(f"views       {', '.join(view.name for view in views)}: in {run.path / 'views'}")
    with ranks.together():
        if ranks.is_first:
            run.begin(recipe, task.ledger)
    add_hooks(trainer, recipe, run.path, task, old, plan, facts, writer, views, progress)
    if resumed is not None:
        restore(trainer, resumed, progress)
    if ranks.is_first:
        cut_metrics(run.path / "metrics.jsonl", -1 if resumed is None else trainer.step)
    ended = _run(trainer, progress)
    if ended == "done":
        _finish(trainer, run.path, recipe, task, progress)
    metrics = next((hook.metrics for hook in trainer.hooks if isinstance(hook, Evaluate)), {})
    stopped = ended == "stopped"
    return TrainResult(
        run.path, trainer.step, trainer.total_steps, stopped, metrics, plan, stopped or trainer.interrupted
    )


# -- the steps of a run ------------------------------------------------------------------------------------


def _build(
    recipe: Recipe, resumed: Resumed | None, progress: TrainingProgress
) -> tuple[Task, nn.Module, Measured | None]:
    """Return the task of ``recipe``, its model, and the measurement of an old task."""
    start = None if recipe.start_from is None else Path(recipe.start_from)
    checkpoint = None if resumed is None else resumed.checkpoint
    if checkpoint is not None and (base := _base(recipe)) is not None and not base.exists():
        raise CheckpointError(
            f"the run needs the weights of {base}, which does not exist; put that folder back, or start "
            "again with another --out"
        )
    if checkpoint is not None and recipe.lora is None:
        start = checkpoint
    if start is not None and not start.exists():
        raise CheckpointError(
            f"the run starts from {start}, which does not exist; train that model first"
            f"{_how_to_train(start)}, or name another with --from CHECKPOINT"
        )
    if start is not None:
        unused = resumed is None and (recipe.tokenizer.kind or recipe.tokenizer.path)
        instead = "; the recipe's [tokenizer] is not used" if unused else ""
        progress.say(f"start       weights and tokenizer of {start}{instead}")
        if recipe.old_task is not None:
            check_old_head(start)
    check_base(recipe, start)
    if resumed is None:
        check_model(recipe, start)
    task = TASKS[recipe.train.objective](recipe, start, progress)
    if recipe.lora is not None:
        task = with_lora(recipe, start, checkpoint, task, progress)
    model = task.build_model()
    if recipe.old_task is None:
        return task, model, None
    task, old = with_old_task(recipe, start, model, task, progress)
    return task, model, old


def _base(recipe: Recipe) -> Path | None:
    """Return the checkpoint that the run needs until its end: the base of an adapter, or the reference."""
    if recipe.start_from is None or (recipe.lora is None and recipe.train.objective != "preference"):
        return None
    return Path(recipe.start_from)


def _how_to_train(start: Path) -> str:
    """Return the command that trains the model in ``start`` in brackets, if one of ours does."""
    if start.parent != Path("runs"):
        return ""
    if start.name in shipped_recipes():
        return f" (wordloom train {start.name})"
    minutes = re.fullmatch(r"demo-(.+)min", start.name)
    return f" (wordloom demo --minutes {minutes[1]})" if minutes else ""


def _plan(
    trainer: Trainer,
    task: Task,
    recipe: Recipe,
    resumed: Resumed | None,
    folder: Path,
    progress: TrainingProgress,
) -> Plan:
    """Set the number of steps, after timing some if that is needed, and report what the run will take."""
    s = task.settings
    if s.optimizer == "muon" and "muon" not in trainer.optimizer.parts:
        progress.say(
            "muon trains the matrices of blocks, but this model has none: AdamW trains all parameters"
        )
    known = resumed is not None and s.minutes in (None, resumed.values["recipe"]["train"].get("minutes"))
    timed = not known and (task.timed or s.minutes is not None)
    timed_steps = min(3, trainer.total_steps // 8) if timed else 0  # none of a very short run
    ways = ways_to_tune(recipe, trainer.model.config)
    plan = make_plan(trainer, timed_steps=timed_steps, costs=task.costs, ways=ways)
    if resumed is not None and known and s.minutes is not None:
        trainer.total_steps = resumed.values["total_steps"]  # minutes became steps when the run began
    else:
        trainer.total_steps = total_steps(task, plan)
    plan = replace(plan, total_steps=trainer.total_steps)
    progress.say(plan.lines())
    if ways is not None:
        progress.say(_with_plan(ways, recipe, plan).line(plan.activation_bytes))
    if s.warmup_steps >= trainer.total_steps:
        progress.say(
            f"the warm-up of {s.warmup_steps:,} steps is longer than the run: the peak learning rate is not "
            "reached"
        )
    if resumed is not None and resumed.values["step"] > trainer.total_steps:
        raise RecipeError(
            f"{folder} has done {resumed.values['step']:,} steps and the budget is {trainer.total_steps:,}; "
            "give a larger one, or choose another --out"
        )
    return plan


def _with_plan(ways: TuningMemory, recipe: Recipe, plan: Plan) -> TuningMemory:
    """Return ``ways`` with the exact bytes of the one that the run takes."""
    mine = "full" if recipe.lora is None else "lora_int8" if recipe.lora.base == "int8" else "lora"
    return replace(ways, **{mine: plan.memory_bytes - plan.activation_bytes})


def _run(trainer: Trainer, progress: TrainingProgress) -> str:
    """Run the loop under a progress bar; return "done" or "stopped"."""
    progress.start(total=trainer.total_steps, done=trainer.step)
    try:
        ended = trainer.run()
    except torch.OutOfMemoryError:
        raise DeviceError(f"{trainer.device} is out of memory; {smaller(trainer.settings)}") from None
    finally:
        progress.stop()
    if trainer.optimizer.converged:
        progress.say(
            f"converged at step {trainer.step:,}: no component of the gradient is above "
            f"train.tolerance {trainer.settings.tolerance:g}"
        )
    return ended


TASKS: dict[str, Callable[[Recipe, Path | None, TrainingProgress], Task]] = {
    "causal_lm": causal_task,
    "instruction": instruction_task,
    "preference": preference_task,
    "translation": translation_task,
    "truncated_bptt": causal_task,
    **dict.fromkeys(HEADS, head_task),
    "classification": classification_task,
    "masked_lm": masked_task,
    "masked_lm+next_sentence": masked_task,
    "contrastive": sentence_task,
    "cosine_similarity": sentence_task,
}


def _finish(trainer: Trainer, folder: Path, recipe: Recipe, task: Task, progress: TrainingProgress) -> None:
    """Save the finished model in the run's folder: the last weights, their average, or the best."""
    save_hook = next(hook for hook in trainer.hooks if isinstance(hook, Save))
    step = (save_hook.best_step if recipe.train.keep_best else None) or trainer.step
    if recipe.train.keep_best and save_hook.best_step is None:
        progress.say(f"kept: the last weights, since no evaluation had a {recipe.train.best_metric}")
    ranks = trainer.ranks
    if step != trainer.step:
        with ranks.together():
            if ranks.is_first:
                checkpoint = folder / "checkpoints" / f"step-{step}"
                best = task.load(checkpoint)
                if trainer.average is not None:  # the metric is that of the average, not of the saved weights
                    trainer.average.copy_saved(read_state(checkpoint)[0], best)
                task.save(best, folder, overwrite=True)
    else:
        with saved_weights(trainer) as model, ranks.together():
            if ranks.is_first:
                task.save(model, folder, overwrite=True)
    if not ranks.is_first:
        return
    for hook in trainer.hooks:
        if isinstance(hook, OldTaskLoss):
            write_losses(hook, folder, step, progress)
    sync_tree(folder)
