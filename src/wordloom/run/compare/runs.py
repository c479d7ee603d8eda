"""The training runs of a comparison: which there are, what state they are in, and how one is trained."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from wordloom.errors import NonFiniteError, RecipeError
from wordloom.progress import TrainingProgress
from wordloom.recipe import Recipe, load_recipe
from wordloom.run.compare.budget import Budget, Cost
from wordloom.run.compare.entries import Entry
from wordloom.run.compare.folder import keep
from wordloom.run.sweep.grid import Combination
from wordloom.run.sweep.scores import SweepRun, metric_lines, read_run
from wordloom.run.train import train

Purpose = Literal["rate", "curve", "final"]

TENTH = 0.1  # the share of the budget at which learning rates are compared
#: Shares of the budget that are trained beside, for the line of an entry.
CURVE = (0.03, 0.3)
_WARMUP = 0.2  # the share of the steps in which the learning rate rises; with less, trials saturate a GRU
_MOST_WARMUP = 200  # steps


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run: an entry with a learning rate, a share of the budget and a seed."""

    entry: Entry
    purpose: Purpose
    share: float
    rate: float
    seed: int
    recipe: Recipe
    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def work(self) -> float:
        """Floating-point operations of the whole run."""
        s = self.recipe.train
        return float((s.steps or 0) * self.entry.tokens_per_step * self.entry.flops_per_token)

    def seconds(self) -> float:
        """Return the seconds of training so far, without evaluations."""
        lines = metric_lines(self.folder / "metrics.jsonl")
        return sum(line["seconds"] for line in lines if line["kind"] == "train")

    def state(self) -> SweepRun:
        """Return the state and the validation scores of the run, from its folder."""
        return read_run(Combination(name=self.name, settings={}, recipe=self.recipe), self.folder)


def run_of(
    entry: Entry,
    purpose: Purpose,
    *,
    share: float,
    rate: float,
    seed: int,
    budget: Budget,
    cost: Cost,
    out: Path,
) -> Run:
    """Return the run of ``entry`` with a share of ``budget``; its folder is in ``out``."""
    steps = cost.steps(budget, share)
    train_settings: dict[str, Any] = {
        **entry.recipe.train.model_dump(exclude_defaults=True),
        "steps": steps,
        "learning_rate": rate,
        "warmup_steps": min(_MOST_WARMUP, math.ceil(_WARMUP * steps)),
        "log_every": max(1, min(entry.recipe.train.log_every, steps)),
        "save_every": max(1, math.ceil(steps / 4)) if purpose == "final" else 0,
        "keep_last": 1,
    }
    name = {
        "rate": f"{entry.name}-rate-{rate:g}",
        "curve": f"{entry.name}-budget-{share:g}",
        "final": f"{entry.name}-seed-{seed}",
    }[purpose]
    if entry.recipe.train.optimizer == "muon":  # its two learning rates change together
        factor = rate / entry.rates[len(entry.rates) // 2]
        train_settings["muon_learning_rate"] = factor * entry.recipe.train.muon_learning_rate
    values = {**entry.recipe.as_dict(), "name": name, "seed": seed, "train": train_settings}
    folder = out / ("models" if purpose == "final" else "trials") / name
    if (folder / "recipe.toml").exists():  # the comparison may have been moved since, with its tokenizer
        values["tokenizer"] = load_recipe(folder / "recipe.toml").as_dict().get("tokenizer", {})
    recipe = Recipe.model_validate(values)
    return Run(entry=entry, purpose=purpose, share=share, rate=rate, seed=seed, recipe=recipe, folder=folder)


def train_run(run: Run, progress: TrainingProgress) -> bool:
    """Train ``run``, or go on with it; return whether a signal asked to stop.

    A run whose loss is not finite gets a file ``failed.json``.  ``memory.json`` has the peak memory of a
    step: on CUDA that of the device, and on a CPU that of the plan, because the process also holds earlier
    runs.
    """
    resume = run.state().state == "stopped"
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    try:
        result = train(run.recipe, out=run.folder, resume=resume, progress=progress)
    except NonFiniteError as error:
        keep(run.folder / "failed.json", {"reason": str(error)})
        return False
    if result.plan is not None:
        used = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
        keep(run.folder / "memory.json", {"bytes": used or result.plan.memory_bytes})
    return result.interrupted


def time_step(entry: Entry, minutes: float, folder: Path, progress: TrainingProgress) -> float:
    """Return the seconds of an optimizer step of ``entry``, measured in a run of ``minutes`` in ``folder``.

    It is the lower quartile over the lines of the log: other work on the machine slows down the rest.  The
    first line is left out, because programs are compiled in it.
    """
    values = entry.recipe.as_dict()
    train_settings = {
        **entry.recipe.train.model_dump(exclude_defaults=True),
        "minutes": minutes,
        "log_every": 1,
        "evaluate_windows": 1,  # whose loss nobody reads
    }
    del train_settings["steps"]
    values |= {"name": f"{entry.name}-timing", "train": train_settings}
    recipe = Recipe.model_validate(values)
    lines = [line for line in metric_lines(folder / "metrics.jsonl") if line["kind"] == "train"]
    if len(lines) < 2:
        if train(recipe, out=folder, force=folder.exists(), progress=progress).interrupted:
            raise KeyboardInterrupt
        lines = [line for line in metric_lines(folder / "metrics.jsonl") if line["kind"] == "train"]
    speeds = sorted(line["tokens_per_second"] for line in lines[1:] or lines)
    if not speeds:
        raise RecipeError(f"{entry.name}: the timing run took no step; give a larger budget")
    return entry.tokens_per_step / speeds[len(speeds) * 3 // 4]
