"""Causal language models in a training run: windows of tokens, attention kernels, samples of text."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from wordloom.errors import RecipeError, TokenizerError
from wordloom.evaluate.reading import tokenizer_name
from wordloom.generate import Sampling, generate_text
from wordloom.models import TaskConfig, body_config, family_of
from wordloom.nn import set_attention_backend
from wordloom.nn.recurrent import Recurrent
from wordloom.objectives import objective
from wordloom.progress import TrainingProgress
from wordloom.recipe import Recipe
from wordloom.recipe.data import CausalData
from wordloom.run.prepare import AnyBatches, joined_fingerprint, ledger_json, prepare_recipe, start_id
from wordloom.run.tasks.building import (
    check_length,
    check_vocabulary_size,
    new_config,
    new_model,
    require_causal,
    set_up_causal,
    takes_model_of_start,
    with_recipe_attention,
)
from wordloom.run.tasks.task import Task, Windows, mean_loss
from wordloom.text import Specials, Tokenizer
from wordloom.training.ranks import ALONE, Ranks
from wordloom.weights import load_config, load_model, save_model


def causal_task(recipe: Recipe, start: Path | None, progress: TrainingProgress) -> Task:
    """Return the task of predicting next tokens; ``start`` is a checkpoint to begin with."""
    saved = Tokenizer.from_pretrained(start) if start else None
    tokenizer, parts = prepare_recipe(recipe, tokenizer=saved, progress=progress)
    validation = parts.get("validation")
    # the folder says whether the model has learned to read every text behind the end token
    finished = tokenizer.with_start(eos=start_id(recipe, tokenizer) is not None)
    evaluate, scored = (None, {}) if validation is None else _evaluation(recipe, validation, tokenizer)

    def build_model() -> Any:
        model = _model(recipe, tokenizer, start, progress)
        family = family_of(model.config)
        if recipe.train.objective == "truncated_bptt" and not isinstance(model.blocks[0], Recurrent):
            raise RecipeError(
                "train.objective 'truncated_bptt' carries the state of a recurrent model over, and "
                f"model.family '{family}' has none; take 'causal_lm', or model.family 'rnn'"
            )
        recipe.check_family(family)
        return model

    return Task(
        settings=recipe.train,
        batches=parts["train"],
        fingerprints={
            "data": joined_fingerprint(part.shards.fingerprint for part in parts.values()),
            "tokenizer": tokenizer.fingerprint,
        },
        ledger=ledger_json(parts),
        build_model=build_model,
        set_up=lambda trainer: set_up_causal(
            trainer, recipe.train, masked=recipe.data_as(CausalData).document_mask
        ),
        evaluate=evaluate,
        scored=scored,
        sample=_sampler(recipe, finished),
        save=partial(save_model, tokenizer=finished),
        tokenizer=finished,
    )


def _model(recipe: Recipe, tokenizer: Tokenizer, start: Path | None, progress: TrainingProgress) -> Any:
    """Return the recipe's model, new or with the weights of the checkpoint ``start``.

    A recipe without ``[model]`` takes the checkpoint's; one with it must agree with the checkpoint in
    everything but dropout and max_seq_len. A checkpoint with a head for a task gives its body.
    """
    saved = None if start is None else load_config(start)
    if takes_model_of_start(recipe, start):
        config = with_recipe_attention(recipe, body_config(saved))
    else:
        config = new_config(recipe, tokenizer, recipe.train.seq_len)
        check_length(config, recipe.train.seq_len)
    require_causal(config, recipe)
    check_vocabulary_size(config, tokenizer)
    has_head = isinstance(saved, TaskConfig)
    if start is None or has_head or recipe.model:
        return new_model(recipe, config, start, progress, whole=not has_head)
    model = load_model(start, dtype=torch.float32)
    set_attention_backend(model, recipe.train.attention_backend)
    return model


def _evaluation(
    recipe: Recipe, validation: AnyBatches, tokenizer: Tokenizer
) -> tuple[Callable[[Any, Ranks], dict[str, float]], dict[str, object]]:
    """Return the function that computes the loss over sequential validation windows, and its settings."""
    s, shards = recipe.train, validation.shards
    windows = Windows.of(validation, s.evaluate_windows, s)
    carried = s.objective == "truncated_bptt"
    if carried:
        windows = replace(windows, rows=1)
    scores_all = windows.count == validation.samples_per_epoch and not validation.mask_document_starts
    counts_bytes = tokenizer.byte_lengths() is not None and shards.ledger.bytes > 0

    def evaluate(model: Any, ranks: Ranks) -> dict[str, float]:
        # a state that is carried passes through all windows
        readers = ALONE if carried else ranks
        loss = mean_loss(model, objective(s.objective), validation, windows.spans(), readers)
        metrics = {"loss": loss}
        if scores_all and counts_bytes:
            # the text's first token has nothing before it and costs what a uniform guess does
            nats = loss * (len(shards) - 1) + math.log(shards.vocab_size)
            metrics["bits_per_byte"] = nats / math.log(2) / shards.ledger.bytes
        return metrics

    return evaluate, {
        "data": shards.fingerprint[:8],
        "tok": tokenizer_name(tokenizer),
        "window": s.seq_len,
        "stride": s.seq_len,
        "windows": windows.count,
        **({"state": "carried"} if carried else {}),
        **({"start": "eos"} if start_id(recipe, tokenizer) is not None else {}),
        "documents": "apart" if recipe.data_as(CausalData).document_mask else "open",
        "starts": "unscored" if validation.mask_document_starts else "scored",
    }


def _sampler(recipe: Recipe, tokenizer: Tokenizer) -> Callable[[Any], str]:
    s = recipe.train
    sampling = Sampling(max_new_tokens=s.sample_tokens, seed=recipe.seed, past="slide")
    specials: Specials = "interpret" if recipe.data_as(CausalData).label_prefix else "refuse"
    if s.sample_every:
        try:
            tokenizer.prompt_ids(s.sample_prompt, specials=specials)
        except TokenizerError as error:
            raise RecipeError(f"train.sample_prompt {s.sample_prompt!r} cannot be read: {error}") from None

    def sample(model: Any) -> str:
        text = generate_text(model, tokenizer, s.sample_prompt, sampling, specials=specials)
        return s.sample_prompt + str(text)

    return sample
