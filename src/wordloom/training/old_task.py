"""Measure the loss on an old task while a new one is trained, and train on both."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import torch

from wordloom.data.batches.mixed import MixedBatch
from wordloom.nn.dropout import samples_of_rows
from wordloom.objectives import Loss, Objective
from wordloom.training.hooks import Log, finished_weights
from wordloom.training.ranks import Ranks
from wordloom.training.trainer import Hook, StepRecord, Trainer, scored_items


def body_of(model: Any) -> Any:
    """Return the model under a task head; a model without a head is its own body."""
    return getattr(model, "body", model)


@dataclass(eq=False)
class WithOldTask:
    """The loss of a :class:`~wordloom.data.batches.mixed.MixedBatch`: L_new + weight * L_old, each a mean.

    Each task reads its own rows.  ``old`` reads the body, without the new task's head.
    """

    new: Objective
    old: Objective
    weight: float = 1.0

    def __call__(self, model: Any, batch: MixedBatch) -> Loss:
        if batch.old is None:
            with samples_of_rows(batch.new_samples):
                return self.new(model, batch.new)
        with samples_of_rows(batch.old_samples):
            old = self.old(body_of(model), batch.old)
        if batch.new is None:
            return old
        with samples_of_rows(batch.new_samples):
            new = self.new(model, batch.new)
        total = torch.cat([new.total.reshape(-1), self.weight * old.total.reshape(1)])
        return Loss(total, torch.cat([new.count.reshape(-1), old.count.reshape(1)]))

    def counts(self, batch: MixedBatch) -> list[int]:
        """Return the number of scored items of each term."""
        new = [] if batch.new is None else scored_items(self.new, batch.new)
        return new if batch.old is None else [*new, *scored_items(self.old, batch.old)]


@dataclass(eq=False)
class OldTaskLoss(Hook):
    """A hook that measures the old task's mean loss, ``function(body, ranks)``, at the start and at the end.

    With ``always``, it also measures at every evaluation of the new task.
    """

    function: Callable[[Any, Ranks], float]
    log: Log
    _: KW_ONLY
    always: bool = False
    signature: str = ""
    losses: dict[int, float] = field(default_factory=dict, init=False)  # by step; step 0 is before the first

    def on_start(self, trainer: Trainer) -> None:
        is_over = trainer.step >= trainer.total_steps and trainer.step not in self.losses  # a smaller budget
        if trainer.step == 0 or is_over:
            self._measure(trainer)

    def after_step(self, trainer: Trainer, record: StepRecord) -> None:
        if trainer.step >= trainer.total_steps or (self.always and "evaluation" in record):
            self._measure(trainer)

    def _measure(self, trainer: Trainer) -> None:
        began = time.perf_counter()
        with finished_weights(trainer) as model, trainer.precision.autocast():
            loss = self.losses[trainer.step] = self.function(body_of(model), trainer.ranks)
        seconds = round(time.perf_counter() - began, 3)
        line = {"kind": "old_task", "step": trainer.step, "loss": loss, "seconds": seconds}
        self.log.write(trainer, {**line, "signature": self.signature})

    def state_dict(self) -> dict[str, Any]:
        return {"losses": {str(step): loss for step, loss in self.losses.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.losses = {int(step): loss for step, loss in state.get("losses", {}).items()}
