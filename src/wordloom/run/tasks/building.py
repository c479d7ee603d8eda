"""Build the model of a training run from its recipe or a checkpoint, and set it up on its device."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from wordloom.data.batches.framed import TASK_TOKENS
from wordloom.errors import RecipeError, did_you_mean
from wordloom.models import (
    MODELS,
    PRESETS,
    TaskConfig,
    body_config,
    build,
    config_from,
    context_limit,
    encodes,
    family_of,
    translates,
)
from wordloom.models.building.attention import check_attention_dropout, set_attention, with_attention
from wordloom.models.building.build import skeleton
from wordloom.models.building.quantized import QUANTIZED_FAMILIES, quantize_model
from wordloom.models.task_model import BODIES, SUMMARIES
from wordloom.nn import set_attention_backend
from wordloom.nn.attention import Approximation, running_kernel
from wordloom.nn.recurrent import CELLS, Recurrent
from wordloom.progress import TrainingProgress
from wordloom.recipe import Recipe, TrainSettings
from wordloom.recipe.data import LabelledData, TaskTokens
from wordloom.recipe.recipe import LoraTable
from wordloom.run.prepare import recipe_tokenizer
from wordloom.text import Tokenizer
from wordloom.training import Trainer
from wordloom.training.gradient_checkpointing import checkpoint_blocks
from wordloom.training.plan import TuningMemory, check_fits, tuning_memory
from wordloom.training.precision import compile_blocks
from wordloom.weights import load_config, load_model, load_state, start_from
from wordloom.weights.saving import pads_with_end_token

log = logging.getLogger(__name__)

_HEAD = "head_dropout"  # the setting of [model] that belongs to the head
_ANY_VOCABULARY = 1000  # stands for the tokenizer's, which does not exist yet
TUNING = ("instruction", "preference")  # objectives whose plan compares the ways to tune
_DECIDED = ("pooler", "masked_lm_head", "next_sentence_head")  # parts of a body that the task decides on


def model_settings(recipe: Recipe) -> tuple[str, dict[str, Any]]:
    """Return the family that ``[model]`` names, and its settings: a preset's with the recipe's changes.

    A preset's ``forget_bias`` is dropped if the recipe's ``cell`` has no forget gate, or its gates no bias.

    Raises RecipeError unless the recipe names either a family or a preset, and for an unknown preset.
    """
    table = dict(recipe.model)
    preset, family = table.pop("preset", None), table.pop("family", None)
    if (preset is None) == (family is None):
        raise RecipeError("give either model.family with its settings, or model.preset")
    if preset is None:
        return str(family), table
    if not isinstance(preset, str) or preset not in PRESETS:
        raise RecipeError(f"unknown model.preset {preset!r}; {did_you_mean(str(preset), PRESETS)}")
    settings = dict(vars(PRESETS[preset]))
    gates = CELLS.get(str(table.get("cell")), ("f",))
    if "f" not in gates or table.get("bias") is False:
        settings.pop("forget_bias", None)
    return family_of(PRESETS[preset]), {**settings, **table}


def new_config(recipe: Recipe, tokenizer: Tokenizer, seq_len: int, *, without: str = "") -> Any:
    """Return the config of the recipe's model for a tokenizer, and by default for rows of ``seq_len`` tokens.

    ``without`` is a setting of ``[model]`` that the config does not have.
    """
    family, settings = model_settings(recipe)
    settings.pop(without, None)
    settings["vocab_size"] = recipe.model.get("vocab_size", tokenizer.vocab_size)
    if family in MODELS and hasattr(MODELS[family].config, "max_seq_len"):
        settings.setdefault("max_seq_len", seq_len)
    return config_from(family, **settings)


def check_length(config: Any, seq_len: int) -> None:
    """Raise RecipeError unless the model reads rows of ``seq_len`` tokens."""
    longest = context_limit(config)
    if longest is not None and seq_len > longest:
        raise RecipeError(
            f"rows of {seq_len} tokens are longer than model.max_seq_len {longest}; lower train.seq_len "
            "(train.long_seq_len), or raise model.max_seq_len"
        )


def check_vocabulary_size(config: Any, tokenizer: Tokenizer) -> None:
    """Raise RecipeError unless the model has an embedding for each token."""
    if config.vocab_size < tokenizer.vocab_size:
        raise RecipeError(
            f"model.vocab_size {config.vocab_size} is below the tokenizer's {tokenizer.vocab_size}; raise "
            "it, or leave it out"
        )


def takes_model_of_start(recipe: Recipe, start: Path | None) -> bool:
    """Return whether the recipe leaves the model to the checkpoint ``start``, but for its attention."""
    return start is not None and recipe.model.keys() <= {"attention"}


def check_model(recipe: Recipe, start: Path | None) -> None:
    """Raise ConfigError or RecipeError for settings that the recipe's model cannot have.

    Data may take long to prepare; this needs none. It checks the families that have kinds of attention.
    """
    attention: Any = recipe.model.get("attention")
    others = sorted(recipe.model.keys() - {"attention"})
    tuned = recipe.train.objective in TUNING
    if start is not None and tuned and others and not recipe.model.keys() & {"family", "preset"}:
        raise RecipeError(
            f"the model is that of {start}, and the recipe has model.{others[0]}; leave it out, or name the "
            "whole model (model.family)"
        )
    if start is not None and tuned and not others:
        check_length(body_config(load_config(start)), recipe.train.seq_len)
    if start is not None and attention is None:
        return  # other settings must fit the weights of start, which is checked as they are read
    if start is not None and takes_model_of_start(recipe, start):
        config = with_attention(body_config(load_config(start)), attention)
    else:
        family, settings = model_settings(recipe)
        if family not in MODELS or not (attention or hasattr(MODELS[family].config, "patterns")):
            return  # an unknown family is reported with the names of all
        settings.pop(_HEAD, None)
        config = config_from(family, **{"vocab_size": _ANY_VOCABULARY, **settings})
    check_attention_dropout(config)
    set_attention_backend(skeleton(config), recipe.train.attention_backend)


def with_recipe_attention(recipe: Recipe, config: Any) -> Any:
    """Return ``config`` with the attention that the recipe names, if it names any."""
    attention = recipe.model.get("attention")
    return config if attention is None else with_attention(config, attention)


def ways_to_tune(recipe: Recipe, config: Any) -> TuningMemory | None:
    """Return the memory of each way to tune a model of ``config``; None for a run that tunes none.

    The adapter is that of ``[lora]``, or the default one.
    """
    if recipe.start_from is None or (recipe.lora is None and recipe.train.objective not in TUNING):
        return None
    table = recipe.lora or LoraTable.model_validate({})
    return tuning_memory(config, recipe.train, rank=table.rank, targets=table.targets, dora=table.dora)


def _in_8_bits(recipe: Recipe, start: Path, config: Any) -> bool:
    """Return whether the run needs the weights of ``start`` in 8 bits only, so that they are read as such.

    A model with a task head is quantized later, because its head stays as it is.
    """
    asked = recipe.lora is not None and recipe.lora.base == "int8"
    known = family_of(config) in QUANTIZED_FAMILIES
    return asked and known and type(load_config(start)) is type(config)


def new_model(
    recipe: Recipe,
    config: Any,
    start: Path | None,
    progress: TrainingProgress,
    *,
    extra_tokens: bool = False,
    whole: bool = False,
) -> Any:
    """Return the model of ``config``: from scratch, or with the weights that the checkpoint ``start`` has.

    ``extra_tokens`` is that of :func:`wordloom.weights.start_from`; ``whole`` requires all weights.
    """
    ways = ways_to_tune(recipe, config)
    needed = None
    if recipe.lora is not None and ways is not None:
        needed = ways.lora_int8 if recipe.lora.base == "int8" else ways.lora
    check_fits(config, recipe.train, needed=needed, ways=ways)
    if start is not None:
        before, now = (getattr(body_config(c), "attention", None) for c in (load_config(start), config))
        if before != now:
            progress.say(f"attention   {before} in {start}, now {now}")
    if start is not None and _in_8_bits(recipe, start, config):
        model = load_model(start, mapped=True)
        quantize_model(model)
        if before != now:
            set_attention(model, config.attention)
        progress.say(f"weights     those of {start}, in 8 bits")
        set_attention_backend(model, recipe.train.attention_backend)
        return model
    model = build(config, generator=torch.Generator().manual_seed(recipe.seed))
    if start is not None and whole:
        load_state(model, start)
    elif start is not None:
        progress.say(start_from(model, start, extra_tokens=extra_tokens).lines())
    set_attention_backend(model, recipe.train.attention_backend)
    return model


def set_up_blocks(
    trainer: Trainer,
    settings: TrainSettings,
    *,
    masked: bool = False,
    padded: bool = False,
    is_causal: bool = False,
    tokens: float,
    seq_len: int = 0,
) -> str:
    """Apply gradient checkpointing and compilation as ``settings`` ask; return a few words on what runs.

    They name the attention kernels for a pass of about ``tokens`` tokens in rows of ``seq_len`` (0: short
    ones). See :func:`~wordloom.nn.attention.running_kernel` for ``is_causal``, ``masked`` and ``padded``.
    """
    model: Any = trainer.model
    if settings.gradient_checkpointing:
        checkpoint_blocks(model)
    compiled = compile_blocks(model, settings, trainer.device)
    layers = [block.attention for block in model.blocks if hasattr(block, "attention")]
    if not layers:
        return compiled
    elsewhere = compiled.startswith("compiled")  # then PyTorch chooses the kernel of exact attention
    kernels = []
    for attention in {layer.pattern: layer for layer in layers}.values():
        pattern = attention.pattern
        kernels.append(running_kernel(
            settings.attention_backend,
            head_dim=attention.head_dim,
            device=trainer.device,
            dtype=trainer.precision.compute_dtype,
            dropout=attention.dropout,
            masked=masked or (elsewhere and pattern is not None),
            padded=padded,
            elements=0 if elsewhere else int(tokens) * attention.n_heads * attention.head_dim,
            n_keys=seq_len,
            is_causal=is_causal,
            pattern=None if elsewhere and not isinstance(pattern, Approximation) else pattern,
        ))  # fmt: skip
    names = [f"'{name}'" for name in dict.fromkeys(kernels)]
    by = f"kernel{'s' if len(names) > 1 else ''} {' and '.join(names)}"
    if all(layer.pattern is None for layer in layers):
        return f"{compiled}, attention {by}"
    return f"{compiled}, attention {body_config(model.config).attention} by {by}"


def set_up_causal(trainer: Trainer, settings: TrainSettings, *, masked: bool) -> str:
    """Set up the blocks of a causal model, recurrent or not; see :func:`set_up_blocks`.

    ``masked`` says whether documents do not see one another.
    """
    model: Any = trainer.model
    rows = settings.micro_batch_size or settings.batch_size
    layer: Any = model.blocks[0]
    if not isinstance(layer, Recurrent):
        length = settings.seq_len
        return set_up_blocks(
            trainer, settings, is_causal=True, masked=masked, tokens=rows * length, seq_len=length
        )
    if settings.gradient_checkpointing:
        checkpoint_blocks(model)
    compiled = compile_blocks(model, settings, trainer.device)
    x = torch.empty(rows, settings.seq_len, 1, device=trainer.device)
    with trainer.precision.autocast():
        kernel = layer.kernel_for(x, starts=masked)
    return f"{compiled}, {layer.cell} by the kernel '{kernel}'"


def require_causal(config: Any, recipe: Recipe) -> None:
    """Raise RecipeError for a model that does not continue texts."""
    family = family_of(config)
    if encodes(config):
        raise RecipeError(
            f"model.family '{family}' reads texts in both directions and writes none; take "
            "train.objective 'masked_lm', or a model.family that writes: gpt, gpt2, llama, rnn or cbow"
        )
    if translates(config):
        raise RecipeError(
            f"model.family '{family}' turns one text into another, and train.objective "
            f"'{recipe.train.objective}' learns to continue one; take gpt, gpt2, llama, rnn or cbow"
        )


# -- bodies with a head ------------------------------------------------------------------------------------


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
