"""Train a recipe: the composition of text, data, model, objective, loop and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from wordloom.errors import CheckpointError, DeviceError, RecipeError
from wordloom.evaluate import signature
from wordloom.files import sync_tree
from wordloom.objectives import objective
from wordloom.recipe import Recipe, TrainSettings, load_recipe
from wordloom.run.folder import RunFolder, resumed_recipe
from wordloom.run.models.heads import HEADS
from wordloom.run.progress import TrainingProgress
from wordloom.run.tasks.causal import causal_task
from wordloom.run.tasks.classifiers import classification_task
from wordloom.run.tasks.head_task import head_task
from wordloom.run.tasks.masked import masked_task
from wordloom.run.tasks.old_task import check_old_head, with_old_task, write_losses
from wordloom.run.tasks.sentence_embeddings import sentence_task
from wordloom.run.tasks.task import Task
from wordloom.run.tasks.translation.task import translation_task
from wordloom.training import Evaluate, Log, Plan, Sample, Save, Trainer, make_plan, tune_allocator
from wordloom.training.checkpoint import (
    environment_changes,
    latest_checkpoint,
    not_finite,
    read_state,
    write_checkpoint,
)
from wordloom.training.hooks import cut_metrics, finished_weights
from wordloom.training.old_task import OldTaskLoss
from wordloom.training.plan import smaller
from wordloom.training.schedules import learning_rate_share
from wordloom.training.stopping import sigterm_interrupts
from wordloom.weights import load_model
from wordloom.weights.integrity import advice_if_damaged

__all__ = ["TrainResult", "train"]


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """Where the run is and how it ended; ``metrics`` are those of the last evaluation."""

    folder: Path
    step: int
    total_steps: int
    stopped: bool
    metrics: dict[str, float]
    plan: Plan | None


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
    """Train ``recipe`` into the folder ``out`` (``runs/NAME`` by default).

    The finished folder holds ``config.json``, ``model.safetensors``, ``tokenizer.json``, ``recipe.toml``,
    ``metrics.jsonl``, and what resuming needs in ``checkpoints/step-N``.  ``start_from`` begins with the
    weights and tokenizer of a checkpoint instead of fresh ones.

    Raises WordloomError for whatever the user can put right, NonFiniteError when the loss diverges.
    """
    if (
        not isinstance(recipe, Recipe)
        and Path(recipe).is_dir()
        and not (Path(recipe) / "recipe.toml").exists()
    ):
        recipe = RunFolder(Path(recipe), resume=True, force=False).saved_recipe(Recipe)
    progress = progress or TrainingProgress()
    loaded = load_recipe(recipe, overrides, say=progress.say)
    if start_from is not None:
        loaded = loaded.model_copy(update={"start_from": str(start_from)})
    path = Path(out) if out is not None else Path("runs") / loaded.name
    if force and loaded.start_from and Path(loaded.start_from).resolve().is_relative_to(path.resolve()):
        raise CheckpointError(
            f"--force would remove the checkpoint {loaded.start_from} that --from names; choose another --out"
        )
    with RunFolder(path, resume=resume, force=force) as folder:
        checkpoint = latest_checkpoint(path) if resume else None
        if resume:
            for name in folder.missing():
                instead = "taken from the checkpoint" if name == "recipe.toml" else "it starts again, empty"
                progress.say(f"{path / name} is missing: {instead}")
            loaded = resumed_recipe(loaded, folder.saved_recipe(Recipe))
            if checkpoint is None:
                progress.say("no checkpoint was written yet: starting at step 0")
        state = read_state(checkpoint, facts=_FACTS) if checkpoint is not None else None
        try:
            with sigterm_interrupts():
                return _train(loaded, folder, checkpoint, state, progress)
        except KeyboardInterrupt:  # outside the steps, which finish what they are at
            saved = latest_checkpoint(path) if folder.begun or resume else None
            if saved is None:
                progress.say("stopped before anything was saved")
                raise
            values = read_state(saved)[1]
            return TrainResult(
                folder=path,
                step=values["step"],
                total_steps=values["total_steps"],
                stopped=True,
                metrics={},
                plan=None,
            )


def _train(
    recipe: Recipe,
    run: RunFolder,
    checkpoint: Path | None,
    state: tuple[dict[str, torch.Tensor], dict[str, Any]] | None,
    progress: TrainingProgress,
) -> TrainResult:
    s, folder = recipe.train, run.path
    if s.threads is not None:
        torch.set_num_threads(s.threads)
    tuned = s.allocator == "tuned" and tune_allocator()
    given = checkpoint or (None if recipe.start_from is None else Path(recipe.start_from))
    if given is not None:
        unused = checkpoint is None and (recipe.tokenizer.kind or recipe.tokenizer.path)
        instead = "; the recipe's [tokenizer] is not used" if unused else ""
        progress.say(f"start       weights and tokenizer of {given}{instead}")
    if given is not None and recipe.old_task is not None:
        check_old_head(given)
    task = TASKS[s.objective](recipe, given, progress)
    model, old = task.build_model(), None
    if recipe.old_task is not None:
        task, old = with_old_task(recipe, given, model, task, progress)
    s = task.settings
    facts = {"recipe": recipe.as_dict(), **task.fingerprints}
    if state is not None:
        _check_facts(facts, state[1], folder)
    trainer = Trainer(
        model,
        task.objective
        or objective(
            s.objective,
            label_smoothing=s.label_smoothing,
            language_model_weight=s.language_model_weight,
        ),
        task.batches,
        s,
        total_steps=_steps_before_timing(task),
        seed=recipe.seed,
    )
    how = task.settle(trainer)
    progress.say(
        f"running     {trainer.device}, {trainer.precision.mode}, {how}, "
        f"{torch.get_num_threads()} threads, allocator {'tuned' if tuned else 'system'}"
    )
    if s.optimizer == "muon" and "muon" not in trainer.optimizer.parts:
        progress.say(
            "muon is for the matrices of a model's blocks: AdamW trains all of this one, which has none"
        )
    known = state is not None and (
        s.minutes is None or state[1]["recipe"]["train"].get("minutes") == s.minutes
    )
    timed = task.timed or s.minutes is not None
    timed_steps = min(3, trainer.total_steps // 8) if timed and not known else 0  # none of a very short run
    plan = make_plan(trainer, timed_steps=timed_steps, costs=task.costs)
    trainer.total_steps = _total_steps(task, plan)
    if known and s.minutes is not None:
        assert state is not None
        trainer.total_steps = state[1]["total_steps"]  # minutes became steps once, when the run began
    plan = replace(plan, total_steps=trainer.total_steps)
    progress.say(plan.lines())
    if s.warmup_steps >= trainer.total_steps:
        progress.say(
            f"the warm-up of {s.warmup_steps:,} steps is longer than the run: the peak learning rate is not "
            "reached"
        )
    if state is not None and state[1]["step"] > trainer.total_steps:
        raise RecipeError(
            f"{folder} has done {state[1]['step']:,} steps and the budget is {trainer.total_steps:,}; give a "
            "larger one, or choose another --out"
        )
    if s.keep_best and s.best_metric != "loss" and state is None:
        _check_metric(trainer, task)
    writer = _tensorboard() if s.tensorboard else None
    run.begin(recipe, task.ledger)

    last: dict[str, float] = {}
    save = _saver(recipe, folder, task, facts)
    log = Log(
        folder / "metrics.jsonl",
        every=s.log_every,
        report=progress.update,
        work=plan.work,
        peak_flops=plan.peak_flops,
        writer=writer(str(folder / "tensorboard")) if writer else None,
    )
    trainer.hooks = [
        log,
        Save(save, every=s.save_every, keep_best=s.keep_best, best_metric=s.best_metric),
    ]
    if task.sample is not None:
        trainer.hooks.insert(0, Sample(task.sample, every=s.sample_every))
    if task.evaluate is not None:
        signed = signature("validation", **task.scored, dtype=trainer.precision.mode)
        progress.say(f"scores      {signed}")
        evaluate = Evaluate(_remembering(task.evaluate, last), every=s.evaluate_every, signature=signed)
        trainer.hooks.insert(0, evaluate)
    if old is not None and recipe.old_task is not None:
        signed = signature("old_loss", **old.scored, dtype=trainer.precision.mode)
        always = recipe.old_task.every_evaluation or s.keep_best
        hook = OldTaskLoss(old.loss, log, always=always, signature=signed)
        trainer.hooks.insert(-1, hook)  # behind what it writes with, before what saves it
    if state is not None:
        tensors, values = state
        trainer.load_state_dict(tensors, {**values, "total_steps": trainer.total_steps})
        assert checkpoint is not None
        if (name := not_finite(trainer)) is not None:
            raise CheckpointError(
                f"{checkpoint} cannot be gone on with: {name} is not finite; {advice_if_damaged(checkpoint)}"
            )
        trainer.last_checkpoint = str(checkpoint)
        if (changes := environment_changes(trainer, values["environment"])) is not None:
            progress.say(changes)
        if (changed := _schedule_change(s, values, trainer.total_steps)) is not None:
            progress.say(changed)
        progress.say(f"resuming at step {trainer.step:,} of {trainer.total_steps:,} from {checkpoint}")
    cut_metrics(folder / "metrics.jsonl", -1 if state is None else trainer.step)

    progress.start(total=trainer.total_steps, done=trainer.step)
    try:
        ended = trainer.run()
    except torch.OutOfMemoryError:
        raise DeviceError(f"{trainer.device} is out of memory; {smaller(s)}") from None
    finally:
        progress.stop()
    if trainer.optimizer.converged:
        progress.say(f"converged at step {trainer.step:,}: no component of the gradient is above "
                     f"train.tolerance {s.tolerance:g}")  # fmt: skip
    if ended == "done":
        _finish(trainer, folder, recipe, task, progress)
    return TrainResult(
        folder=folder,
        step=trainer.step,
        total_steps=trainer.total_steps,
        stopped=ended == "stopped",
        metrics=last,
        plan=plan,
    )


# -- the parts -------------------------------------------------------------------------------------------

TASKS: dict[str, Callable[[Recipe, Path | None, TrainingProgress], Task]] = {
    "causal_lm": causal_task,
    "translation": translation_task,
    "truncated_bptt": causal_task,
    **dict.fromkeys(HEADS, head_task),
    "classification": classification_task,
    "masked_lm": masked_task,
    "masked_lm+next_sentence": masked_task,
    "contrastive": sentence_task,
    "cosine_similarity": sentence_task,
}


def _steps_before_timing(task: Task) -> int:
    """A total for the schedule of the timed steps, which are undone: any will do for a budget in minutes or
    FLOPs, which the plan makes steps."""
    s = task.settings
    return 1000 if s.minutes is not None or s.flops is not None else _total_steps(task, None)


def _total_steps(task: Task, plan: Plan | None) -> int:
    """The budget in optimizer steps, at least 1; minutes become steps by the timed ones."""
    s = task.settings
    if s.steps is not None:
        return s.steps
    per_sample = s.seq_len if task.costs is None else task.costs.tokens_per_sample
    tokens_per_step = max(1, round(s.batch_size * per_sample))
    if s.tokens is not None:
        return max(1, -(-s.tokens // tokens_per_step))
    if s.epochs is not None:
        return max(1, round(s.epochs * task.batches.samples_per_epoch / s.batch_size))
    if plan is None:
        return 1
    if s.flops is not None:
        return max(1, round(s.flops / plan.work(1).flops))
    assert s.minutes is not None
    if plan.step_seconds is None:  # a resumed run, whose count was settled when it began
        return 1
    return max(1, int(s.minutes * 60 / plan.step_seconds))


def _schedule_change(s: TrainSettings, saved: dict[str, Any], total: int) -> str | None:
    """One line if another budget gives the steps already done another learning rate, or None."""
    done, before = saved["step"], saved["total_steps"]
    if not done or before == total or s.optimizer == "lbfgs":
        return None
    then = s.model_copy(update={"epochs": saved["recipe"]["train"].get("epochs")})
    had = s.learning_rate * learning_rate_share(done - 1, before, then)
    has = s.learning_rate * learning_rate_share(done - 1, total, s)
    following = s.learning_rate * learning_rate_share(done, total, s)
    if had == has:
        return None
    return (
        f"the schedule '{s.schedule}' now ends at step {total:,}, not {before:,}: step {done:,} had a "
        f"learning rate of {had:.3g}, and the next one has {following:.3g}. A run begun with {total:,} steps "
        "ends with other weights; for these, choose another --out and leave out --resume"
    )


def _check_metric(trainer: Trainer, task: Task) -> None:
    """Raise RecipeError where an evaluation has no figure to keep the best weights by, before hours of it."""
    figures: Any = ()
    if task.evaluate is not None:
        with finished_weights(trainer) as model, trainer.precision.autocast():
            figures = task.evaluate(model)
    if task.settings.best_metric not in figures:
        raise RecipeError(
            f"train.best_metric {task.settings.best_metric!r} is not evaluated on the validation part of "
            f"this run; allowed: {', '.join(figures) or 'none, since nothing is held out'}"
        )


def _remembering(
    evaluate: Callable[[Any], dict[str, float]], last: dict[str, float]
) -> Callable[[Any], dict[str, float]]:
    """``evaluate`` without figures that are not defined; the last ones are kept in ``last``."""

    def remember(model: Any) -> dict[str, float]:
        every = evaluate(model)
        figures = {name: value for name, value in every.items() if name == "loss" or not math.isnan(value)}
        last.clear()
        last.update(figures)
        return figures

    return remember


def _saver(recipe: Recipe, folder: Path, task: Task, facts: dict[str, Any]) -> Callable[..., None]:
    def save(trainer: Trainer, best_step: int | None) -> None:
        write_checkpoint(
            trainer,
            folder,
            write_model=lambda place: task.save(trainer.model, place, False),
            facts=facts,
            keep_last=recipe.train.keep_last,
            best_step=best_step,
        )

    return save


def _finish(trainer: Trainer, folder: Path, recipe: Recipe, task: Task, progress: TrainingProgress) -> None:
    """Leave the finished model in the run's folder itself: the last weights, their average, or the best."""
    save_hook = next(hook for hook in trainer.hooks if isinstance(hook, Save))
    step = (save_hook.best_step if recipe.train.keep_best else None) or trainer.step
    if recipe.train.keep_best and save_hook.best_step is None:
        progress.say(f"kept: the last weights, since no evaluation had a {recipe.train.best_metric}")
    if step != trainer.step:
        checkpoint = folder / "checkpoints" / f"step-{step}"
        best = load_model(checkpoint, dtype=None)
        if trainer.average is not None:  # whose loss it was; the weights there are those in training
            trainer.average.load_state_tensors(read_state(checkpoint)[0])
            trainer.average.copy_to(best)
        task.save(best, folder, True)
    else:
        with finished_weights(trainer) as model:
            task.save(model, folder, True)
    for hook in trainer.hooks:
        if isinstance(hook, OldTaskLoss):
            write_losses(hook, folder, step, progress)
    sync_tree(folder)


def _tensorboard() -> Any:
    """The class that writes for TensorBoard."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise RecipeError(
            "train.tensorboard needs the package tensorboard: pip install 'wordloom[tensorboard]'"
        ) from None
    return SummaryWriter


# What a checkpoint says of its run, and must find again.
_FACTS = {"data": "the training text", "tokenizer": "the tokenizer"}


def _check_facts(facts: dict[str, Any], saved: dict[str, Any], folder: Path) -> None:
    for key, what in _FACTS.items():
        if facts[key] != saved[key]:
            raise CheckpointError(
                f"{what} is not the one {folder} was trained with; put it back, or choose another --out"
            )
