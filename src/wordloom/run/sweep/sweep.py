"""A grid of runs: each trained once, resumed where it stopped, compared on the validation part."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from wordloom.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    NonFiniteError,
    RecipeError,
    WordloomError,
    did_you_mean,
)
from wordloom.files import write_text
from wordloom.models import config_from
from wordloom.nn.evaluating import evaluating
from wordloom.recipe import Recipe
from wordloom.run.folder import held
from wordloom.run.progress import TrainingProgress
from wordloom.run.sweep.grid import Combination, combinations
from wordloom.run.sweep.scores import (
    OLD_LOSSES,
    Metric,
    SweepGroup,
    SweepRun,
    best_run,
    groups_of,
    left_out,
    read_run,
    unlike,
    write_tables,
)
from wordloom.run.tasks.model_settings import model_settings
from wordloom.run.train import TASKS, train
from wordloom.training.precision import choose_device
from wordloom.training.stopping import sigterm_interrupts
from wordloom.weights import load_config

__all__ = ["SweepResult", "sweep"]


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    """The runs of a grid, in its order, and the ``best`` of those that are done, or None.

    ``groups`` are the runs by all settings but ``median``'s, where one was given; ``stopped``: there is more
    to train, and the same call goes on with it; ``unlike`` says in what the figures were not measured alike,
    where anything is known to differ; ``left_out`` names settings whose figure is not defined.
    """

    folder: Path
    metric: str
    higher: bool
    runs: list[SweepRun]
    groups: list[SweepGroup]
    best: SweepRun | None
    stopped: bool
    unlike: str = ""
    left_out: list[str] = field(default_factory=list)

    def count(self, state: str) -> int:
        """How many runs are in this state."""
        return sum(run.state == state for run in self.runs)

    def as_dict(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "metric": self.metric,
            "direction": _direction(self.higher),
            "runs": [run.as_dict() for run in self.runs],
            "groups": [group.as_dict() for group in self.groups],
            "best": None if self.best is None else self.best.as_dict(),
            "stopped": self.stopped,
            "unlike": self.unlike,
            "left_out": self.left_out,
        }


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
    """Train ``recipe`` with every combination of ``grid``'s values, each into a folder of its own in ``out``
    (``runs/NAME-sweep``), and compare them by ``metric``, a figure of the validation part.

    ``sweep("quickstart", {"train.learning_rate": [1e-3, 3e-3]})`` makes two runs.  A run that is done is not
    trained again, one that was stopped goes on, one whose loss diverged is told as failed.  ``higher`` says
    which way is better for figures that are not known; ``median`` is a key of ``grid``, such as
    ``seed``, over which the median counts.  ``dry_run`` only reads what is there.

    Raises WordloomError for whatever the user can put right, as far as it can be known before any training.
    """
    progress = progress or TrainingProgress()
    found = combinations(recipe, grid, overrides, start_from=start_from, say=progress.say)
    by = _check(found, metric, higher, median)
    name = found[0].recipe.name
    folder = Path(out) if out is not None else Path("runs") / f"{name}-sweep"
    _check_folder(folder, grid)
    plan = _Sweep(folder, found, by, median, progress)
    known = {"loss", *(name for run in plan.runs for name in run.metrics)}
    if all(one.recipe.old_task is not None for one in found):
        known.update(OLD_LOSSES)
    if by.name not in known and (len(known) > 1 or not dry_run):  # or it was not defined in any run so far
        by.check(_evaluated(found[0].recipe))
    if dry_run:
        return plan.result()
    with held(folder, "sweeps"), sigterm_interrupts():
        about = {
            "recipe": name,
            "grid": {key: _distinct([one.settings[key] for one in found]) for key in grid},
            "metric": by.name,
            "direction": _direction(by.higher),
            "median": median,
        }
        write_text(folder / "sweep.json", json.dumps(about, indent=1, ensure_ascii=False, default=str))
        plan.train()
    return plan.result()


class _Sweep:
    """The runs of a sweep as they come to be."""

    def __init__(
        self,
        folder: Path,
        found: list[Combination],
        metric: Metric,
        median: str | None,
        progress: TrainingProgress,
    ) -> None:
        self.folder, self.found, self.metric, self.median = folder, found, metric, median
        self.progress = progress
        self.runs = [read_run(one, folder / one.name) for one in found]

    def result(self) -> SweepResult:
        groups = groups_of(self.runs, self.median, self.metric)
        return SweepResult(
            folder=self.folder,
            metric=self.metric.name,
            higher=self.metric.higher,
            runs=self.runs,
            groups=groups,
            best=best_run(self.runs, groups, self.metric),
            stopped=any(run.state in ("waiting", "stopped") for run in self.runs),
            unlike=unlike(self.runs),
            left_out=left_out(self.runs, groups, self.metric),
        )

    def train(self) -> None:
        """Whatever is not done, until told to stop; the tables are true after each run."""
        threads = torch.get_num_threads()
        mistakes: list[tuple[str, WordloomError]] = []
        self._write()
        self._say_plan()
        for number, one in enumerate(self.found):
            if self.runs[number].state in ("done", "failed"):
                continue
            self.progress.say(f"\nrun {number + 1} of {len(self.found)}: {one.name}")
            torch.set_num_threads(threads)  # which train.threads of the run before may have changed
            try:
                stopped = self._train(one, resume=self.runs[number].state == "stopped")
            except (ConfigError, DataError, RecipeError) as error:  # of this combination alone, or of all
                mistakes.append((one.name, error))
                self.progress.say(f"not trained: {error}")
                continue
            finally:  # also where a mistake ends it
                self.runs[number] = read_run(one, self.folder / one.name)
                self._write()
            if stopped:
                return
            self._say_state(number)
        if mistakes:
            name, first = mistakes[0]
            more = f" ({len(mistakes):,} runs have mistakes)" if len(mistakes) > 1 else ""
            raise type(first)(f"{name}: {first}{more}") from None

    def _train(self, one: Combination, *, resume: bool) -> bool:
        """Whether the run was told to stop."""
        folder = self.folder / one.name
        if "torch._dynamo" in sys.modules:  # its kernels are of the shapes of the runs before
            torch.compiler.reset()
        try:
            return train(one.recipe, out=folder, resume=resume, progress=self.progress).stopped
        except NonFiniteError as error:
            folder.mkdir(parents=True, exist_ok=True)  # the timed steps leave none behind
            write_text(folder / "failed.json", json.dumps({"reason": str(error)}, ensure_ascii=False))
            return False
        finally:
            gc.collect()  # the model, which a trainer and its hooks hold in a circle

    def _write(self) -> None:
        write_tables(self.folder, self.runs, self.result().best)

    def _say_plan(self) -> None:
        states = [run.state for run in self.runs]
        said = ("done", "done"), ("failed", "failed"), ("stopped", "to go on with"), ("waiting", "to train")
        parts = [f"{states.count(state)} {what}" for state, what in said if state in states]
        self.progress.say(
            f"sweep       {len(states)} runs in {self.folder}: {', '.join(parts)}{self._left()}"
        )

    def _say_state(self, number: int) -> None:
        run, best = self.runs[number], self.result().best
        if run.state == "failed":
            self.progress.say(f"failed: {run.reason}")
        else:
            figure = run.metrics.get(self.metric.name)
            self.progress.say(f"{self.metric.name} {'undefined' if figure is None else f'{figure:.4f}'}")
        if best is not None:
            self.progress.say(
                f"best so far {best.metrics[self.metric.name]:.4f}: {best.folder.name}{self._left()}"
            )

    def _left(self) -> str:
        """How long all that is left may take, by the runs that are done."""
        done = [run for run in self.runs if run.state == "done"]
        rest = [run for run in self.runs if run.state in ("waiting", "stopped")]
        if not done or not rest:
            return ""
        rate = sum(run.seconds for run in done) / sum(run.work for run in done)
        seconds = sum(max(0.0, rate * run.work - run.seconds) for run in rest)
        return f"; about {timedelta(seconds=round(seconds))} of training left"


# -- what can be known before anything is trained ----------------------------------------------------------


def _check(found: list[Combination], metric: str, higher: bool | None, median: str | None) -> Metric:
    """The metric; raises WordloomError for what would come up only after hours."""
    for one in found:
        if not one.recipe.data.holds_out:
            raise RecipeError(
                f"{one.name}: nothing is held out to compare runs by; set data.validation or "
                "data.validation_fraction"
            )
        try:
            _check_model(one.recipe)
        except ConfigError as error:
            raise ConfigError(f"{one.name}: {error}") from None
    keys = list(found[0].settings)
    if median is not None and median not in keys:
        raise RecipeError(f"--median {median}: the grid has no such key; {did_you_mean(median, keys)}")
    for start in {one.recipe.start_from for one in found}:
        if start is not None:
            load_config(Path(start))
    return Metric.named(metric, higher)


def _check_model(recipe: Recipe) -> None:
    """Raise ConfigError for a shape that cannot be, where the data decide nothing but the vocabulary."""
    if recipe.train.objective not in ("causal_lm", "truncated_bptt", "masked_lm", "masked_lm+next_sentence"):
        return
    if recipe.model and recipe.start_from is None:
        family, settings = model_settings(recipe)
        config_from(family, **{"vocab_size": 1 << 10, **settings})


def _evaluated(recipe: Recipe) -> Collection[str]:
    """The figures that a run evaluates, as its model that has learnt nothing has them."""
    given = None if recipe.start_from is None else Path(recipe.start_from)
    task = TASKS[recipe.train.objective](recipe, given, TrainingProgress(Console(quiet=True)))
    assert task.evaluate is not None
    model = task.build_model().to(choose_device(recipe.train.device))
    with evaluating(model):
        return task.evaluate(model)


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


def _distinct(values: Sequence[Any]) -> list[Any]:
    return [value for at, value in enumerate(values) if value not in values[:at]]


def _direction(higher: bool) -> str:
    return "higher" if higher else "lower"
