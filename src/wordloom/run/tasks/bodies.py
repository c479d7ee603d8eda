"""The model of a fine-tuning run: a body from the recipe or from a checkpoint, and a head.

A run that starts from a checkpoint (``--from``) takes the checkpoint's body and tokenizer; its head is new
unless the checkpoint has a head for the task.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from wordloom.data.batches.framed import TASK_TOKENS
from wordloom.errors import RecipeError
from wordloom.models import MODELS, TaskConfig, body_config, config_from, encodes, family_of
from wordloom.models.task_model import BODIES, SUMMARIES
from wordloom.progress import TrainingProgress
from wordloom.recipe import Recipe
from wordloom.recipe.data import LabelledData, TaskTokens
from wordloom.run.prepare import recipe_tokenizer
from wordloom.run.tasks.building import check_length, check_vocabulary_size, new_config
from wordloom.text import Tokenizer
from wordloom.weights import load_config
from wordloom.weights.special_tokens import pads_with_end_token

log = logging.getLogger(__name__)

_HEAD = "head_dropout"  # the setting of [model] that belongs to the head
_DECIDED = ("pooler", "masked_lm_head", "next_sentence_head")  # parts of a body that the task decides on


def takes_head(family: str | None) -> bool:
    """Return whether models of ``family`` take a head."""
    return family in MODELS and MODELS[str(family)].config in BODIES


def has_task_tokens(recipe: Recipe) -> bool:
    """Return whether the recipe adds TASK_TOKENS to the tokenizer."""
    return isinstance(recipe.data, TaskTokens) and recipe.data.task_tokens


def start_tokenizer(
    recipe: Recipe, start: Path | None, texts: Iterable[str], progress: TrainingProgress, noun: str
) -> Tokenizer:
    """Return the tokenizer of the checkpoint ``start``, or the recipe's, trained on ``texts``.

    It has TASK_TOKENS if the recipe asks for them; ``noun`` is the name of a row, for the log.
    """
    if start is not None:
        tokenizer = Tokenizer.from_pretrained(start)
    else:
        tokenizer = recipe_tokenizer(recipe, texts, progress, f"{noun}s")
    return tokenizer.with_marks(*TASK_TOKENS) if has_task_tokens(recipe) else tokenizer


def head_config(
    recipe: Recipe, tokenizer: Tokenizer, start: Path | None, *, task: str, labels: Sequence[str] = ()
) -> TaskConfig:
    """Return the config of the body and its head for ``task``; the body is that of :func:`recipe_body`.

    Raises RecipeError for settings that do not go together.
    """
    for name in _DECIDED:
        if name in recipe.model:
            raise RecipeError(
                f"model.{name} is decided by train.objective '{recipe.train.objective}'; leave it out"
            )
    body, s = recipe_body(recipe, tokenizer, start), recipe.train
    auxiliary = s.language_model_texts == "task" and s.language_model_weight > 0
    keeps_head = auxiliary or recipe.old_task is not None
    if encodes(body):
        if auxiliary:
            raise RecipeError(
                f"train.language_model_weight is for a causal model, which a {family_of(body)} is not; "
                'leave it out, or take old texts: train.language_model_texts = "old", of [old_task]'
            )
        pooler = task in SUMMARIES
        body = replace(body, pooler=pooler, masked_lm_head=keeps_head, next_sentence_head=False)
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
    if has_task_tokens(recipe):
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
        language_model=keeps_head,
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


def recipe_body(recipe: Recipe, tokenizer: Tokenizer, start: Path | None) -> Any:
    """Return the config of the recipe's body: new, or that of the checkpoint ``start`` with its changes."""
    if start is None:
        return new_config(recipe, tokenizer, recipe.train.seq_len, without=_HEAD)
    body = body_config(load_config(start))
    wanted = {key: value for key, value in recipe.model.items() if key not in ("family", "preset", _HEAD)}
    family = recipe.model.get("family")
    if family not in (None, family_of(body)):
        raise RecipeError(f"{start} holds a {family_of(body)}, and model.family is {family!r}; leave it out")
    if type(body) not in BODIES:
        return body
    return config_from(family_of(body), **{**vars(body), **wanted})


def check_body(recipe: Recipe, tokenizer: Tokenizer, body: Any) -> None:
    """Raise RecipeError unless ``body`` reads rows as long as the recipe's, and all tokens."""
    check_length(body, recipe.train.seq_len)
    check_vocabulary_size(body, tokenizer)
