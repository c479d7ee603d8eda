"""What one kind of task brings to a training run; the run itself is the same for all."""

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
    """The parts of a run that depend on what is learnt.

    Attributes:
        settings: the recipe's, with what the task itself settles.
        batches: what is trained on.
        fingerprints: of ``data`` and ``tokenizer``; a run resumes with these alone.
        ledger: JSON of what became of the data.
        build_model: the model, fresh or from the checkpoint given.
        settle: surgery on the model where it will run; says in a few words what runs.
        costs: for the plan; None: a causal language model's.
        timed: whether steps are timed for the plan, whatever the budget.
        evaluate: figures of the validation part, ``loss`` among them, NaN for one that is not defined there;
            None where nothing is held out.
        scored: the settings that decide those figures, for their signature.
        objective: what is learnt, where that is not the one of the recipe's name with its settings alone.
        sample: a text that the model writes; None for a model that writes none.
        save: writes a model and what reads its inputs into a folder; the third argument is overwrite.
    """

    settings: TrainSettings
    batches: Batches
    fingerprints: dict[str, str]
    ledger: str
    build_model: Callable[[], Any]
    settle: Callable[[Trainer], str]
    evaluate: Callable[[Any], dict[str, float]] | None
    save: Callable[[Any, Path, bool], None]
    scored: dict[str, object] = field(default_factory=dict)
    objective: Objective | None = None
    sample: Callable[[Any], str] | None = None
    costs: Costs | None = None
    timed: bool = True
