"""Classifiers in a training run: one task for each family."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from wordloom.data.bags.vectorizer import BagVectorizer, Counted, smooth_idf
from wordloom.data.rows.labelled import LabelledCorpus, sorted_labels
from wordloom.errors import RecipeError, did_you_mean
from wordloom.models import MODELS, TaskConfig, build, family_of, skeleton
from wordloom.recipe import Recipe
from wordloom.recipe.data import RowLengths
from wordloom.run.models.labelled_rows import Rows, labelled_batches, ledger
from wordloom.run.models.text_readers import BagReader, SequenceReader
from wordloom.run.prepare import labelled_corpus, recipe_tokenizer
from wordloom.run.progress import TrainingProgress
from wordloom.run.tasks.heads.fine_tuning import fine_tuned, fine_tuning_task
from wordloom.run.tasks.labelled import (
    classifier_config,
    held_out,
    saver,
)
from wordloom.run.tasks.task import Task
from wordloom.text import Tokenizer
from wordloom.training.plan import Costs, check_fits
from wordloom.weights import load_config, load_state

__all__ = ["classification_task"]


def classification_task(recipe: Recipe, given: Path | None, progress: TrainingProgress) -> Task:
    """Softmax classification of the recipe's labelled rows; ``given`` is a checkpoint to begin with."""
    family = recipe.model.get("family")
    if "preset" in recipe.model or fine_tuned(family):
        return fine_tuning_task(recipe, given, progress)
    if given is not None and not (family and family in CLASSIFIERS):
        config = load_config(given)
        family = family_of(config)
        if isinstance(config, TaskConfig) or fine_tuned(family):
            return fine_tuning_task(recipe, given, progress)
    if family is None:
        raise RecipeError(
            f'give model.family, for train.objective "classification": {", ".join(CLASSIFIERS)}; or a '
            "pretrained model to begin with (--from)"
        )
    if family not in CLASSIFIERS:
        known = "is no classifier" if family in MODELS else "is unknown"
        raise RecipeError(f"model.family {family!r} {known}; {did_you_mean(str(family), CLASSIFIERS)}")
    return CLASSIFIERS[family](recipe, given, progress)


# -- bag of words ----------------------------------------------------------------------------------------


def bag_of_words_task(recipe: Recipe, given: Path | None, progress: TrainingProgress) -> Task:
    """A :class:`wordloom.models.BagOfWords` over the words of the training rows."""
    s = recipe.train
    recipe.check_family("bag_of_words")
    if s.precision not in ("auto", "fp32"):
        raise RecipeError(f'bag_of_words trains in fp32, not train.precision "{s.precision}"')
    corpus = labelled_corpus(recipe)
    rows = Rows()
    if given is not None:
        vectorizer, labels = BagVectorizer.from_pretrained(given), load_config(given).labels
        counted = vectorizer.count(rows.texts(corpus, "train", labels))
    else:
        vectorizer, counted = _vectorizer(recipe, corpus, rows, progress)
        labels = sorted_labels(rows.labels)
    full = s.optimizer == "lbfgs"
    known = float(counted.rows.sum()) / len(rows.labels)  # words a text
    reader = BagReader(vectorizer)
    read = reader.counted(counted)
    seed = None if full else recipe.seed
    batches = reader.batches(read, rows.targets(labels), places=rows.places, seed=seed)
    account = ledger("train", corpus, rows, labels, reader, read)
    rest = held_out(recipe, reader, labels, corpus, (batches, account), progress)
    settled: dict[str, Any] = {"precision": "fp32"}
    if full:
        settled["batch_size"] = batches.samples_per_epoch
    s = s.model_copy(update=settled)

    def build_model() -> Any:
        config = classifier_config(recipe, given, "bag_of_words", len(vectorizer), labels)
        check_fits(config, s)
        model = build(config)
        if given is not None:
            load_state(model, given)
        elif model.idf is not None:
            model.idf.copy_(torch.from_numpy(smooth_idf(counted.rows)))
        return model

    return Task(
        settings=s,
        batches=batches,
        fingerprints={"data": rest.fingerprint, "tokenizer": vectorizer.fingerprint},
        ledger=rest.ledger,
        build_model=build_model,
        settle=lambda trainer: f"{len(labels)} labels, {len(vectorizer):,} words",
        evaluate=rest.evaluate,
        scored=rest.scored,
        save=saver(reader),
        # two products of an element with each label's weight, forward and backward
        costs=Costs(flops_per_token=4 * len(labels), tokens_per_sample=known, dense=False),
        timed=False,
    )


def _vectorizer(
    recipe: Recipe, corpus: LabelledCorpus, rows: Rows, progress: TrainingProgress
) -> tuple[BagVectorizer, Counted]:
    """The vocabulary that ``[tokenizer]`` asks for, and the training rows counted by it."""
    t = recipe.tokenizer
    settings: dict[str, Any] = {"max_ngram": recipe.model.get("max_ngram", 1)}
    if t.kind == "word":
        if t.special_tokens is not None:
            raise RecipeError("tokenizer.special_tokens: a bag of words has none; leave them out")
        settings |= {"split": t.split or "words", "lower": t.lower, "max_terms": t.vocab_size,
                     "min_count": t.min_frequency or 1}  # fmt: skip
    else:
        texts = (text for row in corpus.rows("train") for text in row.texts)
        settings["tokenizer"] = recipe_tokenizer(recipe, texts, progress, "rows")
    return BagVectorizer.fit_counts(rows.texts(corpus, "train"), **settings)


# -- recurrent classifiers -------------------------------------------------------------------------------


def rnn_classifier_task(recipe: Recipe, given: Path | None, progress: TrainingProgress) -> Task:
    """A :class:`wordloom.models.RNNClassifier` over the tokens of the training rows."""
    s = recipe.train
    recipe.check_family("rnn_classifier")
    if s.optimizer == "lbfgs":
        raise RecipeError('train.optimizer "lbfgs" is for model.family "bag_of_words"; take adamw or muon')
    corpus = labelled_corpus(recipe)
    if given is not None:
        tokenizer, labels = Tokenizer.from_pretrained(given), load_config(given).labels
    else:
        texts = (text for row in corpus.rows("train") for text in row.texts)
        tokenizer = recipe_tokenizer(recipe, texts, progress, "rows")
        labels = sorted_labels(str(row.label) for row in corpus.rows("train"))
    reader = SequenceReader(tokenizer, s.seq_len, recipe.data_as(RowLengths).too_long, alike=s.batch_size)
    train = labelled_batches(reader, labels, corpus, "train", seed=recipe.seed)
    batches, account = train
    rest = held_out(recipe, reader, labels, corpus, train, progress)
    config = classifier_config(recipe, given, "rnn_classifier", tokenizer.vocab_size, labels)
    tokens = account.terms / account.rows

    def build_model() -> Any:
        check_fits(config, s)
        model = build(config, generator=torch.Generator().manual_seed(recipe.seed))
        if given is not None:
            load_state(model, given)
        return model

    return Task(
        settings=s,
        batches=batches,
        fingerprints={"data": rest.fingerprint, "tokenizer": tokenizer.fingerprint},
        ledger=rest.ledger,
        build_model=build_model,
        settle=lambda trainer: f"{config.cell} by {trainer.model.blocks[0].forwards.kernel}",  # type: ignore
        evaluate=rest.evaluate,
        scored=rest.scored,
        save=saver(reader),
        costs=Costs(flops_per_token=_flops(config, tokens), tokens_per_sample=tokens, dense=True),
    )


def _flops(config: Any, tokens: float) -> int:
    """Operations to train on one token: six per weight (see :mod:`wordloom.models.building.cost`)."""
    model: Any = skeleton(config)
    layers = sum(p.numel() for p in model.blocks.parameters() if p.ndim == 2)
    return round(6 * (layers + model.classifier.weight.numel() / max(1.0, tokens)))


CLASSIFIERS: dict[str, Callable[[Recipe, Path | None, TrainingProgress], Task]] = {
    "bag_of_words": bag_of_words_task,
    "rnn_classifier": rnn_classifier_task,
}
