"""Resume a run: what must be as it was, what is restored, and what is reported as changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from wordloom.errors import CheckpointError
from wordloom.progress import TrainingProgress
from wordloom.recipe import TrainSettings
from wordloom.training import Trainer
from wordloom.training.checkpoint import environment_changes
from wordloom.training.schedules import learning_rate_share


class Resumed(NamedTuple):
    """The checkpoint that a run continues from: its folder, tensors and plain values."""

    checkpoint: Path
    tensors: Mapping[str, torch.Tensor]
    values: dict[str, Any]


# Facts in a checkpoint that must not change before the run resumes.
_FACTS = {
    "data": "the training text",
    "tokenizer": "the tokenizer",
    "base": "the model that the run starts from",
}


def check_facts(facts: dict[str, Any], saved: dict[str, Any], folder: Path) -> None:
    """Raise CheckpointError if the text, tokenizer or base is not that of the checkpoint."""
    for key, what in _FACTS.items():
        if key in saved and facts.get(key) != saved[key]:
            raise CheckpointError(
                f"{what} is not the one {folder} was trained with; restore it, or choose another --out"
            )


def restore(trainer: Trainer, resumed: Resumed, progress: TrainingProgress) -> None:
    """Load the state of the checkpoint, and report what has changed since it was saved."""
    checkpoint, tensors, values = resumed
    trainer.load_state_dict(tensors, {**values, "total_steps": trainer.total_steps})
    trainer.last_checkpoint = str(checkpoint)
    if (changes := environment_changes(trainer, values["environment"])) is not None:
        progress.say(changes)
    if (changed := _schedule_change(trainer.settings, values, trainer.total_steps)) is not None:
        progress.say(changed)
    progress.say(f"resuming at step {trainer.step:,} of {trainer.total_steps:,} from {checkpoint}")


def _schedule_change(s: TrainSettings, saved: dict[str, Any], total: int) -> str | None:
    """Return a message if a new budget would have changed the learning rate of steps already done."""
    done, before = saved["step"], saved["total_steps"]
    if not done or before == total or s.optimizer == "lbfgs":
        return None
    then = s.model_copy(update={"epochs": saved["recipe"]["train"].get("epochs")})
    had = s.learning_rate * learning_rate_share(done - 1, before, then)
    has = s.learning_rate * learning_rate_share(done - 1, total, s)
    following = s.learning_rate * learning_rate_share(done, total, s)
    if had == has:
        return None
    return (
        f"the schedule '{s.schedule}' now ends at step {total:,}, not {before:,}: step {done:,} had a "
        f"learning rate of {had:.3g}, and the next one has {following:.3g}. A run begun with {total:,} steps "
        "ends with other weights; for these, choose another --out and leave out --resume"
    )
