"""Classification in a training run: a task for each family that is a classifier by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from wordloom.data.bags.vectorizer import BagVectorizer, Counted, smooth_idf
from wordloom.data.rows.labelled import CorpusPart, sorted_labels
from wordloom.errors import RecipeError, did_you_mean
from wordloom.models import MODELS, TaskConfig, build, config_from, family_of, skeleton
from wordloom.progress import TrainingProgress
from wordloom.recipe import Recipe
from wordloom.recipe.data import RowLengths
from wordloom.run.models.heads.classification import TextClassifier
from wordloom.run.models.heads.head import RowFacts, rows_read
from wordloom.run.models.text_readers import BagReader, SequenceReader
from wordloom.run.prepare import recipe_tokenizer
from wordloom.run.tasks.building import new_model, takes_head
from wordloom.run.tasks.head_task import head_parts, head_task, read_parts, refuse_lbfgs
from wordloom.run.tasks.task import Task
from wordloom.text import Tokenizer
from wordloom.training.plan import Costs, check_fits
from wordloom.weights import load_config, load_state


def classification_task(recipe: Recipe, start: Path | None, progress: TrainingProgress) -> Task:
    """Return the task of classifying the recipe's rows; ``start`` is a checkpoint to begin with."""
    family = recipe.model.get("family")
    if "preset" in recipe.model or takes_head(family):
        return head_task(recipe, start, progress)
    if start is not None and not (family and family in CLASSIFIERS):
        config = load_config(start)
        family = family_of(config)
        if isinstance(config, TaskConfig) or takes_head(family):
            return head_task(recipe, start, progress)
    if family is None:
        raise RecipeError(
            f'give model.family, for train.objective "classification": {", ".join(CLASSIFIERS)}; or a '
            "pretrained model to begin with (--from)"
        )
    if family not in CLASSIFIERS:
        known = "is not a classifier" if family in MODELS else "is unknown"
        raise RecipeError(f"model.family {family!r} {known}; {did_you_mean(str(family), CLASSIFIERS)}")
    return CLASSIFIERS[family](recipe, start, progress)


# -- bag of words ----------------------------------------------------------------------------------------


def bag_of_words_task(recipe: Recipe, start: Path | None, progress: TrainingProgress) -> Task:
    """Return the task of a :class:`wordloom.models.BagOfWords` over the words of the training rows."""
    s = recipe.train
    recipe.check_family("bag_of_words")
    if s.precision not in ("auto", "fp32"):
        raise RecipeError(f'bag_of_words trains in fp32, not train.precision "{s.precision}"')
    rows = TextClassifier.rows_of(recipe, Counter())
    train, facts = rows["train"], RowFacts()
    if start is not None:
        vectorizer, labels = BagVectorizer.from_pretrained(start), load_config(start).labels
        counted = vectorizer.count(facts.texts(train, labels))
    else:
        vectorizer, counted = _vectorizer(recipe, train, facts, progress)
        labels = sorted_labels(facts.labels)
    full = s.optimizer == "lbfgs"
    config = _config(recipe, start, "bag_of_words", len(vectorizer), labels)
    reader = BagReader(vectorizer)
    seed = None if full else recipe.seed
    head = TextClassifier(model=None, reader=reader, config=config)
    read = {"train": rows_read(reader, train, facts, reader.counted(counted), labels, seed=seed)}
    if "validation" in rows:
        read["validation"] = head.read(rows["validation"])
    changes: dict[str, Any] = {"precision": "fp32"}
    if full:
        changes["batch_size"] = read["train"].batches.samples_per_epoch
    s = s.model_copy(update=changes)
    words_per_text = float(counted.rows.sum()) / read["train"].ledger.rows

    def build_model() -> Any:
        check_fits(config, s)
        model = build(config)
        if start is not None:
            load_state(model, start)
        elif model.idf is not None:
            model.idf.copy_(torch.from_numpy(smooth_idf(counted.rows)))
        return model

    return Task(
        settings=s,
        build_model=build_model,
        set_up=lambda trainer: f"{len(labels)} labels, {len(vectorizer):,} words",
        # an element is multiplied by each label's weight, forward and backward
        costs=Costs(flops_per_token=4 * len(labels), tokens_per_sample=words_per_text, dense=False),
        timed=False,
        **head_parts(head, read, progress, vectorizer.fingerprint),
    )


def _vectorizer(
    recipe: Recipe, rows: CorpusPart, facts: RowFacts, progress: TrainingProgress
) -> tuple[BagVectorizer, Counted]:
    """Return the vocabulary that ``[tokenizer]`` asks for, and the word counts of the training rows."""
    t = recipe.tokenizer
    settings: dict[str, Any] = {"max_ngram": recipe.model.get("max_ngram", 1)}
    if t.kind == "word":
        if t.special_tokens is not None:
            raise RecipeError("tokenizer.special_tokens: a bag of words has none; leave them out")
        settings |= {"split": t.split or "words", "lower": t.lower, "max_terms": t.vocab_size,
                     "min_count": t.min_frequency or 1}  # fmt: skip
    else:
        settings["tokenizer"] = recipe_tokenizer(recipe, TextClassifier.texts_of(rows), progress, "texts")
    return BagVectorizer.fit_counts(facts.texts(rows), **settings)


# -- recurrent classifiers -------------------------------------------------------------------------------


def rnn_classifier_task(recipe: Recipe, start: Path | None, progress: TrainingProgress) -> Task:
    """Return the task of a :class:`wordloom.models.RNNClassifier` over the tokens of the training rows."""
    s = recipe.train
    recipe.check_family("rnn_classifier")
    refuse_lbfgs(recipe)
    rows = TextClassifier.rows_of(recipe, Counter())
    train = rows["train"]
    if start is not None:
        tokenizer, labels = Tokenizer.from_pretrained(start), load_config(start).labels
    else:
        tokenizer = recipe_tokenizer(recipe, TextClassifier.texts_of(train), progress, "texts")
        labels = sorted_labels(str(row.label) for row in train)
    config = _config(recipe, start, "rnn_classifier", tokenizer.vocab_size, labels)
    reader = SequenceReader(tokenizer, s.seq_len, recipe.data_as(RowLengths).too_long, alike=s.batch_size)
    head = TextClassifier(model=None, reader=reader, config=config)
    read = read_parts(head, rows, recipe)
    tokens = read["train"].ledger.terms / read["train"].ledger.rows

    return Task(
        settings=s,
        build_model=lambda: new_model(recipe, config, start, progress, whole=True),
        set_up=lambda trainer: f"{config.cell} by {trainer.model.blocks[0].forwards.kernel}",  # type: ignore
        costs=Costs(flops_per_token=_flops(config, tokens), tokens_per_sample=tokens, dense=True),
        tokenizer=tokenizer,
        **head_parts(head, read, progress, tokenizer.fingerprint),
    )


def _flops(config: Any, tokens: float) -> int:
    """Return the operations to train on a token of a text of ``tokens``: six for each weight.

    See :mod:`wordloom.models.building.cost`.
    """
    model: Any = skeleton(config)
    layers = sum(p.numel() for p in model.blocks.parameters() if p.ndim == 2)
    return round(6 * (layers + model.classifier.weight.numel() / max(1.0, tokens)))


def _config(recipe: Recipe, start: Path | None, family: str, vocab_size: int, labels: Sequence[str]) -> Any:
    """Return the config of the recipe's model; without [model] that of the checkpoint ``start``."""
    settings = {key: value for key, value in recipe.model.items() if key != "family"}
    if start is not None and not settings:
        return load_config(start)
    for name in ("vocab_size", "id2label"):
        if name in settings:
            raise RecipeError(f"model.{name} is decided by the training rows; leave it out")
    id2label = {str(number): label for number, label in enumerate(labels)}
    return config_from(family, vocab_size=vocab_size, id2label=id2label, **settings)


CLASSIFIERS: dict[str, Callable[[Recipe, Path | None, TrainingProgress], Task]] = {
    "bag_of_words": bag_of_words_task,
    "rnn_classifier": rnn_classifier_task,
}
