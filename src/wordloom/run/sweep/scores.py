"""What the runs of a sweep have come to: read from their folders, compared, written as tables."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

from wordloom.errors import RecipeError, did_you_mean
from wordloom.files import write_text
from wordloom.recipe import Recipe
from wordloom.recipe.data import TokenLabelData
from wordloom.recipe.training import HIGHER, LOWER, TrainSettings
from wordloom.run.folder import RunFolder, refuse_changes
from wordloom.run.sweep.grid import Combination
from wordloom.training.checkpoint import checkpoint_steps

__all__ = [
    "OLD_LOSSES",
    "Metric",
    "SweepGroup",
    "SweepRun",
    "best_run",
    "figures_of",
    "groups_of",
    "left_out",
    "metric_lines",
    "read_run",
    "unlike",
    "work",
    "write_tables",
]


# Objectives whose figures are of whole texts.
_OF_TEXTS = (
    "classification",
    "regression",
    "cosine_similarity",
    "multiple_choice",
    "token_classification",
    "question_answering",
)
#: Of the old task, before the first step and after the last.
OLD_LOSSES = ("old_loss_before", "old_loss")


@dataclass(frozen=True)
class Metric:
    """By which figure of the validation part runs are compared; ``higher`` is better, or lower."""

    name: str
    higher: bool

    @classmethod
    def named(cls, name: str, higher: bool | None) -> Metric:
        """Known figures have their direction; raises RecipeError where it is not known, or another given."""
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

    def check(self, figures: Collection[str]) -> None:
        """Raise RecipeError where an evaluation has no such figure."""
        if self.name not in figures:
            raise RecipeError(
                f"these runs evaluate no {self.name!r} on their validation part; --metric takes "
                f"{', '.join(figures) or 'none: nothing is held out'}"
            )

    def cost(self, value: float | None) -> float:
        """What the best has least of."""
        if value is None or not math.isfinite(value):
            return math.inf
        return -value if self.higher else value


@dataclass(frozen=True, kw_only=True)
class SweepRun:
    """One combination: its settings, where it is, how far it came, and its figures of the validation part.

    ``state`` is "waiting", "stopped" (to be gone on with), "failed" (``reason`` says why) or "done";
    ``seconds`` are of training and evaluation.
    """

    settings: dict[str, Any]
    folder: Path
    state: Literal["waiting", "stopped", "failed", "done"]
    metrics: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    seconds: float = 0.0
    reason: str = ""
    signature: str = ""  # of how its figures were measured, where that may differ between runs
    work: float = 0.0  # of the whole run, to compare with that of others

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
    """Runs that differ in one key alone, such as their seed: the median of their figures and its range.

    ``median``, ``low`` and ``high`` are None until all ``runs`` are done, and where the figure is not defined
    in one of them; ``undefined`` counts these.
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
    """What ``folder`` says of its run; raises RecipeError where that is of another recipe."""
    recipe = combination.recipe
    reason = _failure(folder)
    if not (folder / "recipe.toml").exists():  # it may have failed in its first, timed steps
        return SweepRun(
            settings=combination.settings,
            folder=folder,
            state="failed" if reason else "waiting",
            reason=reason,
            work=work(recipe),
        )
    saved = RunFolder(folder, resume=True, force=False).saved_recipe(Recipe)
    try:
        refuse_changes(recipe, saved, free=())
    except RecipeError as error:
        raise RecipeError(f"{folder}: {error}, or remove this folder") from None
    lines = metric_lines(folder / "metrics.jsonl")
    steps = checkpoint_steps(folder)
    state: Literal["stopped", "failed", "done"] = "stopped"
    if (folder / "config.json").exists() and (not steps or _ended(folder, steps[-1])):
        state, reason = "done", ""
    elif reason:
        state = "failed"
    return SweepRun(
        settings=combination.settings,
        folder=folder,
        state=state,
        metrics=figures_of(lines, recipe.train),
        signature=_signature(lines, recipe),
        steps=max((line["step"] for line in lines), default=0),
        seconds=sum(line.get("seconds", 0.0) for line in lines),
        reason=reason,
        work=work(recipe),
    )


def _failure(folder: Path) -> str:
    """Why the run in ``folder`` failed; empty where it did not."""
    path = folder / "failed.json"
    return str(json.loads(path.read_text(encoding="utf-8"))["reason"]) if path.exists() else ""


def _ended(folder: Path, step: int) -> bool:
    """Whether nothing is left to do after the checkpoint of ``step``: checkpoints may be removed then."""
    try:
        path = folder / "checkpoints" / f"step-{step}" / "trainer" / "state.json"
        return bool(step >= json.loads(path.read_text(encoding="utf-8"))["total_steps"])
    except (OSError, ValueError, KeyError, TypeError):
        return False  # what is wrong is said by the run that goes on with it


def metric_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of ``metrics.jsonl``: a kill may have broken the last one."""
    found = []
    if path.exists():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                break
    return found


def figures_of(lines: Sequence[dict[str, Any]], train: TrainSettings) -> dict[str, float]:
    """Those of the weights that the folder holds: the last evaluation's, or the best one's where ``train``
    keeps that; of a run with an old task also its loss then, and before the first step."""
    kept = _kept(lines, train)
    figures = {
        key: value
        for key, value in kept.items()
        if isinstance(value, int | float) and key not in ("step", "seconds")
    }
    if not kept:
        return figures
    old = {line["step"]: line["loss"] for line in lines if line["kind"] == "old_task"}
    for name, step in zip(OLD_LOSSES, (0, kept["step"]), strict=True):
        if step in old:
            figures[name] = old[step]
    return figures


def _kept(lines: Sequence[dict[str, Any]], train: TrainSettings) -> dict[str, Any]:
    """The evaluation of the weights that the folder holds; empty where there was none."""
    evaluations = [line for line in lines if line["kind"] == "evaluate"]
    by = Metric.named(train.best_metric, None)
    if train.keep_best and any(by.name in line for line in evaluations):
        return min(evaluations, key=lambda line: by.cost(line.get(by.name)))
    return evaluations[-1] if evaluations else {}


def _signature(lines: Sequence[dict[str, Any]], recipe: Recipe) -> str:
    """How the figures of the weights that the folder holds were measured: those of tokens, among a batch or
    of the words before a cut as settings of training decide; those of whole texts are of these, whatever
    reads them, and differ by the rows alone."""
    train = recipe.train
    signature = str(_kept(lines, train).get("signature", ""))
    cut = isinstance(recipe.data, TokenLabelData) and recipe.data.too_long == "cut"
    if train.objective not in _OF_TEXTS or cut:
        return signature
    name, *parts = signature.split("|")
    return "|".join([name, *(part for part in parts if part.startswith("text:"))])


def unlike(runs: Sequence[SweepRun]) -> str:
    """In what the figures of the runs that are done were not measured alike, such as ``window: 64, 128``;
    empty where nothing is known to differ."""
    parts: dict[str, list[str]] = {}
    signed = [run.signature for run in runs if run.state == "done" and run.signature]
    for signature in signed:
        for part in signature.split("|")[1:]:
            name, _, value = part.partition(":")
            if value not in parts.setdefault(name, []):
                parts[name].append(value)
    different = {name: values for name, values in parts.items() if len(values) > 1}
    return "; ".join(f"{name}: {', '.join(values)}" for name, values in different.items())


def work(recipe: Recipe) -> float:
    """How much a run does, in a unit that runs with a budget of the same kind share."""
    s = recipe.train
    if s.steps is not None:
        return float(s.steps * (1 if s.optimizer == "lbfgs" else s.batch_size * s.seq_len))
    return float(s.tokens or s.epochs or s.flops or s.minutes or 1)


def best_run(runs: Sequence[SweepRun], groups: Sequence[SweepGroup], metric: Metric) -> SweepRun | None:
    """The run with the best figure, of equal ones the one with the smaller budget, then the earlier; of
    ``groups`` the one with the best median, and in it the run that is nearest to the median."""
    if groups:
        complete = [group for group in groups if math.isfinite(metric.cost(group.median))]
        if not complete:
            return None
        chosen = min(complete, key=lambda group: (metric.cost(group.median), group.runs[0].work))
        middle = chosen.median
        assert middle is not None
        return min(chosen.runs, key=lambda run: abs(run.metrics[metric.name] - middle))
    scored = [run for run in runs if run.state == "done"]
    scored = [run for run in scored if math.isfinite(metric.cost(run.metrics.get(metric.name)))]
    return min(scored, key=lambda run: (metric.cost(run.metrics[metric.name]), run.work), default=None)


def groups_of(runs: Sequence[SweepRun], over: str | None, metric: Metric) -> list[SweepGroup]:
    """The runs by all their settings but ``over``; none where that is None."""
    if over is None:
        return []
    together: dict[str, list[SweepRun]] = {}
    for run in runs:
        rest = {key: value for key, value in run.settings.items() if key != over}
        together.setdefault(json.dumps(rest, default=str), []).append(run)
    return [_group(members, over, metric) for members in together.values()]


def _group(runs: list[SweepRun], over: str, metric: Metric) -> SweepGroup:
    values = [run.metrics.get(metric.name) for run in runs if run.state == "done"]
    known = sorted(value for value in values if value is not None and math.isfinite(value))
    whole = len(known) == len(runs)
    return SweepGroup(
        settings={key: value for key, value in runs[0].settings.items() if key != over},
        runs=runs,
        median=median(known) if whole else None,
        low=known[0] if whole else None,
        high=known[-1] if whole else None,
        undefined=len(values) - len(known),
    )


def left_out(runs: Sequence[SweepRun], groups: Sequence[SweepGroup], metric: Metric) -> list[str]:
    """A line for each setting that cannot be the best since its figure, or that of one of its runs, is not
    defined, such as the correlation with what is always the same."""
    if groups:
        return [
            f"{_named(group.settings)}: {metric.name} is undefined in {group.undefined} of "
            f"{len(group.runs)} runs, which leaves no median"
            for group in groups
            if group.undefined
        ]
    done = (run for run in runs if run.state == "done")
    return [
        f"{run.folder.name}: {metric.name} is undefined"
        for run in done
        if not math.isfinite(metric.cost(run.metrics.get(metric.name)))
    ]


def _named(settings: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in settings.items()) or "all runs"


def write_tables(folder: Path, runs: Sequence[SweepRun], best: SweepRun | None) -> None:
    """``table.tsv`` and ``table.jsonl``, a line for each run; each is replaced whole."""
    rows = [{**run.as_dict(), "best": run is best} for run in runs]
    lines = (json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
    write_text(folder / "table.jsonl", "".join(lines))
    names = list(dict.fromkeys(name for run in runs for name in run.metrics))
    header = [*runs[0].settings, "state", *names, "steps", "seconds", "best", "folder"]
    table = [header]
    for run in runs:
        table.append(
            [
                *(json.dumps(value, default=str).strip('"') for value in run.settings.values()),
                run.state,
                *(f"{run.metrics[name]:.6g}" if name in run.metrics else "" for name in names),
                *(str(run.steps), f"{run.seconds:.1f}", "best" if run is best else "", run.folder.name),
            ]
        )
    write_text(folder / "table.tsv", "".join("\t".join(row) + "\n" for row in table))
