"""Fine-tuning in a training run: an encoder or a causal model with a head, on labelled texts or pairs of them
(Devlin et al. 2018, section 4.1; Radford et al. 2018, section 3.2).

Begun with a checkpoint (``--from``) its body and tokenizer are taken, and the head is fresh unless the
checkpoint has the same one; without, the body that ``[model]`` describes is fresh too.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from wordloom.data.batches.framed_rows import TASK_TOKENS
from wordloom.data.rows.labelled import sorted_labels
from wordloom.errors import DataError, RecipeError
from wordloom.models import MODELS, TaskConfig, build, config_from, context_limit, encodes, family_of
from wordloom.models.building.cost import flops_per_token
from wordloom.models.task_model import BODIES, SUMMARIES
from wordloom.nn import set_attention_backend
from wordloom.recipe import Recipe
from wordloom.recipe.data import LabelledData, RowLengths, TaskTokens
from wordloom.run.models.labelled_rows import labelled_batches
from wordloom.run.models.text_readers import MarkedReader
from wordloom.run.prepare import labelled_corpus, recipe_tokenizer
from wordloom.run.progress import TrainingProgress
from wordloom.run.tasks.labelled import held_out, saver
from wordloom.run.tasks.model_settings import model_settings
from wordloom.run.tasks.placement import settle_blocks
from wordloom.run.tasks.task import Task
from wordloom.text import Tokenizer
from wordloom.training.plan import Costs, check_fits
from wordloom.weights import load_config, start_from
from wordloom.weights.special_tokens import pads_with_end_token

__all__ = [
    "check_body",
    "fine_tuned",
    "fine_tuning_task",
    "given_tokenizer",
    "head_config",
    "head_parts",
    "recipe_body",
]

log = logging.getLogger(__name__)

_HEAD = "head_dropout"  # the setting of [model] that is the head's
_SETTLED = (
    "pooler",
    "masked_lm_head",
    "next_sentence_head",
)  # parts of a body that its head has use for or not


def fine_tuned(family: str | None) -> bool:
    """Whether models of ``family`` take a head."""
    return family in MODELS and MODELS[str(family)].config in BODIES


def fine_tuning_task(recipe: Recipe, given: Path | None, progress: TrainingProgress) -> Task:
    """Classification by a :class:`wordloom.models.TaskModel`; ``given`` is a checkpoint to begin with."""
    s = recipe.train
    if s.optimizer == "lbfgs":
        raise RecipeError('train.optimizer "lbfgs" is for model.family "bag_of_words"; take adamw or muon')
    corpus = labelled_corpus(recipe)
    every = Counter(str(row.label) for row in corpus.rows("train"))
    if len(every) == every.total() > 2:
        raise DataError(
            f"each of the {len(every):,} training rows has a label of its own, from which no class is "
            "learnt; name the columns of text and label: data.text_column, data.label_column"
        )
    labels = sorted_labels(every)
    texts = (text for row in corpus.rows("train") for text in row.texts)
    tokenizer = given_tokenizer(recipe, given, texts, progress, "rows")
    config = head_config(recipe, tokenizer, given, task="classification", labels=labels)
    reader = MarkedReader(
        tokenizer, config, s.seq_len, recipe.data_as(RowLengths).too_long, alike=s.batch_size
    )
    train = labelled_batches(reader, labels, corpus, "train", seed=recipe.seed)
    batches, account = train
    rest = held_out(recipe, reader, labels, corpus, train, progress)
    return Task(
        settings=s,
        batches=batches,
        fingerprints={"data": rest.fingerprint, "tokenizer": tokenizer.fingerprint},
        ledger=rest.ledger,
        evaluate=rest.evaluate,
        scored=rest.scored,
        save=saver(reader),
        **head_parts(recipe, config, given, progress, tokens=account.terms / account.rows),
    )


def head_parts(
    recipe: Recipe, config: TaskConfig, given: Path | None, progress: TrainingProgress, *, tokens: float
) -> dict[str, Any]:
    """What the runs of all heads have in common of a :class:`~wordloom.run.tasks.task.Task`; ``tokens`` of a
    row on average."""
    s = recipe.train

    def build_model() -> Any:
        check_fits(config, s)
        model = build(config, generator=torch.Generator().manual_seed(recipe.seed))
        if given is not None:
            progress.say(start_from(model, given, extra_tokens=_has_task_tokens(recipe)).lines())
        set_attention_backend(model, s.attention_backend)
        return model

    rows = s.micro_batch_size or s.batch_size
    return {
        "build_model": build_model,
        "settle": lambda trainer: settle_blocks(trainer, s, padded=config.encodes, tokens=rows * tokens),
        "costs": _costs(recipe, config, tokens),
    }


def given_tokenizer(
    recipe: Recipe, given: Path | None, texts: Iterable[str], progress: TrainingProgress, what: str
) -> Tokenizer:
    """That of the checkpoint ``given``, or the recipe's, learnt from ``texts`` (the training ``what``); with
    TASK_TOKENS where the recipe asks for them."""
    if given is not None:
        tokenizer = Tokenizer.from_pretrained(given)
    else:
        tokenizer = recipe_tokenizer(recipe, texts, progress, what)
    return tokenizer.with_marks(*TASK_TOKENS) if _has_task_tokens(recipe) else tokenizer


def _has_task_tokens(recipe: Recipe) -> bool:
    return isinstance(recipe.data, TaskTokens) and recipe.data.task_tokens


def head_config(
    recipe: Recipe, tokenizer: Tokenizer, given: Path | None, *, task: str, labels: Sequence[str] = ()
) -> TaskConfig:
    """The recipe's body, or that of ``given`` with what the recipe changes of it, and a head.

    Raises RecipeError for settings that do not go together.
    """
    for name in _SETTLED:
        if name in recipe.model:
            raise RecipeError(
                f"model.{name} is settled by train.objective '{recipe.train.objective}'; leave it out"
            )
    body, s = recipe_body(recipe, tokenizer, given), recipe.train
    auxiliary = s.language_model_texts == "task" and s.language_model_weight > 0
    kept = auxiliary or recipe.old_task is not None
    if encodes(body):
        if auxiliary:
            raise RecipeError(
                f"train.language_model_weight is for a causal model, which a {family_of(body)} is not; "
                'leave it out, or take old texts: train.language_model_texts = "old", of [old_task]'
            )
        pooler = task in SUMMARIES
        body = replace(body, pooler=pooler, masked_lm_head=kept, next_sentence_head=False)
    elif type(body) not in BODIES:
        raise RecipeError(
            f"a {family_of(body)} takes no head; begin with an encoder, a GPT or a LLaMA, or train a "
            "rnn_classifier or bag_of_words"
        )
    both_orders = isinstance(recipe.data, LabelledData) and recipe.data.both_orders
    if both_orders and encodes(body):
        raise RecipeError(
            f"data.both_orders is for a causal model, which a {family_of(body)} is not: it reads both texts "
            "at once; leave it out"
        )
    if _has_task_tokens(recipe):
        if encodes(body):
            raise RecipeError(
                f"data.task_tokens is for a causal model, which a {family_of(body)} is not: it has [CLS] and "
                "[SEP]; leave it out"
            )
        body = replace(body, vocab_size=max(body.vocab_size, tokenizer.vocab_size))
    check_body(recipe, tokenizer, body)
    config = TaskConfig(
        body=body,
        task=task,
        id2label={str(number): label for number, label in enumerate(labels)},
        head_dropout=recipe.model.get(_HEAD),
        language_model=kept,
        both_orders=both_orders,
    )
    if tokenizer.pad_id is not None and pads_with_end_token(config, tokenizer):
        log.warning(
            "the tokenizer pads with %s, on which the model answers; config.json will name no pad token, so "
            "that transformers reads one text at a time rather than answer on another token "
            "(data.task_tokens = true gives the answer a token of its own)",
            tokenizer.id_to_token(tokenizer.pad_id),
        )
    return config


def recipe_body(recipe: Recipe, tokenizer: Tokenizer, given: Path | None) -> Any:
    """The config of the recipe's body, or of that of ``given`` with what the recipe changes of it."""
    return _fresh_body(recipe, tokenizer) if given is None else _given_body(recipe, given)


def check_body(recipe: Recipe, tokenizer: Tokenizer, body: Any) -> None:
    """Raises RecipeError where ``body`` reads no rows as long as the recipe's or not all tokens."""
    longest, seq_len = context_limit(body), recipe.train.seq_len
    if longest is not None and seq_len > longest:
        raise RecipeError(
            f"train.seq_len {seq_len} is more than the model reads, {longest} tokens; give no more"
        )
    if body.vocab_size < tokenizer.vocab_size:
        raise RecipeError(
            f"model.vocab_size {body.vocab_size} is below the tokenizer's {tokenizer.vocab_size}; leave it "
            "out"
        )


def _fresh_body(recipe: Recipe, tokenizer: Tokenizer) -> Any:
    family, settings = model_settings(recipe)
    settings.pop(_HEAD, None)
    settings["vocab_size"] = recipe.model.get("vocab_size", tokenizer.vocab_size)
    settings.setdefault("max_seq_len", recipe.train.seq_len)
    return config_from(family, **settings)


def _given_body(recipe: Recipe, given: Path) -> Any:
    """The body in ``given``, with the dropouts that the recipe has for it."""
    config = load_config(given)
    body = config.body if isinstance(config, TaskConfig) else config
    wanted = {key: value for key, value in recipe.model.items() if key not in ("family", "preset", _HEAD)}
    family = recipe.model.get("family")
    if family not in (None, family_of(body)):
        raise RecipeError(f"{given} holds a {family_of(body)}, and model.family is {family!r}; leave it out")
    if type(body) not in BODIES:
        return body
    return config_from(family_of(body), **{**vars(body), **wanted})


def _costs(recipe: Recipe, config: TaskConfig, tokens: float) -> Costs:
    """Operations to train on a token of a text of so many; a summary's head sees one of them."""
    flops = flops_per_token(config, context=max(1, round(tokens)))
    tokens *= 2 if config.both_orders else 1
    layers = flops.layers + flops.attention
    head = 2 * config.dim * (config.outputs + (config.dim if config.encodes else 0))
    if config.task in SUMMARIES:
        head = round(head / max(1.0, tokens))
    if recipe.train.language_model_weight and recipe.train.language_model_texts == "task":
        head += 2 * config.dim * config.vocab_size
    return Costs(flops_per_token=3 * (layers + head), tokens_per_sample=tokens, dense=True)
