"""Finished runs beside one another: what each has learnt, and what it has forgotten of the old task."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wordloom.errors import EvaluationError, did_you_mean
from wordloom.recipe import Recipe, load_recipe
from wordloom.recipe.training import HIGHER
from wordloom.run.sweep.scores import figures_of, metric_lines
from wordloom.run.tasks.old_task import FILE

__all__ = ["REMEDIES", "Forgetting", "forgetting_of"]

#: What is done against forgetting, in the order in which they are told.
REMEDIES = (
    "fine-tuning alone",
    "language model of the new texts",
    "language model of old texts",
    "rehearsal",
    "both tasks from scratch",
)


@dataclass(frozen=True, kw_only=True)
class Forgetting:
    """One run.

    Attributes:
        folder: where it is.
        remedy: of REMEDIES.
        label: its setting, such as ``10 %``.
        setting: the same as a number.
        tokens: that were read in training, of both tasks.
        before, after: the old task's loss.
        metric, score: the new task's figure on its validation part.
    """

    folder: Path
    remedy: str
    label: str
    setting: float
    tokens: int
    before: float
    after: float
    metric: str
    score: float

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "folder": str(self.folder)}


def forgetting_of(folders: Sequence[str | Path], metric: str | None = None) -> list[Forgetting]:
    """The finished runs with ``[old_task]`` in ``folders``: runs, sweeps, or folders of them.

    ``metric`` is a figure of the new task's validation part; None: accuracy, or what the runs have of its
    kind, else the loss.

    Raises EvaluationError where there are none, where one has no such figure, and where their old losses are
    not of the same text, read in the same way.
    """
    found: dict[Path, tuple[Recipe, dict[str, Any], dict[str, float], int]] = {}
    for folder in map(Path, folders):
        files = sorted(folder.rglob(FILE))
        if not files:
            raise EvaluationError(
                f"{folder} holds no finished run whose recipe has [old_task]; train one, or name another "
                "folder"
            )
        for run in (file.parent for file in files):
            recipe = load_recipe(run / "recipe.toml")
            lines = metric_lines(run / "metrics.jsonl")
            told = json.loads((run / FILE).read_text(encoding="utf-8"))
            figures = figures_of(lines, recipe.train)
            tokens = max((line.get("tokens", 0) for line in lines), default=0)
            found[run] = recipe, told, figures, tokens
    _check_alike({run: told["signature"] for run, (_, told, _, _) in found.items()})
    name = metric or _usual([figures for _, _, figures, _ in found.values()])
    labels = _labels({run: recipe for run, (recipe, *_) in found.items()})
    made = []
    for run, (recipe, told, figures, tokens) in found.items():
        if name not in figures:
            raise EvaluationError(f"{run} evaluates no {name!r}; {did_you_mean(name, figures)}")
        made.append(
            Forgetting(
                folder=run,
                remedy=_remedy(recipe),
                label=labels[run],
                setting=_setting(recipe)[0],
                tokens=tokens,
                before=told["before"],
                after=told["after"],
                metric=name,
                score=figures[name],
            )
        )
    return sorted(made, key=lambda one: (REMEDIES.index(one.remedy), one.setting, one.label))


def _check_alike(signatures: dict[Path, str]) -> None:
    """Raise EvaluationError for losses that do not compare."""
    first, *rest = signatures
    for run in rest:
        if signatures[run] != signatures[first]:
            raise EvaluationError(
                f"the old losses of {first} and {run} do not compare: {signatures[first]} and "
                f"{signatures[run]}; name runs that are measured alike"
            )


def _usual(figures: Sequence[dict[str, float]]) -> str:
    return next((name for name in HIGHER if all(name in each for each in figures)), "loss")


def _remedy(recipe: Recipe) -> str:
    s = recipe.train
    if s.rehearsal_share is not None:
        return REMEDIES[3 if recipe.start_from is not None else 4]
    if s.language_model_weight:
        return REMEDIES[1 if s.language_model_texts == "task" else 2]
    return REMEDIES[0]


def _labels(recipes: dict[Path, Recipe]) -> dict[Path, str]:
    """What each run has set of its remedy, and what else tells it from runs with the same."""
    own = {run: _setting(recipe)[1] for run, recipe in recipes.items()}
    named: dict[Path, str] = {}
    for run, recipe in recipes.items():
        alike = [
            other
            for at, other in recipes.items()
            if at != run and own[at] == own[run] and _remedy(other) == _remedy(recipe)
        ]
        more = []
        if any(other.train.learning_rate != recipe.train.learning_rate for other in alike):
            more.append(_rate(recipe))
        if any(other.seed != recipe.seed for other in alike):
            more.append(f"seed {recipe.seed}")
        named[run] = ", ".join([own[run], *more])
    return named


def _setting(recipe: Recipe) -> tuple[float, str]:
    s = recipe.train
    if s.rehearsal_share is not None:
        return s.rehearsal_share, f"{100 * s.rehearsal_share:.3g} %"
    if s.language_model_weight:
        return s.language_model_weight, f"\N{GREEK SMALL LETTER LAMDA} {s.language_model_weight:g}"
    return s.learning_rate, _rate(recipe)


def _rate(recipe: Recipe) -> str:
    """As ``rate 3e-4``."""
    digits, _, power = f"{recipe.train.learning_rate:e}".partition("e")
    return f"rate {float(digits):g}e{int(power)}"
