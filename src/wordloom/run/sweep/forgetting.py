"""Compare finished runs by their score on the new task and by how much they forgot of the old task."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wordloom.errors import EvaluationError, did_you_mean
from wordloom.recipe import Recipe, load_recipe
from wordloom.recipe.training import HIGHER
from wordloom.run.sweep.scores import metric_lines, scores_of
from wordloom.run.tasks.old_task import FILE

#: The remedies against forgetting, in the order in which they are listed.
REMEDIES = (
    "fine-tuning alone",
    "language model of the new texts",
    "language model of old texts",
    "rehearsal",
    "both tasks from scratch",
)


@dataclass(frozen=True, kw_only=True)
class Forgetting:
    """One finished run.

    Attributes:
        folder: the folder of the run.
        remedy: one of REMEDIES.
        label: the setting of the remedy, such as ``10 %``.
        setting: the setting of the remedy as a number.
        tokens: tokens of both tasks that training read.
        before, after: the loss on the old task before and after training.
        metric, score: the name and value of the new task's score on its validation part.
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
    """Return the finished runs with ``[old_task]`` in ``folders``: runs, sweeps, or folders of them.

    ``metric`` names a score of the new task's validation part.  By default it is the first score that all
    runs have and of which a higher value is better, or else the loss.

    Raises EvaluationError for a folder without such runs, for a run without the metric, and for losses on the
    old task that were not measured on the same text in the same way.
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
            old_task = json.loads((run / FILE).read_text(encoding="utf-8"))
            scores = scores_of(lines, recipe.train)
            tokens = max((line.get("tokens", 0) for line in lines), default=0)
            found[run] = recipe, old_task, scores, tokens
    signatures = {run: old_task["signature"] for run, (_, old_task, _, _) in found.items()}
    first, *others = signatures
    for run in others:
        if signatures[run] != signatures[first]:
            raise EvaluationError(
                f"the old losses of {first} and {run} cannot be compared: {signatures[first]} and "
                f"{signatures[run]}; name runs that are measured in the same way"
            )
    shared = (name for name in HIGHER if all(name in scores for _, _, scores, _ in found.values()))
    name = metric or next(shared, "loss")
    labels = _labels({run: recipe for run, (recipe, *_) in found.items()})
    results = []
    for run, (recipe, old_task, scores, tokens) in found.items():
        if name not in scores:
            raise EvaluationError(f"{run} evaluates no {name!r}; {did_you_mean(name, scores)}")
        remedy, setting, _ = _remedy(recipe)
        results.append(
            Forgetting(
                folder=run,
                remedy=remedy,
                label=labels[run],
                setting=setting,
                tokens=tokens,
                before=old_task["before"],
                after=old_task["after"],
                metric=name,
                score=scores[name],
            )
        )
    return sorted(results, key=lambda run: (REMEDIES.index(run.remedy), run.setting, run.label))


def _labels(recipes: dict[Path, Recipe]) -> dict[Path, str]:
    """Return each run's setting of its remedy, with its rate or seed where runs share it."""
    remedies = {run: _remedy(recipe) for run, recipe in recipes.items()}
    named: dict[Path, str] = {}
    for run, recipe in recipes.items():
        remedy, _, label = remedies[run]
        alike = [
            recipes[other] for other, (name, _, same) in remedies.items() if (name, same) == (remedy, label)
        ]
        differences = []
        if any(other.train.learning_rate != recipe.train.learning_rate for other in alike):
            differences.append(_rate(recipe))
        if any(other.seed != recipe.seed for other in alike):
            differences.append(f"seed {recipe.seed}")
        named[run] = ", ".join([label, *differences])
    return named


def _remedy(recipe: Recipe) -> tuple[str, float, str]:
    """Return the remedy of a run, its setting as a number, and the label of the setting."""
    s = recipe.train
    if s.rehearsal_share is not None:
        remedy = REMEDIES[3 if recipe.start_from is not None else 4]
        return remedy, s.rehearsal_share, f"{100 * s.rehearsal_share:.3g} %"
    if s.language_model_weight:
        remedy = REMEDIES[1 if s.language_model_texts == "task" else 2]
        return remedy, s.language_model_weight, f"\N{GREEK SMALL LETTER LAMDA} {s.language_model_weight:g}"
    return REMEDIES[0], s.learning_rate, _rate(recipe)


def _rate(recipe: Recipe) -> str:
    """Return the learning rate as in ``rate 3e-4``."""
    digits, _, power = f"{recipe.train.learning_rate:e}".partition("e")
    return f"rate {float(digits):g}e{int(power)}"
