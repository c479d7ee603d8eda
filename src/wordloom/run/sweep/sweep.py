"""Train every run of a grid, resume stopped runs, and compare the runs by a validation score."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from wordloom.errors import (
    CheckpointError,
    ConfigError,
    NonFiniteError,
    RecipeError,
    WordloomError,
    did_you_mean,
)  # fmt: skip
from wordloom.files import write_text
from wordloom.models import config_from
from wordloom.nn.evaluating import evaluating
from wordloom.progress import TrainingProgress
from wordloom.recipe import Recipe
from wordloom.run.folder import locked
from wordloom.run.sweep.grid import Combination, combinations
from wordloom.run.sweep.scores import OLD_LOSSES, Metric, SweepResult, read_run
from wordloom.run.tasks.building import model_settings
from wordloom.run.train import TASKS, train
from wordloom.training.precision import choose_device
from wordloom.training.ranks import ALONE
from wordloom.training.stopping import sigterm_interrupts
from wordloom.weights import load_config


def sweep(
    recipe: str | Path | Recipe,
    grid: Mapping[str, Sequence[Any]],
    overrides: Sequence[str] = (),
    *,
    out: str | Path | None = None,
    start_from: str | Path | None = None,
    metric: str = "loss",
    higher: bool | None = None,
    median: str | None = None,
    dry_run: bool = False,
    progress: TrainingProgress | None = None,
) -> SweepResult:
    """Train ``recipe`` with every combination of the values in ``grid``, and compare the runs by ``metric``.

    ``sweep("quickstart", {"train.learning_rate": [1e-3, 3e-3]})`` makes two runs.  Each run has a folder in
    ``out``, by default ``runs/NAME-sweep``.  Finished runs are not trained again, stopped runs are resumed,
    and a run whose loss diverged counts as failed.

    Args:
        metric: a score of the validation part.
        higher: whether a higher value is better, for metrics whose direction is not known.
        median: a key of ``grid``, such as ``seed``; settings are then compared by the median over its values.
        dry_run: read the runs that exist and train nothing.

    Raises WordloomError for mistakes of the user, before any training where they can be known by then.
    """
    progress = progress or TrainingProgress()
    points = combinations(recipe, grid, overrides, start_from=start_from, say=progress.say)
    compared = _check(points, metric, higher, median)
    name = points[0].recipe.name
    folder = Path(out) if out is not None else Path("runs") / f"{name}-sweep"
    _check_folder(folder, grid)
    runs = [read_run(point, folder / point.name) for point in points]
    result = SweepResult(folder=folder, by=compared, median=median, runs=runs)
    known = {"loss", *(name for run in runs for name in run.metrics)}
    if all(point.recipe.old_task is not None for point in points):
        known.update(OLD_LOSSES)
    # a metric can also be missing because it was undefined in every run so far
    if compared.name not in known and (len(known) > 1 or not dry_run):
        compared.check(_scores_before_training(points[0].recipe))
    if dry_run:
        return result
    with locked(folder, "sweeps"), sigterm_interrupts():
        about = {
            "recipe": name,
            "grid": {
                key: list({repr(p.settings[key]): p.settings[key] for p in points}.values()) for key in grid
            },
            "metric": compared.name,
            "direction": compared.direction,
            "median": median,
        }
        write_text(folder / "sweep.json", json.dumps(about, indent=1, ensure_ascii=False, default=str))
        _Sweep(points, result, progress).train()
    return result


@dataclass(frozen=True)
class _Sweep:
    """The runs of a sweep, whose states change in ``result`` as they are trained."""

    points: list[Combination]
    result: SweepResult
    progress: TrainingProgress

    def train(self) -> None:
        """Train the runs that are not done, until a signal asks to stop; write the tables after each run."""
        threads = torch.get_num_threads()
        mistakes: list[tuple[str, WordloomError]] = []
        self.result.write_tables()
        self._say_plan()
        runs = self.result.runs
        for number, point in enumerate(self.points):
            if runs[number].state in ("done", "failed"):
                continue
            self.progress.say(f"\nrun {number + 1} of {len(self.points)}: {point.name}")
            torch.set_num_threads(threads)  # the run before may have set train.threads
            try:
                stopped = self._train(point, resume=runs[number].state == "stopped")
            except CheckpointError:  # such as a full disk, which the other runs would meet too
                raise
            except WordloomError as error:
                mistakes.append((point.name, error))
                self.progress.say(f"not trained: {error}")
                continue
            finally:
                runs[number] = read_run(point, self.result.folder / point.name)
                self.result.write_tables()
            if stopped:
                return
            self._say_state(number)
        if mistakes:
            name, first = mistakes[0]
            more = f" ({len(mistakes):,} runs have mistakes)" if len(mistakes) > 1 else ""
            raise type(first)(f"{name}: {first}{more}") from None

    def _train(self, point: Combination, *, resume: bool) -> bool:
        """Train one run; return whether a signal stopped it."""
        folder = self.result.folder / point.name
        if "torch._dynamo" in sys.modules:  # its kernels have the shapes of the runs before
            torch.compiler.reset()
        try:
            return train(point.recipe, out=folder, resume=resume, progress=self.progress).interrupted
        except NonFiniteError as error:
            folder.mkdir(parents=True, exist_ok=True)  # the timed steps leave no folder behind
            write_text(folder / "failed.json", json.dumps({"reason": str(error)}, ensure_ascii=False))
            return False
        finally:
            gc.collect()  # the trainer and its hooks hold the model in a reference cycle

    def _say_plan(self) -> None:
        states = [run.state for run in self.result.runs]
        names = {"done": "done", "failed": "failed", "stopped": "to resume", "waiting": "to train"}
        parts = [f"{states.count(state)} {name}" for state, name in names.items() if state in states]
        self.progress.say(
            f"sweep       {len(states)} runs in {self.result.folder}: {', '.join(parts)}{self._time_left()}"
        )

    def _say_state(self, number: int) -> None:
        run, best, metric = self.result.runs[number], self.result.best, self.result.metric
        if run.state == "failed":
            self.progress.say(f"failed: {run.reason}")
        else:
            score = run.metrics.get(metric)
            self.progress.say(f"{metric} {'undefined' if score is None else f'{score:.4f}'}")
        if best is not None:
            self.progress.say(
                f"best so far {best.metrics[metric]:.4f}: {best.folder.name}{self._time_left()}"
            )

    def _time_left(self) -> str:
        """Return an estimate of the remaining training time from the finished runs, or "" without any."""
        done = self.result.done
        unfinished = [run for run in self.result.runs if run.state in ("waiting", "stopped")]
        if not done or not unfinished:
            return ""
        rate = sum(run.seconds for run in done) / sum(run.work for run in done)
        seconds = sum(max(0.0, rate * run.work - run.seconds) for run in unfinished)
        return f"; about {timedelta(seconds=round(seconds))} of training left"


# -- checks before training -------------------------------------------------------------------------------


def _check(points: list[Combination], metric: str, higher: bool | None, median: str | None) -> Metric:
    """Return the metric; raise WordloomError for mistakes that would otherwise show only after hours."""
    for point in points:
        if not point.recipe.data.holds_out:
            raise RecipeError(
                f"{point.name}: nothing is held out to compare runs by; set data.validation or "
                "data.validation_fraction"
            )
        try:
            _check_model(point.recipe)
        except ConfigError as error:
            raise ConfigError(f"{point.name}: {error}") from None
    keys = list(points[0].settings)
    if median is not None and median not in keys:
        raise RecipeError(f"--median {median}: the grid has no such key; {did_you_mean(median, keys)}")
    for start in {point.recipe.start_from for point in points}:
        if start is not None:
            load_config(Path(start))
    return Metric.named(metric, higher)


def _check_model(recipe: Recipe) -> None:
    """Raise ConfigError for an impossible shape, where the data decide only the vocabulary size."""
    if recipe.train.objective not in ("causal_lm", "truncated_bptt", "masked_lm", "masked_lm+next_sentence"):
        return
    if recipe.model and recipe.start_from is None:
        family, settings = model_settings(recipe)
        config_from(family, **{"vocab_size": 1 << 10, **settings})


def _scores_before_training(recipe: Recipe) -> Collection[str]:
    """Return the names of the scores that a run evaluates, by evaluating its untrained model."""
    start = None if recipe.start_from is None else Path(recipe.start_from)
    task = TASKS[recipe.train.objective](recipe, start, TrainingProgress(Console(quiet=True)))
    assert task.evaluate is not None
    model = task.build_model().to(choose_device(recipe.train.device))
    with evaluating(model):
        return task.evaluate(model, ALONE)


def _check_folder(folder: Path, grid: Mapping[str, Sequence[Any]]) -> None:
    if not folder.exists():
        return
    about = folder / "sweep.json"
    if not folder.is_dir() or (not about.exists() and any(path.name != ".lock" for path in folder.iterdir())):
        raise CheckpointError(f"{folder} is not empty and holds no sweep; choose another --out")
    if about.exists() and any(folder.glob("*/recipe.toml")):
        keys = list(json.loads(about.read_text(encoding="utf-8"))["grid"])
        if keys != list(grid):
            raise CheckpointError(
                f"{folder} holds a sweep over {', '.join(keys)}, not over {', '.join(grid)}; give these keys "
                "in this order, or choose another --out"
            )
