"""What every classifier's run has in common: labelled rows, their account, its config, its evaluation."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any, Protocol, TypeVar

from wordloom.data.batches.bags import LabelBatches, LabelLedger
from wordloom.data.rows.labelled import ColumnChoice, LabelledCorpus
from wordloom.data.sets.fetch import names_dataset
from wordloom.errors import RecipeError
from wordloom.evaluate.agreement import class_values
from wordloom.evaluate.classification import judge, macro_f1
from wordloom.models import config_from
from wordloom.recipe import Recipe, load_recipe
from wordloom.recipe.data import Columns, LabelColumns, SentenceData
from wordloom.recipe.table import Table
from wordloom.run.models.labelled_rows import labelled_batches, positive_of
from wordloom.run.models.text_readers import TextReader
from wordloom.run.prepare import check_files
from wordloom.run.progress import TrainingProgress
from wordloom.weights import load_config, save_model

__all__ = [
    "HeldOut",
    "account_of",
    "check_apart",
    "classifier_config",
    "divided",
    "held_out",
    "recipe_of",
    "saver",
    "some_or_error",
    "training_columns",
]

_SETTLED = ("vocab_size", "id2label")  # settings of the model that the training rows decide


Corpus = TypeVar("Corpus", bound=LabelledCorpus)
Item = TypeVar("Item")


def recipe_of(folder: str | Path) -> Recipe | None:
    """The recipe of the run in ``folder``, if it has one."""
    path = Path(folder) / "recipe.toml"
    return load_recipe(str(path)) if path.exists() else None


def training_columns(recipe: Recipe | None, *objectives: str) -> ColumnChoice | None:
    """The columns that a recipe for one of ``objectives`` names; None where it names none.

    Only the first two texts of a row are compared, and the label of texts that belong together is no score.
    """
    if recipe is None or recipe.train.objective not in objectives:
        return None
    d: Table = recipe.data
    if not isinstance(d, Columns):
        return None
    is_label = isinstance(d, SentenceData) and isinstance(d.positive, str)
    answer = None if is_label else d.label_column
    if d.text_column is None and answer is None:
        return None
    text = d.text_column[:2] if isinstance(d.text_column, list) else d.text_column
    return ColumnChoice(text=text, answer=answer, header=d.header if isinstance(d, LabelColumns) else None)


def check_apart(recipe: Recipe) -> None:
    """Raises RecipeError for a file that is both learnt from and held out."""
    learnt, held_out = (_places(given or ()) for given in (recipe.data.train, recipe.data.validation))
    for place, name in held_out.items():
        if any(place == other or place.startswith(other + os.sep) for other in learnt):
            raise RecipeError(f"{name}: is both a training and a validation file; take it from one")


def _places(sources: str | Sequence[str]) -> dict[str, str]:
    """Where each of ``sources`` is, and how it was given; named sets are where their name is."""
    found = {}
    for name in [sources] if isinstance(sources, str) else sources:
        if names_dataset(name):
            found[name] = name
        else:
            found |= {os.path.realpath(path): name for path in glob(os.path.expanduser(name)) or [name]}
    return found


def divided(recipe: Recipe, read: Callable[[Any], list[Item]], what: str) -> dict[str, list[Item]]:
    """What ``read`` makes of the recipe's sources: "train", and "validation", the last ones where no source
    of its own is named; ``what`` they are called."""
    d = recipe.data
    check_files(recipe)
    check_apart(recipe)
    every = read(d.train)
    if d.validation is not None:
        return {"train": every, "validation": some_or_error(read(d.validation), recipe, what)}
    if not d.validation_fraction:
        return {"train": every}
    edge = len(every) - int(len(every) * d.validation_fraction)
    return {"train": every[:edge], "validation": some_or_error(every[edge:], recipe, what)}


def some_or_error(held_out: list[Item], recipe: Recipe, what: str) -> list[Item]:
    """What is held out; raises RecipeError where that is nothing."""
    if not held_out:
        d = recipe.data
        which = "data.validation" if d.validation else f"data.validation_fraction {d.validation_fraction:g}"
        raise RecipeError(f"{which}: holds no {what}; give more of them, or data.validation_fraction = 0")
    return held_out


@dataclass(frozen=True)
class HeldOut:
    """The validation rows, if any, and what a task says of them beside its training rows.

    Attributes:
        ledger: JSON of what became of both parts.
        fingerprint: of the labels and both parts.
        evaluate, scored: as in :class:`~wordloom.run.tasks.task.Task`.
    """

    ledger: str
    fingerprint: str
    evaluate: Callable[[Any], dict[str, float]] | None
    scored: dict[str, object]


def held_out(
    recipe: Recipe,
    reader: TextReader,
    labels: Sequence[str],
    corpus: LabelledCorpus,
    train: tuple[LabelBatches, LabelLedger],
    progress: TrainingProgress,
) -> HeldOut:
    """Read the validation rows of ``recipe``, and give the account of both parts; ``train`` is the other."""
    parts = {"train": train}
    progress.say(train[1].lines())
    if recipe.data.holds_out:
        parts["validation"] = labelled_batches(reader, labels, corpus, "validation")
        progress.say(parts["validation"][1].lines())
    positive = positive_of(recipe.data.train, labels)
    return account_of(
        parts,
        lambda validation: _evaluator(validation, labels, positive),
        labels=labels,
        signature=reader.signature,
    )


class Account(Protocol):
    """What became of the rows of a part; ``text`` tells them from others, whatever reads them."""

    @property
    def text(self) -> str: ...

    def as_dict(self) -> dict[str, Any]: ...


def account_of(
    parts: Mapping[str, tuple[Any, Account]],
    evaluator: Callable[[Any], Callable[[Any], dict[str, float]]],
    *,
    labels: Sequence[str] = (),
    signature: Mapping[str, object],
) -> HeldOut:
    """What ``parts`` are, batches and account of "train" and, if any, "validation"; ``evaluator`` makes of
    the batches of the latter what scores a model by them, of which ``signature`` is said."""
    ledgers = {part: account.as_dict() for part, (_, account) in parts.items()}
    marks = [*labels, *(batches.fingerprint for batches, _ in parts.values())]
    validation, account = parts.get("validation", (None, None))
    scored: dict[str, object] = {}
    if validation is not None and account is not None:
        named = {"labels": len(labels)} if labels else {}
        scored = {"data": validation.fingerprint[:8], "text": account.text, **named, **signature}
    return HeldOut(
        ledger=json.dumps(ledgers, indent=1, ensure_ascii=False),
        fingerprint=hashlib.sha256("/".join(marks).encode()).hexdigest(),
        evaluate=None if validation is None else evaluator(validation),
        scored=scored,
    )


def _evaluator(
    validation: LabelBatches, labels: Sequence[str], positive: str | None
) -> Callable[[Any], dict[str, float]]:
    """Loss, accuracy, F1 of two classes or the mean of more, and Matthews' correlation."""

    def evaluate(model: Any) -> dict[str, float]:
        judged = judge(model, (validation.batch(*cut) for cut in validation.passes()))
        figures = {"loss": float(judged.nats.mean()), "accuracy": judged.accuracy}
        if len(labels) > 2:
            figures["macro_f1"] = macro_f1(judged.confusion)
        return {**figures, **class_values(judged.confusion, labels, positive)}

    return evaluate


def classifier_config(
    recipe: Recipe, given: Path | None, family: str, vocab_size: int, labels: Sequence[str]
) -> Any:
    """The config of the recipe's model, or that of the checkpoint ``given`` where it has no [model]."""
    settings = {key: value for key, value in recipe.model.items() if key != "family"}
    if given is not None and not settings:
        return load_config(given)
    for name in _SETTLED:
        if name in settings:
            raise RecipeError(f"model.{name} is settled by the training rows; leave it out")
    id2label = {str(number): label for number, label in enumerate(labels)}
    return config_from(family, vocab_size=vocab_size, id2label=id2label, **settings)


def saver(reader: TextReader) -> Callable[[Any, Path, bool], None]:
    """Writes a model with what reads texts for it; the third argument is overwrite."""

    def save(model: Any, folder: Path, overwrite: bool) -> None:
        save_model(model, folder, tokenizer=reader.vocabulary, overwrite=overwrite)

    return save
