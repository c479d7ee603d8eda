"""The parts of a training run that depend on its task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wordloom.objectives import Objective
from wordloom.recipe import TrainSettings
from wordloom.training.plan import Costs
from wordloom.training.trainer import Batches, Trainer

__all__ = ["Task"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """The parts of a training run that depend on its task.

    Attributes:
        settings: the recipe's settings, with those that the task decides.
        batches: the training batches.
        fingerprints: those of ``data`` and ``tokenizer``; a run resumes only with equal ones.
        ledger: the report on the data, as JSON.
        build_model: returns the model, new or from the checkpoint that the run starts from.
        set_up: changes the model on its device, such as by compiling it; returns a few words on what runs.
        costs: the costs for the plan; None: those of a causal language model.
        timed: whether steps are timed for the plan, whatever the budget.
        evaluate: returns the metrics on the validation part, ``loss`` among them; an undefined metric is NaN.
            None if nothing is held out.
        scored: the settings that decide the metrics, for their signature.
        objective: the objective; None: the one that the recipe names.
        sample: returns a text that the model writes; None for a model that writes none.
        save: writes a model and its tokenizer into a folder; the third argument is overwrite.
    """

    settings: TrainSettings
    batches: Batches
    fingerprints: dict[str, str]
    ledger: str
    build_model: Callable[[], Any]
    set_up: Callable[[Trainer], str]
    evaluate: Callable[[Any], dict[str, float]] | None
    save: Callable[[Any, Path, bool], None]
    scored: dict[str, object] = field(default_factory=dict)
    objective: Objective | None = None
    sample: Callable[[Any], str] | None = None
    costs: Costs | None = None
    timed: bool = True
