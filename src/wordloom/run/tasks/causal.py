"""Causal language models in a training run: windows of tokens, attention kernels, samples of text."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from wordloom.errors import RecipeError
from wordloom.evaluate import evaluate_batches
from wordloom.evaluate.reading import tokenizer_name
from wordloom.generate import Sampling, generate_text
from wordloom.models import (
    MODELS,
    TaskConfig,
    build,
    config_from,
    context_limit,
    encodes,
    family_of,
    translates,
)
from wordloom.nn import set_attention_backend
from wordloom.nn.recurrent import Recurrent
from wordloom.objectives import objective
from wordloom.progress import TrainingProgress
from wordloom.recipe import Recipe
from wordloom.recipe.data import CausalData
from wordloom.run.prepare import Prepared, ledger_json, prepare_recipe
from wordloom.run.tasks.model_settings import model_settings
from wordloom.run.tasks.placement import set_up_blocks
from wordloom.run.tasks.task import Task
from wordloom.text import Specials, Tokenizer
from wordloom.training import Trainer
from wordloom.training.gradient_checkpointing import checkpoint_blocks
from wordloom.training.plan import check_fits
from wordloom.training.precision import compile_blocks
from wordloom.weights import load_config, load_model, load_state, save_model, start_from

__all__ = ["causal_task"]


def causal_task(recipe: Recipe, start: Path | None, progress: TrainingProgress) -> Task:
    """Return the task of predicting next tokens; ``start`` is a checkpoint to begin with."""
    tokenizer = Tokenizer.from_pretrained(start) if start else None
    prepared = prepare_recipe(recipe, tokenizer=tokenizer, progress=progress)

    def build_model() -> Any:
        model = _model(recipe, prepared, start, progress)
        _check_family(recipe, model)
        set_attention_backend(model, recipe.train.attention_backend)
        return model

    def save(model: Any, folder: Path, overwrite: bool) -> None:
        save_model(model, folder, tokenizer=prepared.tokenizer, overwrite=overwrite)

    return Task(
        settings=recipe.train,
        batches=prepared.batches,
        fingerprints={"data": prepared.fingerprint, "tokenizer": prepared.tokenizer.fingerprint},
        ledger=ledger_json({"train": prepared.batches, "validation": prepared.validation}),
        build_model=build_model,
        set_up=lambda trainer: _set_up(trainer, recipe),
        evaluate=None if prepared.validation is None else _evaluator(recipe, prepared),
        scored={} if prepared.validation is None else _scored(recipe, prepared),
        sample=_sampler(recipe, prepared.tokenizer),
        save=save,
    )


def _set_up(trainer: Trainer, recipe: Recipe) -> str:
    """Apply gradient checkpointing and compilation; return a few words on what runs."""
    s, model = recipe.train, trainer.model
    rows = s.micro_batch_size or s.batch_size
    layer: Any = model.blocks[0]  # type: ignore[index]
    if not isinstance(layer, Recurrent):
        return set_up_blocks(
            trainer, s, masked=recipe.data_as(CausalData).document_mask, tokens=rows * s.seq_len
        )
    if s.gradient_checkpointing:
        checkpoint_blocks(model)
    compiled = compile_blocks(model, s, trainer.device)
    x = torch.empty(rows, s.seq_len, 1, device=trainer.device)
    with trainer.precision.autocast():
        kernel = layer.kernel_for(x, starts=recipe.data_as(CausalData).document_mask)
    return f"{compiled}, {layer.cell} by the kernel '{kernel}'"


def _model(recipe: Recipe, prepared: Prepared, start: Path | None, progress: TrainingProgress) -> Any:
    """Return the recipe's model, new or with the weights of the checkpoint ``start``.

    A recipe without ``[model]`` takes the checkpoint's; one with it must agree with the checkpoint in
    everything but dropout and max_seq_len. A checkpoint with a head for a task gives its body.
    """
    config = None if start is None else load_config(start)
    if start is None or config is None or recipe.model:
        model: Any = _new_model(recipe, prepared)
    elif isinstance(config, TaskConfig):
        _require_causal(config.body, recipe)
        model = build(config.body, generator=_generator(recipe))
    else:
        _require_causal(config, recipe)
        model = load_model(start, dtype=torch.float32)
    if start is not None and isinstance(config, TaskConfig):
        progress.say(start_from(model, start).lines())
    elif start is not None and recipe.model:
        load_state(model, start)
    if model.config.vocab_size < prepared.tokenizer.vocab_size:
        raise RecipeError(
            f"model.vocab_size {model.config.vocab_size} is below the tokenizer's "
            f"{prepared.tokenizer.vocab_size}; raise it, or leave it out"
        )
    return model


def _check_family(recipe: Recipe, model: Any) -> None:
    """Raise RecipeError for settings of the loop that ``model`` has no use for."""
    family, s = family_of(model.config), recipe.train
    recurrent = isinstance(model.blocks[0], Recurrent)
    if s.objective == "truncated_bptt" and not recurrent:
        raise RecipeError(
            f"train.objective 'truncated_bptt' carries the state of a recurrent model over, and model.family "
            f"'{family}' has none; take 'causal_lm', or model.family 'rnn'"
        )
    recipe.check_family(family)


def _new_model(recipe: Recipe, prepared: Prepared) -> Any:
    family, settings = model_settings(recipe)
    settings["vocab_size"] = recipe.model.get("vocab_size", prepared.tokenizer.vocab_size)
    if family in MODELS and hasattr(MODELS[family].config, "max_seq_len"):
        settings.setdefault("max_seq_len", recipe.train.seq_len)
    config = config_from(family, **settings)
    _require_causal(config, recipe)
    longest = context_limit(config)
    if longest is not None and longest < recipe.train.seq_len:
        raise RecipeError(
            f"train.seq_len {recipe.train.seq_len} is above model.max_seq_len {longest}; "
            "raise the one or lower the other"
        )
    check_fits(config, recipe.train)
    return build(config, generator=_generator(recipe))


def _generator(recipe: Recipe) -> torch.Generator:
    """Return the random generator of a new model's weights."""
    return torch.Generator().manual_seed(recipe.seed)


def _require_causal(config: Any, recipe: Recipe) -> None:
    """Raise RecipeError for a model that does not continue texts."""
    family = family_of(config)
    if encodes(config):
        raise RecipeError(
            f"model.family '{family}' reads texts in both directions and writes none; take "
            "train.objective 'masked_lm', or a model.family that writes: gpt, gpt2, llama or rnn"
        )
    if translates(config):
        raise RecipeError(
            f"model.family '{family}' turns one text into another, and train.objective "
            f"'{recipe.train.objective}' learns to continue one; take gpt, gpt2, llama or rnn"
        )


def _windows(recipe: Recipe, prepared: Prepared) -> int:
    """Return the number of windows of the validation part that are scored."""
    assert prepared.validation is not None
    available = prepared.validation.samples_per_epoch
    return min(available, recipe.train.evaluate_windows or available)


def _scored(recipe: Recipe, prepared: Prepared) -> dict[str, object]:
    assert prepared.validation is not None
    assert prepared.validation_shards is not None
    return {
        "data": prepared.validation_shards.fingerprint[:8],
        "tok": tokenizer_name(prepared.tokenizer),
        "window": recipe.train.seq_len,
        "stride": recipe.train.seq_len,
        "windows": _windows(recipe, prepared),
        **({"state": "carried"} if recipe.train.objective == "truncated_bptt" else {}),
        "documents": "apart" if recipe.data_as(CausalData).document_mask else "open",
        "starts": "unscored" if prepared.validation.mask_document_starts else "scored",
    }


def _evaluator(recipe: Recipe, prepared: Prepared) -> Callable[[Any], dict[str, float]]:
    """Return the function that computes the loss over sequential validation windows."""
    s = recipe.train
    validation, shards = prepared.validation, prepared.validation_shards
    assert validation is not None
    assert shards is not None
    windows = _windows(recipe, prepared)
    rows = 1 if s.objective == "truncated_bptt" else s.micro_batch_size or s.batch_size
    scores_all = windows == validation.samples_per_epoch and not validation.mask_document_starts
    counts_bytes = prepared.tokenizer.byte_lengths() is not None

    def evaluate(model: Any) -> dict[str, float]:
        starts = range(0, windows, rows)
        batches = (validation.batch(start, min(rows, windows - start)) for start in starts)
        loss = evaluate_batches(model, objective(s.objective), batches).value
        assert loss is not None
        metrics = {"loss": loss}
        if scores_all and counts_bytes:
            # the text's first token has nothing before it and costs what a uniform guess does
            nats = loss * (len(shards) - 1) + math.log(shards.vocab_size)
            metrics["bits_per_byte"] = nats / math.log(2) / shards.ledger.bytes
        return metrics

    return evaluate


def _sampler(recipe: Recipe, tokenizer: Tokenizer) -> Callable[[Any], str]:
    s = recipe.train
    sampling = Sampling(max_new_tokens=s.sample_tokens, seed=recipe.seed, past="slide")

    specials: Specials = "interpret" if recipe.data_as(CausalData).label_prefix else "refuse"

    def sample(model: Any) -> str:
        text = generate_text(model, tokenizer, s.sample_prompt, sampling, specials=specials)
        return s.sample_prompt + str(text)

    return sample
