"""Classifiers in a training run: labelled rows, the model over them, accuracy on the validation part."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from wordloom.data.label_batches import BagBatches, LabelLedger
from wordloom.data.labels import LabelledCorpus, LabelledRow, sorted_labels, unseen_label
from wordloom.data.vectorizer import BagVectorizer, Counted, smooth_idf
from wordloom.errors import RecipeError, did_you_mean
from wordloom.evaluate.classification import judge
from wordloom.models import MODELS, build, config_from, family_of
from wordloom.recipe import Recipe
from wordloom.run.progress import TrainingProgress
from wordloom.run.task import Task
from wordloom.text import Tokenizer
from wordloom.training.plan import Costs, check_fits
from wordloom.weights import load_config, load_state, save_model

__all__ = ["classification_task", "labelled_batches", "labelled_corpus"]

_AT_ONCE = 1 << 14  # validation rows in a forward pass
_OF_NETWORKS = ("seq_len", "attention_backend", "gradient_checkpointing", "compile")
_SETTLED = ("vocab_size", "id2label")  # settings of the model that the training rows decide


def classification_task(recipe: Recipe, given: Path | None, progress: TrainingProgress) -> Task:
    """Softmax classification of the recipe's labelled rows; ``given`` is a checkpoint to begin with."""
    family = recipe.model.get("family")
    if given is not None and not recipe.model:
        family = family_of(load_config(given))
    if family is None:
        raise RecipeError('give model.family, for train.objective "classification": bag_of_words')
    if family not in CLASSIFIERS:
        known = "is no classifier" if family in MODELS else "is unknown"
        raise RecipeError(f"model.family {family!r} {known}; {did_you_mean(str(family), CLASSIFIERS)}")
    return CLASSIFIERS[family](recipe, given, progress)


def labelled_corpus(recipe: Recipe) -> LabelledCorpus:
    """The rows that ``[data]`` names."""
    d = recipe.data
    if d.encoding_errors == "bytes":
        raise RecipeError('data.encoding_errors = "bytes" is for running text; rows take strict or replace')
    if any(source.startswith("-") for source in ([d.train] if isinstance(d.train, str) else d.train)):
        raise RecipeError("data.train: rows are read more than once, standard input only once; name a file")
    split: Literal["tail", "hash", "files"] = d.split if d.validation is None else "files"
    return LabelledCorpus(
        sources=d.train,
        validation_sources=d.validation or (),
        split=split,
        validation_fraction=d.validation_fraction,
        text=d.text_column,
        label=d.label_column,
        header=d.header,
        encoding_errors=d.encoding_errors,
    )


# -- bag of words ----------------------------------------------------------------------------------------


@dataclass
class _Rows:
    """Labelled rows as they go by: their texts are handed on, all else is kept."""

    labels: list[str]
    places: list[str]

    def texts(self, rows: Iterator[LabelledRow], known: Sequence[str] = ()) -> Iterator[str]:
        for row in rows:
            if len(row.texts) != 1:
                raise RecipeError(f"{row.place}: has {len(row.texts)} texts; a bag of words is made of one")
            if known and row.label not in known:
                raise unseen_label(row, known)
            self.labels.append(str(row.label))
            self.places.append(f"{row.source}:{row.line}")
            yield row.texts[0]

    def targets(self, labels: Sequence[str]) -> Any:
        number = {label: index for index, label in enumerate(labels)}
        return np.fromiter((number[label] for label in self.labels), np.int64, len(self.labels))


def bag_of_words_task(recipe: Recipe, given: Path | None, progress: TrainingProgress) -> Task:
    """A :class:`wordloom.models.BagOfWords` over the words of the training rows."""
    s = recipe.train
    for name in _OF_NETWORKS:
        if getattr(s, name) != type(s).model_fields[name].default:
            raise RecipeError(f"train.{name} has no meaning for a bag of words; leave it out")
    if s.precision not in ("auto", "fp32"):
        raise RecipeError(f'bag_of_words trains in fp32, not train.precision "{s.precision}"')
    corpus = labelled_corpus(recipe)
    rows = _Rows([], [])
    if given is not None:
        vectorizer, labels = BagVectorizer.from_pretrained(given), load_config(given).labels
        counted = vectorizer.count(rows.texts(corpus.rows("train"), labels))
    else:
        vectorizer, counted = _vectorizer(recipe, corpus, rows, progress)
        labels = sorted_labels(rows.labels)
    full = s.optimizer == "lbfgs"
    batches = BagBatches(
        counted.rows,
        rows.targets(labels),
        places=rows.places,
        seed=recipe.seed,
        order="sequential" if full else "permutation",
    )
    ledger = _ledger("train", corpus, rows, labels, counted)
    progress.say(ledger.lines())
    ledgers, fingerprints, held_out = {"train": ledger.as_dict()}, [batches.fingerprint], None
    if recipe.data.validation is not None or recipe.data.validation_fraction > 0:
        held_out, validation = labelled_batches(vectorizer, labels, corpus, "validation")
        progress.say(validation.lines())
        ledgers["validation"] = validation.as_dict()
        fingerprints.append(held_out.fingerprint)
    settled: dict[str, Any] = {"precision": "fp32"}
    if full:
        settled["batch_size"] = batches.samples_per_epoch
    s = s.model_copy(update=settled)

    def build_model() -> Any:
        return _bag_model(recipe, given, vectorizer, labels, smooth_idf(counted.rows))

    def save(model: Any, folder: Path, overwrite: bool) -> None:
        save_model(model, folder, tokenizer=vectorizer, overwrite=overwrite)

    return Task(
        settings=s,
        batches=batches,
        fingerprints={
            "data": hashlib.sha256("/".join([*labels, *fingerprints]).encode()).hexdigest(),
            "tokenizer": vectorizer.fingerprint,
        },
        ledger=json.dumps(ledgers, indent=1, ensure_ascii=False),
        build_model=build_model,
        settle=lambda trainer: f"{len(labels)} labels, {len(vectorizer):,} words",
        evaluate=None if held_out is None else _evaluator(held_out),
        scored={} if held_out is None else {"data": held_out.fingerprint[:8], "labels": len(labels)},
        save=save,
        # two products of an element with each label's weight, forward and backward
        costs=Costs(flops_per_token=4 * len(labels), tokens_per_sample=batches.terms_per_sample, dense=False),
        timed=False,
    )


CLASSIFIERS: dict[str, Callable[[Recipe, Path | None, TrainingProgress], Task]] = {
    "bag_of_words": bag_of_words_task
}


def labelled_batches(
    vectorizer: BagVectorizer, labels: Sequence[str], corpus: LabelledCorpus, part: Any
) -> tuple[BagBatches, LabelLedger]:
    """The rows of ``part`` in order, and their account; raises DataError for a label not among ``labels``."""
    rows = _Rows([], [])
    counted = vectorizer.count(rows.texts(corpus.rows(part), labels))
    batches = BagBatches(counted.rows, rows.targets(labels), places=rows.places, order="sequential")
    return batches, _ledger(part, corpus, rows, labels, counted)


def _ledger(
    part: str, corpus: LabelledCorpus, rows: _Rows, labels: Sequence[str], counted: Counted
) -> LabelLedger:
    by_label = np.bincount(rows.targets(labels), minlength=len(labels)).tolist()
    return LabelLedger(
        part=part,
        split=corpus.describe_split(),
        rows=len(rows.labels),
        terms=counted.terms,
        unknown=counted.unknown,
        empty=int((np.diff(counted.rows.indptr) == 0).sum()),
        labels=dict(zip(labels, by_label, strict=True)),
    )


def _vectorizer(
    recipe: Recipe, corpus: LabelledCorpus, rows: _Rows, progress: TrainingProgress
) -> tuple[BagVectorizer, Counted]:
    """The vocabulary that ``[tokenizer]`` asks for, and the training rows counted by it."""
    t = recipe.tokenizer
    settings: dict[str, Any] = {"max_ngram": recipe.model.get("max_ngram", 1)}
    if t.kind == "word":
        if t.special_tokens is not None:
            raise RecipeError("tokenizer.special_tokens: a bag of words has none; leave them out")
        settings |= {"split": t.split or "words", "lower": t.lower, "max_terms": t.vocab_size,
                     "min_count": t.min_frequency or 1}  # fmt: skip
    elif t.path is not None:
        settings["tokenizer"] = Tokenizer.from_pretrained(t.path)
    else:
        given = {key: getattr(t, key) for key in ("vocab_size", "min_frequency", "special_tokens", "split")}
        progress.say(f"tokenizer   training a {t.kind} tokenizer on the training rows")
        settings["tokenizer"] = Tokenizer.train(
            (text for row in corpus.rows("train") for text in row.texts),
            kind=str(t.kind),
            lower=t.lower,
            **{key: value for key, value in given.items() if value is not None},
        )
    return BagVectorizer.fit_counts(rows.texts(corpus.rows("train")), **settings)


def _bag_model(
    recipe: Recipe, given: Path | None, vectorizer: BagVectorizer, labels: Sequence[str], idf: Any
) -> Any:
    settings = {key: value for key, value in recipe.model.items() if key != "family"}
    if given is not None and not settings:
        config = load_config(given)
    else:
        for name in _SETTLED:
            if name in settings:
                raise RecipeError(f"model.{name} is settled by the training rows; leave it out")
        id2label = {str(number): label for number, label in enumerate(labels)}
        config = config_from("bag_of_words", vocab_size=len(vectorizer), id2label=id2label, **settings)
    check_fits(config, recipe.train)
    model = build(config)
    if given is not None:
        load_state(model, given)
    elif model.idf is not None:
        model.idf.copy_(torch.from_numpy(idf))
    return model


def _evaluator(held_out: BagBatches) -> Callable[[Any], dict[str, float]]:
    """Loss and accuracy over the validation rows."""
    n = held_out.samples_per_epoch

    def evaluate(model: Any) -> dict[str, float]:
        cuts = ((start, min(_AT_ONCE, n - start)) for start in range(0, n, _AT_ONCE))
        judged = judge(model, (held_out.batch(start, count) for start, count in cuts))
        return {"loss": float(judged.nats.mean()), "accuracy": judged.accuracy}

    return evaluate
