"""The budget of a run in optimizer steps."""

from __future__ import annotations

from typing import Any

from wordloom.recipe import TrainSettings
from wordloom.run.tasks.task import Task
from wordloom.training import Plan
from wordloom.training.schedules import learning_rate_share


def total_steps(task: Task, plan: Plan | None) -> int:
    """Return the budget in optimizer steps, at least 1; the timed steps of ``plan`` convert minutes.

    Without a plan, a budget in minutes or FLOPs is not known in steps. Any number will do for the schedule of
    the timed steps, which are undone.
    """
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
        return 1000
    if s.flops is not None:
        return max(1, round(s.flops / plan.work(1).flops))
    assert s.minutes is not None
    if plan.step_seconds is None:  # a resumed run, whose steps are known
        return 1
    return max(1, int(s.minutes * 60 / plan.step_seconds))


def schedule_change(s: TrainSettings, saved: dict[str, Any], total: int) -> str | None:
    """Return a message if a new budget would have changed the learning rate of steps already done."""
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
