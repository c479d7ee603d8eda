"""The parts of a training run that depend on its task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wordloom.evaluate import evaluate_batches
from wordloom.objectives import Objective
from wordloom.recipe import TrainSettings
from wordloom.text import Tokenizer
from wordloom.training.plan import Costs, Plan
from wordloom.training.ranks import Ranks
from wordloom.training.trainer import Batches, Trainer
from wordloom.weights import load_model

Span = tuple[int, int]


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
        evaluate: returns the metrics of a model on the validation part, ``loss`` among them; an undefined
            metric is NaN. All ranks call it, and may divide the part. None if nothing is held out.
        scored: the settings that decide the metrics, for their signature.
        objective: the objective; None: the one that the recipe names.
        sample: returns a text that the model writes; None for a model that writes none.
        save: writes a model and its tokenizer into a folder, as :func:`wordloom.weights.save_model` does.
        tokenizer, generation, files: the tokenizer, the settings of generation_config.json and further files
            in the folder of an adapter; without them, those of its base are used.
        load: reads a checkpoint of the run, to finish with it.
    """

    settings: TrainSettings
    batches: Batches
    fingerprints: dict[str, str]
    ledger: str
    build_model: Callable[[], Any]
    set_up: Callable[[Trainer], str]
    evaluate: Callable[[Any, Ranks], dict[str, float]] | None
    save: Callable[..., None]
    scored: dict[str, object] = field(default_factory=dict)
    objective: Objective | None = None
    sample: Callable[[Any], str] | None = None
    costs: Costs | None = None
    timed: bool = True
    tokenizer: Tokenizer | None = None
    generation: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    load: Callable[[Path], Any] = load_model


@dataclass(frozen=True)
class Windows:
    """The first ``count`` samples of a validation part, read ``rows`` at a time."""

    part: Any
    count: int
    rows: int

    @classmethod
    def of(cls, part: Any, most: int | None, s: TrainSettings) -> Windows:
        """Return ``most`` samples of ``part``, or all of them, in batches of the size of a forward pass."""
        available = part.samples_per_epoch
        return cls(part, min(available, most or available), s.micro_batch_size or s.batch_size)

    def spans(self) -> list[Span]:
        """Return the first sample and the number of samples of each batch."""
        return [(start, min(self.rows, self.count - start)) for start in range(0, self.count, self.rows)]

    def batches(self) -> Iterator[Any]:
        """Return the batches, in order."""
        return (self.part.batch(*span) for span in self.spans())


def mean_loss(model: Any, objective: Objective, part: Any, spans: Sequence[Span], ranks: Ranks) -> float:
    """Return the mean loss over batches of ``part``, in which something is scored; ranks divide them.

    A span is the first sample of a batch and their number.
    """
    own, others = ranks.divided(spans)
    score = evaluate_batches(
        model,
        objective,
        (part.batch(*span) for span in own),
        unscored=(part.batch(*span) for span in others),
        reduce=ranks.summed,
    )
    assert score.value is not None
    return score.value


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
