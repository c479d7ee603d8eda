"""Read the scores of a sweep's runs from their folders, compare them, and write them as tables."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

from wordloom.errors import CheckpointError, RecipeError, did_you_mean
from wordloom.files import write_text
from wordloom.recipe import Recipe
from wordloom.recipe.data import TokenLabelData
from wordloom.recipe.training import HIGHER, LOWER, TrainSettings
from wordloom.run.folder import RunFolder, refuse_changes
from wordloom.run.sweep.grid import Combination
from wordloom.training.checkpoint import checkpoint_steps
from wordloom.weights.configs import ADAPTER_CONFIG
from wordloom.weights.integrity import read_values

# Objectives that score whole texts.
_TEXT_OBJECTIVES = (
    "classification", "regression", "cosine_similarity", "multiple_choice", "token_classification",
    "question_answering",
)  # fmt: skip
#: The losses on the old task, before the first step and after the last.
OLD_LOSSES = ("old_loss_before", "old_loss")


@dataclass(frozen=True)
class Metric:
    """The validation score that runs are compared by; ``higher`` says whether a higher value is better."""

    name: str
    higher: bool

    @classmethod
    def named(cls, name: str, higher: bool | None) -> Metric:
        """Return the metric called ``name``; ``higher`` None takes the known direction of the metric.

        Raises RecipeError where the direction is unknown, or where ``higher`` contradicts it.
        """
        if higher is None:
            if name not in (*LOWER, *HIGHER):
                raise RecipeError(
                    f"whether a higher {name!r} is better is not known: add --maximize or --minimize; or "
                    f"{did_you_mean(name, (*LOWER, *HIGHER))}"
                )
            higher = name in HIGHER
        elif name in (*LOWER, *HIGHER) and higher != (name in HIGHER):
            better, option = ("higher", "--minimize") if name in HIGHER else ("lower", "--maximize")
            raise RecipeError(f"a {better} {name} is better; leave out {option}")
        return cls(name, higher)

    @property
    def direction(self) -> str:
        """The better direction, "higher" or "lower"."""
        return "higher" if self.higher else "lower"

    def check(self, scores: Collection[str]) -> None:
        """Raise RecipeError if an evaluation with these ``scores`` does not have the metric."""
        if self.name not in scores:
            raise RecipeError(
                f"these runs evaluate no {self.name!r} on their validation part; --metric takes "
                f"{', '.join(scores) or 'none: nothing is held out'}"
            )

    def cost(self, value: float | None) -> float:
        """Return a number that is smallest for the best value, and infinite for an undefined one."""
        if value is None or not math.isfinite(value):
            return math.inf
        return -value if self.higher else value


@dataclass(frozen=True, kw_only=True)
class SweepRun:
    """One run of a sweep: its settings, folder, progress and validation scores.

    ``state`` is "waiting", "stopped" (can be resumed), "failed" (``reason`` says why) or "done".
    ``seconds`` is the time of training and evaluation.
    """

    settings: dict[str, Any]
    folder: Path
    state: Literal["waiting", "stopped", "failed", "done"]
    metrics: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    seconds: float = 0.0
    reason: str = ""
    signature: str = ""  # how the scores were measured, where that can differ between runs
    work: float = 0.0  # the amount of work of the complete run, in the unit of its kind of budget

    def as_dict(self) -> dict[str, Any]:
        return {
            "settings": self.settings,
            "folder": self.folder.name,
            "state": self.state,
            "metrics": self.metrics,
            "steps": self.steps,
            "seconds": round(self.seconds, 1),
            **({"signature": self.signature} if self.signature else {}),
            **({"reason": self.reason} if self.reason else {}),
        }


@dataclass(frozen=True, kw_only=True)
class SweepGroup:
    """Runs that differ in one key only, such as the seed, with the median and range of their scores.

    ``median``, ``low`` and ``high`` are None until all ``runs`` are done, and if the score of a run is
    undefined.  ``undefined`` counts the finished runs with an undefined score.
    """

    settings: dict[str, Any]
    runs: list[SweepRun]
    median: float | None
    low: float | None
    high: float | None
    undefined: int

    @property
    def done(self) -> int:
        return sum(run.state == "done" for run in self.runs)

    def as_dict(self) -> dict[str, Any]:
        return {
            "settings": self.settings,
            "runs": len(self.runs),
            "done": self.done,
            "median": self.median,
            "low": self.low,
            "high": self.high,
            "undefined": self.undefined,
        }


def read_run(combination: Combination, folder: Path) -> SweepRun:
    """Return the state and scores of the run in ``folder``; raise RecipeError for another recipe."""
    recipe = combination.recipe
    failure = folder / "failed.json"
    reason = _reason(failure) if failure.exists() else ""
    run = SweepRun(
        settings=combination.settings,
        folder=folder,
        state="failed" if reason else "waiting",
        reason=reason,
        work=_work(recipe),
    )
    if not (folder / "recipe.toml").exists():  # a run can fail in its first, timed steps
        return run
    saved = RunFolder(folder, resume=True, force=False).saved_recipe(Recipe)
    try:
        refuse_changes(recipe, saved, free=())
    except RecipeError as error:
        raise RecipeError(f"{folder}: {error}, or remove this folder") from None
    lines = metric_lines(folder / "metrics.jsonl")
    steps = checkpoint_steps(folder)
    state: Literal["stopped", "failed", "done"] = "stopped"
    finished = any((folder / name).exists() for name in ("config.json", ADAPTER_CONFIG))
    if finished and (not steps or _ended(folder, steps[-1])):
        state, reason = "done", ""
    elif reason:
        state = "failed"
    return replace(
        run,
        state=state,
        metrics=scores_of(lines, recipe.train),
        signature=_signature(lines, recipe),
        steps=max((line["step"] for line in lines), default=0),
        seconds=sum(line.get("seconds", 0.0) for line in lines),
        reason=reason,
    )


def _reason(failure: Path) -> str:
    """Return why a run failed; raises CheckpointError for a damaged file."""
    try:
        return str(json.loads(failure.read_text(encoding="utf-8"))["reason"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"cannot read {failure}: {error}; remove {failure.parent}, and the same command trains it again"
        ) from None


def _ended(folder: Path, step: int) -> bool:
    """Return whether the checkpoint of ``step`` is the last one of its run."""
    try:
        return bool(step >= read_values(folder / "checkpoints" / f"step-{step}")["total_steps"])
    except CheckpointError:
        return False  # resuming the run reports what is wrong


def metric_lines(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of ``metrics.jsonl``; a killed run may have left a broken last line."""
    found = []
    if path.exists():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                break
    return found


def scores_of(lines: Sequence[dict[str, Any]], train: TrainSettings) -> dict[str, float]:
    """Return the scores of the weights that the folder holds: those of the last or of the best evaluation.

    A run with an old task also has its loss on that task, before the first step and with these weights.
    """
    kept = _kept_evaluation(lines, train)
    scores = {
        key: value
        for key, value in kept.items()
        if isinstance(value, int | float) and key not in ("step", "seconds")
    }
    if not kept:
        return scores
    old = {line["step"]: line["loss"] for line in lines if line["kind"] == "old_task"}
    for name, step in zip(OLD_LOSSES, (0, kept["step"]), strict=True):
        if step in old:
            scores[name] = old[step]
    return scores


def _kept_evaluation(lines: Sequence[dict[str, Any]], train: TrainSettings) -> dict[str, Any]:
    """Return the evaluation of the weights that the folder holds, or an empty dict without one."""
    evaluations = [line for line in lines if line["kind"] == "evaluate"]
    metric = Metric.named(train.best_metric, None)
    if train.keep_best and any(metric.name in line for line in evaluations):
        return min(evaluations, key=lambda line: metric.cost(line.get(metric.name)))
    return evaluations[-1] if evaluations else {}


def _signature(lines: Sequence[dict[str, Any]], recipe: Recipe) -> str:
    """Return how the kept scores were measured; for scores of whole texts, the rows alone count."""
    train = recipe.train
    signature = str(_kept_evaluation(lines, train).get("signature", ""))
    truncated = isinstance(recipe.data, TokenLabelData) and recipe.data.too_long == "cut"
    if train.objective not in _TEXT_OBJECTIVES or truncated:
        return signature
    name, *parts = signature.split("|")
    return "|".join([name, *(part for part in parts if part.startswith("text:"))])


def _work(recipe: Recipe) -> float:
    """Return the amount of work of a run, in a unit that is equal for runs with the same kind of budget."""
    s = recipe.train
    if s.steps is not None:
        return float(s.steps * (1 if s.optimizer == "lbfgs" else s.batch_size * s.seq_len))
    return float(s.tokens or s.epochs or s.flops or s.minutes or 1)


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    """The runs of a grid in its order, compared by the metric ``by``.

    The runs are grouped by all settings except ``median``; there are no groups if ``median`` is None.
    """

    folder: Path
    by: Metric
    median: str | None
    runs: list[SweepRun]

    @property
    def metric(self) -> str:
        """The name of the metric."""
        return self.by.name

    @property
    def done(self) -> list[SweepRun]:
        """The finished runs."""
        return [run for run in self.runs if run.state == "done"]

    @property
    def stopped(self) -> bool:
        """True if some runs are not finished; an equal call continues them."""
        return any(run.state in ("waiting", "stopped") for run in self.runs)

    @property
    def groups(self) -> list[SweepGroup]:
        """The groups of runs, in the order of their first runs."""
        if self.median is None:
            return []
        members: dict[str, list[SweepRun]] = {}
        for run in self.runs:
            shared = {key: value for key, value in run.settings.items() if key != self.median}
            members.setdefault(json.dumps(shared, default=str), []).append(run)
        return [_group(group, self.median, self.metric) for group in members.values()]

    @property
    def best(self) -> SweepRun | None:
        """The run with the best score; of equal scores, the one with the smaller budget, then the first.

        With groups, the group with the best median wins, and of its runs the one nearest to the median.
        """
        cost = self.by.cost
        if self.median is None:
            scored = [run for run in self.done if math.isfinite(cost(run.metrics.get(self.metric)))]
            return min(scored, key=lambda run: (cost(run.metrics[self.metric]), run.work), default=None)
        complete = [group for group in self.groups if math.isfinite(cost(group.median))]
        if not complete:
            return None
        best = min(complete, key=lambda group: (cost(group.median), group.runs[0].work))
        middle = best.median
        assert middle is not None
        return min(best.runs, key=lambda run: abs(run.metrics[self.metric] - middle))

    @property
    def undefined(self) -> list[str]:
        """A line for each setting whose score is undefined, so that it cannot be the best."""
        if self.median is not None:
            return [
                f"{_named(group.settings)}: {self.metric} is undefined in {group.undefined} of "
                f"{len(group.runs)} runs, which leaves no median"
                for group in self.groups
                if group.undefined
            ]
        return [
            f"{run.folder.name}: {self.metric} is undefined"
            for run in self.done
            if not math.isfinite(self.by.cost(run.metrics.get(self.metric)))
        ]

    @property
    def measured_differently(self) -> str:
        """How the measurements of the finished runs differ, such as ``window: 64, 128``, or ""."""
        parts: dict[str, list[str]] = {}
        for part in (part for run in self.done for part in run.signature.split("|")[1:]):
            name, _, value = part.partition(":")
            if value not in parts.setdefault(name, []):
                parts[name].append(value)
        different = {name: values for name, values in parts.items() if len(values) > 1}
        return "; ".join(f"{name}: {', '.join(values)}" for name, values in different.items())

    def count(self, state: str) -> int:
        """Return how many runs are in ``state``."""
        return sum(run.state == state for run in self.runs)

    def as_dict(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "metric": self.metric,
            "direction": self.by.direction,
            "runs": [run.as_dict() for run in self.runs],
            "groups": [group.as_dict() for group in self.groups],
            "best": None if self.best is None else self.best.as_dict(),
            "stopped": self.stopped,
            "measured_differently": self.measured_differently,
            "undefined": self.undefined,
        }

    def write_tables(self) -> None:
        """Write ``table.tsv`` and ``table.jsonl`` with a line for each run, atomically."""
        best = self.best
        rows = [{**run.as_dict(), "best": run is best} for run in self.runs]
        lines = (json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
        write_text(self.folder / "table.jsonl", "".join(lines))
        names = list(dict.fromkeys(name for run in self.runs for name in run.metrics))
        header = [*self.runs[0].settings, "state", *names, "steps", "seconds", "best", "folder"]
        cells = (
            [
                *(json.dumps(value, default=str).strip('"') for value in run.settings.values()),
                run.state,
                *(f"{run.metrics[name]:.6g}" if name in run.metrics else "" for name in names),
                *(str(run.steps), f"{run.seconds:.1f}", "best" if run is best else "", run.folder.name),
            ]
            for run in self.runs
        )
        write_text(self.folder / "table.tsv", "".join("\t".join(row) + "\n" for row in [header, *cells]))


def _group(runs: list[SweepRun], over: str, metric: str) -> SweepGroup:
    values = [run.metrics.get(metric) for run in runs if run.state == "done"]
    known = sorted(value for value in values if value is not None and math.isfinite(value))
    complete = len(known) == len(runs)
    return SweepGroup(
        settings={key: value for key, value in runs[0].settings.items() if key != over},
        runs=runs,
        median=median(known) if complete else None,
        low=known[0] if complete else None,
        high=known[-1] if complete else None,
        undefined=len(values) - len(known),
    )


def _named(settings: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in settings.items()) or "all runs"
