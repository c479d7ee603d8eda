"""Models with a head for a task, from their folders: what answers, scores, chooses and tags."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from wordloom.data import ScoredCorpus
from wordloom.errors import CheckpointError
from wordloom.evaluate import Scores
from wordloom.models import TaskConfig
from wordloom.recipe import Recipe, load_recipe
from wordloom.recipe.data import QuestionData, RowLengths, TokenLabelData
from wordloom.run.checkpoint.dtypes import choose_dtype
from wordloom.run.models.tokenizers import folder_tokenizer
from wordloom.run.prepare import corpus_of
from wordloom.run.tasks.heads.multiple_choice import Chooser, choice_parts
from wordloom.run.tasks.heads.question_answering import Answerer, question_parts
from wordloom.run.tasks.heads.regression import TextScorer
from wordloom.run.tasks.heads.token_classification import Tagger, tagged_parts
from wordloom.text import Tokenizer
from wordloom.training.precision import choose_device
from wordloom.weights import load_config, load_model

__all__ = [
    "evaluate_held_out",
    "is_headed",
    "load_headed",
    "misplaced_in",
    "reading_as_trained",
    "task_in",
]

# By task, what makes its object of (folder, model, tokenizer); a classifier is wordloom.run.TextClassifier.
_MADE: dict[str, Callable[[Path, Any, Tokenizer | None], Any]] = {
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
    tokenizer = folder_tokenizer(folder, model.config.vocab_size)
    return _MADE[task](folder, model.eval(), tokenizer)


# By task, the questions or texts that a recipe holds out; scored rows are divided by their corpus.
_HELD_OUT: dict[str, Callable[[Recipe], Any]] = {
    "multiple_choice": lambda recipe: choice_parts(recipe).get("validation"),
    "token_classification": lambda recipe: tagged_parts(recipe).get("validation"),
    "question_answering": lambda recipe: question_parts(recipe)[1],
}


def reading_as_trained(model: Any) -> Any:
    """``model``, from :func:`load_headed`, whose rows are as long as in training, and longer ones what they
    were there; as it is where its folder has no recipe of its task."""
    path = Path(model.folder) / "recipe.toml"
    if not hasattr(model, "too_long") or not path.exists():
        return model
    recipe = load_recipe(str(path))
    if recipe.train.objective != model.config.task:
        return model
    d = recipe.data
    too_long = d.too_long if isinstance(d, TokenLabelData) else recipe.data_as(RowLengths).too_long
    return replace(model, max_seq_len=recipe.train.seq_len, too_long=too_long)


def misplaced_in(folder: str | Path) -> Literal["error", "nearest"]:
    """What a run in ``folder`` did with answers that are not where they are said to be."""
    path = Path(folder) / "recipe.toml"
    data = load_recipe(str(path)).data if path.exists() else None
    return data.misplaced if isinstance(data, QuestionData) else "error"


def evaluate_held_out(model: Any, **settings: Any) -> Scores:
    """The scores of ``model``, from :func:`load_headed`, on what the recipe in its folder holds out;
    ``settings`` are those of its ``evaluate``.

    Raises CheckpointError where there is no recipe, or it holds out nothing.
    """
    path, task = Path(model.folder) / "recipe.toml", model.config.task
    if not path.exists():
        raise CheckpointError(f"{model.folder} has no recipe.toml that says what is held out; give a file")
    recipe = load_recipe(str(path))
    scores: Scores
    if task == recipe.train.objective and recipe.data.holds_out:
        model = reading_as_trained(model)
        if task == "regression":
            scores = model.evaluate(corpus_of(recipe, ScoredCorpus), part="validation")
            return scores
        if held_out := _HELD_OUT[task](recipe):
            scores = model.evaluate(held_out, **settings)
            return scores
    raise CheckpointError(f"the recipe of {model.folder} holds nothing out; give a file")
