"""The hooks of a run: evaluation, samples, views, the log and checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wordloom.errors import RecipeError
from wordloom.evaluate import signature
from wordloom.progress import TrainingProgress
from wordloom.recipe import Recipe
from wordloom.run.tasks.old_task import Measured
from wordloom.run.tasks.task import Task
from wordloom.run.views.watching import Watch, Watched
from wordloom.training import Evaluate, Log, Plan, Sample, Save, Trainer
from wordloom.training.checkpoint import write_checkpoint
from wordloom.training.hooks import finished_weights
from wordloom.training.old_task import OldTaskLoss
from wordloom.training.trainer import Hook


def add_hooks(
    trainer: Trainer,
    recipe: Recipe,
    folder: Path,
    task: Task,
    old: Measured | None,
    plan: Plan,
    facts: dict[str, Any],
    writer: Any,
    views: Sequence[Watched],
    progress: TrainingProgress,
) -> None:
    """Give ``trainer`` the hooks of a run, in the order in which they act after a step."""
    s, hooks = task.settings, list[Hook]()
    if task.evaluate is not None:
        signed = signature("validation", **task.scored, dtype=trainer.precision.mode)
        progress.say(f"scores      {signed}")
        hooks.append(Evaluate(task.evaluate, every=s.evaluate_every, signature=signed))
    if task.sample is not None:
        hooks.append(Sample(task.sample, every=s.sample_every))
    if views:
        hooks.append(Watch(views, s.evaluate_every, folder / "views"))
    log = Log(
        folder / "metrics.jsonl" if trainer.ranks.is_first else None,
        every=s.log_every,
        report=progress.update,
        work=plan.work,
        peak_flops=plan.peak_flops,
        writer=None if writer is None else writer(str(folder / "tensorboard")),
    )
    hooks.append(log)
    if old is not None and recipe.old_task is not None:  # after Log, which writes its loss, and before Save
        signed = signature("old_loss", **old.scored, dtype=trainer.precision.mode)
        always = recipe.old_task.every_evaluation or s.keep_best
        hooks.append(OldTaskLoss(old.loss, log, always=always, signature=signed))

    def save(trainer: Trainer, best_step: int | None) -> None:
        write_checkpoint(
            trainer,
            folder,
            write_model=task.save,
            facts=facts,
            keep_last=recipe.train.keep_last,
            best_step=best_step,
            # an adapter is small, and its tools know no parts
            consolidate=recipe.train.consolidate or recipe.lora is not None,
        )

    hooks.append(Save(save, every=s.save_every, keep_best=s.keep_best, best_metric=s.best_metric))
    trainer.hooks = hooks


def check_metric(trainer: Trainer, task: Task) -> None:
    """Raise RecipeError before training if evaluations lack the metric of train.keep_best."""
    metrics: Any = ()
    if task.evaluate is not None:
        with finished_weights(trainer) as model, trainer.precision.autocast():
            metrics = task.evaluate(model, trainer.ranks)
    if task.settings.best_metric not in metrics:
        raise RecipeError(
            f"train.best_metric {task.settings.best_metric!r} is not evaluated on the validation part of "
            f"this run; allowed: {', '.join(metrics) or 'none, since nothing is held out'}"
        )


def tensorboard() -> Any:
    """Return the class that writes TensorBoard files."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise RecipeError(
            "train.tensorboard needs the package tensorboard: pip install tensorboard"
        ) from None
    return SummaryWriter
