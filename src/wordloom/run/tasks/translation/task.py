"""Translation models in a training run: pairs of texts, batches by tokens, the loss on held-out pairs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from wordloom.data import PairBatches, PairCorpus, prepare_pairs
from wordloom.errors import RecipeError
from wordloom.evaluate.score import perplexity_of
from wordloom.models import (
    MODELS,
    BertGenerationConfig,
    body_config,
    config_from,
    context_limit,
    encodes,
    family_of,
    translates,
)
from wordloom.models.building.cost import flops_per_token
from wordloom.objectives import objective
from wordloom.progress import TrainingProgress
from wordloom.recipe import Recipe
from wordloom.recipe.data import TranslationData
from wordloom.run.models.tokenizers import Vocabularies, read_vocabularies
from wordloom.run.prepare import joined_fingerprint, ledger_json, recipe_tokenizer
from wordloom.run.tasks.building import (
    model_settings,
    new_model,
    takes_model_of_start,
    with_recipe_attention,
)
from wordloom.run.tasks.task import Task, mean_loss
from wordloom.training import Trainer
from wordloom.training.gradient_checkpointing import checkpoint_blocks
from wordloom.training.plan import Costs
from wordloom.training.ranks import Ranks
from wordloom.weights import config_from_bert, load_config, save_model, start_from_bert
from wordloom.weights.configs import FORMATS, format_of
from wordloom.weights.formats import Format

#: The sizes that the tokenizers decide.
_VOCABULARIES = ("vocab_size", "source_vocab_size")


def pair_corpus(recipe: Recipe) -> PairCorpus:
    """Return the pairs that ``[data]`` names."""
    d = recipe.data_as(TranslationData)
    given = {"source_column": d.source_column, "target_column": d.target_column, "targets": d.targets}
    settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if d.validation is not None:
        settings |= {"split": "files", "validation_sources": d.validation}
        if d.validation_targets is not None:
            settings["validation_targets"] = d.validation_targets
    elif d.split != "hash":
        raise RecipeError(
            "pairs are split by a hash of the source, so that one text is on one side: set data.split = "
            '"hash", or name data.validation'
        )
    else:
        settings["validation_fraction"] = d.validation_fraction
    return PairCorpus(sources=d.train, header=d.header, encoding_errors=d.row_errors, **settings)


def recipe_vocabularies(recipe: Recipe, corpus: PairCorpus, progress: TrainingProgress) -> Vocabularies:
    """Return the tokenizers that ``[tokenizer]`` asks for: read, or trained on both sides or on each."""

    def texts(*sides: int) -> Iterator[str]:
        return ((pair.source, pair.target)[side] for pair in corpus.pairs("train") for side in sides)

    t = recipe.tokenizer
    if not t.separate and t.source_path is None:
        joint = recipe_tokenizer(recipe, texts(0, 1), progress, "pairs, both sides").with_end()
        return Vocabularies(joint, joint)
    changes: dict[str, Any] = {"path": t.source_path, "vocab_size": t.source_vocab_size or t.vocab_size}
    of_sources = recipe.model_copy(update={"tokenizer": t.model_copy(update=changes)})
    return Vocabularies(
        recipe_tokenizer(of_sources, texts(0), progress, "pairs' sources").with_end(),
        recipe_tokenizer(recipe, texts(1), progress, "pairs' targets").with_end(),
    )


def translation_task(recipe: Recipe, start: Path | None, progress: TrainingProgress) -> Task:
    """Return the task of translating the recipe's pairs; ``start`` is a checkpoint to begin with."""
    s, corpus = recipe.train, pair_corpus(recipe)
    form = _form(recipe, start)
    if start is not None:
        vocabularies = read_vocabularies(start, load_config(start), form)
    else:
        vocabularies = recipe_vocabularies(recipe, corpus, progress).begun(form)
    if vocabularies.lacks is not None:
        raise RecipeError(
            f"the tokenizer has no {vocabularies.lacks} token, which pairs need to end and to begin with; "
            "take tokenizer.kind = bpe, wordpiece, unigram or word with its own special tokens"
        )
    config = _config(recipe, start, vocabularies)
    parts = _batches(recipe, corpus, vocabularies, context_limit(config), progress)
    train, held_out = parts["train"], parts.get("validation")
    _, target_tokens = train.tokens_per_sample

    def build_model() -> Any:
        both_sides = isinstance(config, BertGenerationConfig)
        if start is None or not both_sides or not encodes(body_config(load_config(start))):
            return new_model(recipe, config, start, progress, whole=True)
        model = new_model(recipe, config, None, progress)
        for started in start_from_bert(model, start, cross_attention=s.cross_attention):
            progress.say(started.lines())
        return model

    evaluate, scored = None, dict[str, object]()
    if held_out is not None:
        evaluate = partial(_evaluate, held_out=held_out)
        scored = {"data": held_out.fingerprint[:8], "tok": vocabularies.name, "pairs": len(held_out.shards)}
    pairs_per_batch = len(train.shards) / train.samples_per_epoch
    mean_length = max(1, round(target_tokens / max(1.0, pairs_per_batch)))
    return Task(
        settings=s.model_copy(update={"micro_batch_size": 1}),
        batches=train,
        fingerprints={
            "data": joined_fingerprint(batches.fingerprint for batches in parts.values()),
            "tokenizer": vocabularies.fingerprint,
        },
        ledger=ledger_json(parts),
        build_model=build_model,
        set_up=_set_up,
        evaluate=evaluate,
        scored=scored,
        save=partial(
            save_model,
            tokenizer=vocabularies.target,
            source_tokenizer=vocabularies.beside,
            generation=_generation(config, vocabularies),
        ),
        costs=Costs(
            flops_per_token=flops_per_token(config, context=mean_length).training,
            tokens_per_sample=target_tokens,
            dense=True,
        ),
    )


def _batches(
    recipe: Recipe,
    corpus: PairCorpus,
    vocabularies: Vocabularies,
    longest: int | None,
    progress: TrainingProgress,
) -> dict[str, PairBatches]:
    """Return the batches of each part for a model that reads ``longest`` tokens."""
    d = recipe.data_as(TranslationData)
    limits: dict[str, Any] = {
        "max_source_tokens": d.max_source_tokens or longest,
        "max_target_tokens": d.max_target_tokens or longest,
    }
    for name, limit in limits.items():
        if longest is not None and limit is not None and limit > longest:
            raise RecipeError(f"data.{name} {limit} is above model.max_seq_len {longest}; lower it")
    begins: dict[str, Any] = {name: getattr(vocabularies, name) for name in ("start_id", "source_start_id")}
    if vocabularies.source_start_id is not None and limits["max_source_tokens"] is not None:
        limits["max_source_tokens"] -= 1  # shards count the end, and nothing before
    parts: dict[str, PairBatches] = {}
    orders: dict[str, Any] = {"train": {"seed": recipe.seed}}
    if d.holds_out:
        orders["validation"] = {"order": "sequential"}
    for part, order in orders.items():
        with progress.data(part) as show:
            shards = prepare_pairs(
                corpus,
                vocabularies.source,
                vocabularies.target,
                part=part,  # type: ignore[arg-type]
                overlong=d.overlong,
                specials=d.specials,
                progress=show,
                **limits,
            )
        parts[part] = PairBatches(shards, batch_tokens=recipe.train.batch_tokens, **begins, **order)
        progress.say(parts[part].ledger.lines())
    return parts


def _config(recipe: Recipe, start: Path | None, vocabularies: Vocabularies) -> Any:
    """Return the config of the recipe's model; without one that of ``start``, or of two of its encoder."""
    if start is not None and takes_model_of_start(recipe, start):
        config = load_config(start)
        config = config_from_bert(start) if encodes(body_config(config)) else config
        config = with_recipe_attention(recipe, config)
        family = family_of(config)
    else:
        family, settings = model_settings(recipe)
        for name in _VOCABULARIES:
            if name in recipe.model:
                raise RecipeError(f"model.{name} is the tokenizer's; leave it out")
        settings |= {"vocab_size": vocabularies.target.vocab_size}
        if vocabularies.beside is not None:
            settings |= {"source_vocab_size": vocabularies.source.vocab_size}
            settings |= _unshared(recipe, family)
        if start is not None and family == "bert_generation" and encodes(body_config(load_config(start))):
            encoder = vars(config_from_bert(start))
            settings = encoder | settings | {name: encoder[name] for name in _VOCABULARIES}
        if _has(family, "padding_idx"):
            pad_id = vocabularies.target.pad_id
            settings.setdefault("padding_idx", pad_id if vocabularies.source.pad_id == pad_id else None)
        config = config_from(family, **settings)
    if not translates(config):
        able = [name for name, each in MODELS.items() if hasattr(each.model, "encode")]
        raise RecipeError(
            f"model.family '{family}' turns no text into another, as train.objective 'translation' asks; "
            f"take {' or '.join(able)}"
        )
    return config


def _form(recipe: Recipe, start: Path | None) -> Format:
    """Return the folder format of the recipe's model, or of one that starts from the checkpoint ``start``."""
    if start is None or not takes_model_of_start(recipe, start):
        family, _ = model_settings(recipe)
        # an unknown family has no config, and the error names those that are known
        return FORMATS[family] if family in FORMATS else format_of(config_from(family))
    config = load_config(start)
    return FORMATS["bert_generation"] if encodes(body_config(config)) else format_of(config)


def _has(family: str, setting: str) -> bool:
    known = fields(MODELS[family].config) if family in MODELS else ()
    return any(field.name == setting for field in known)


def _generation(config: Any, vocabularies: Vocabularies) -> dict[str, Any]:
    """Return the generation settings with which other tools search as
    :meth:`~wordloom.run.models.translator.Translator.translate` does."""
    longest, target = context_limit(config), vocabularies.target
    begun = {token for token in (target.pad_id, vocabularies.start_id) if token is not None}
    silent = begun - {target.eos_id}  # as Translator.silent_ids
    return {
        "num_beams": 5,
        "bad_words_ids": [[token] for token in sorted(silent)],
        **({} if longest is None else {"max_length": longest}),
        **({} if vocabularies.start_id is None else {"decoder_start_token_id": vocabularies.start_id}),
    }


def _unshared(recipe: Recipe, family: str) -> dict[str, bool]:
    """Return the setting that gives each side an embedding matrix of its own, if the family has it."""
    if recipe.model.get("share_embeddings"):
        raise RecipeError(
            "model.share_embeddings needs one vocabulary for both sides; leave it out, or tokenizer.separate "
            "(tokenizer.source_path)"
        )
    return {"share_embeddings": False} if _has(family, "share_embeddings") else {}


def _set_up(trainer: Trainer) -> str:
    if trainer.settings.gradient_checkpointing:
        checkpoint_blocks(trainer.model)
    return "eager"


def _evaluate(model: Any, ranks: Ranks, held_out: PairBatches) -> dict[str, float]:
    """Return loss and perplexity of the target tokens of the validation pairs."""
    spans = [(i, 1) for i in range(held_out.samples_per_epoch)]
    loss = mean_loss(model, objective("translation"), held_out, spans, ranks)
    return {"loss": loss, "perplexity": perplexity_of(loss)}
