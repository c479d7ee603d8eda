"""Models with a head for a task, from their folders: what answers, scores, chooses and tags."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from wordloom.errors import CheckpointError
from wordloom.models import TaskConfig
from wordloom.run.answering import Answerer
from wordloom.run.choosing import Chooser
from wordloom.run.dtypes import choose_dtype
from wordloom.run.known_vocabulary import check_vocabulary
from wordloom.run.regression import TextScorer
from wordloom.run.tagging import Tagger
from wordloom.text import Tokenizer
from wordloom.training.precision import choose_device
from wordloom.weights import load_config, load_model

__all__ = ["is_headed", "load_headed", "task_in"]

# By task, what makes its object of (folder, model, tokenizer); a classifier is wordloom.run.TextClassifier.
_MADE: dict[str, Callable[[Path, Any, Tokenizer], Any]] = {
    "regression": TextScorer.of,
    "multiple_choice": Chooser.of,
    "token_classification": Tagger.of,
    "question_answering": Answerer.of,
}


def task_in(folder: str | Path) -> str | None:
    """The task of the head in ``folder``; None for a model without one.  Raises CheckpointError as
    :func:`wordloom.load`."""
    config = load_config(folder)
    return config.task if isinstance(config, TaskConfig) else None


def is_headed(folder: str | Path) -> bool:
    """Whether :func:`load_headed` is for ``folder``, its head being no classifier's."""
    return task_in(folder) in _MADE


def load_headed(folder: str | Path, *, device: str = "auto", dtype: str = "auto") -> Any:
    """The model in ``folder`` with what its task needs; raises CheckpointError without such a head."""
    folder = Path(folder)
    task = task_in(folder)
    if task not in _MADE:
        known = ", ".join(_MADE)
        raise CheckpointError(f"{folder} has no head of {known}; train one with train.objective")
    model: Any = load_model(folder, dtype=choose_dtype(dtype), device=choose_device(device))
    tokenizer = Tokenizer.from_pretrained(folder)
    if tokenizer.vocab_size > model.config.vocab_size:
        raise CheckpointError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} tokens and the model "
            f"{model.config.vocab_size}; they do not belong together"
        )
    check_vocabulary(folder, tokenizer)
    return _MADE[task](folder, model.eval(), tokenizer)
