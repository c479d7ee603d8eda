"""Masked language models in a training run, on windows or on sentence pairs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

from wordloom.data import (
    Corpus,
    LabelledDocuments,
    Marks,
    MaskedBatches,
    Masker,
    Masking,
    SentencePairBatches,
    Sentences,
    prepare,
)
from wordloom.data.batches.masking import EMPTY
from wordloom.data.batches.mixed import LengthSchedule
from wordloom.data.shards.prepared import PreparedCorpus
from wordloom.errors import RecipeError
from wordloom.evaluate.forward import dtype_name
from wordloom.evaluate.masked import masked_scores
from wordloom.evaluate.reading import tokenizer_name
from wordloom.evaluate.score import Scores
from wordloom.models import MODELS, BertConfig, body_config, encodes, family_of
from wordloom.models.building.cost import flops_per_token
from wordloom.progress import TrainingProgress
from wordloom.recipe import MaskingSettings, Recipe
from wordloom.recipe.data import MaskedData
from wordloom.run.prepare import corpus_tokenizer, joined_fingerprint, ledger_json, recipe_corpus
from wordloom.run.tasks.building import (
    check_length,
    check_vocabulary_size,
    new_config,
    new_model,
    set_up_blocks,
    takes_model_of_start,
    with_recipe_attention,
)
from wordloom.run.tasks.task import Task, Windows
from wordloom.text import Tokenizer
from wordloom.training.plan import Costs
from wordloom.training.ranks import Ranks
from wordloom.weights import load_config, save_model
from wordloom.weights.configs import format_of

AnyBatches: TypeAlias = MaskedBatches | SentencePairBatches


def masked_task(recipe: Recipe, start: Path | None, progress: TrainingProgress) -> Task:
    """Return the task of predicting masked tokens and perhaps next sentences.

    ``start`` is a checkpoint to begin with.
    """
    tokenizer, parts = _prepared(recipe, start, progress)
    config, s = _config(recipe, tokenizer, start), recipe.train
    rows = s.micro_batch_size or s.batch_size
    evaluate, scored = None, dict[str, object]()
    if "validation" in parts:
        windows = Windows.of(parts["validation"], s.evaluate_windows, s)
        evaluate, scored = partial(_metrics, windows=windows), _scored(windows, tokenizer)
    return Task(
        settings=s,
        batches=parts["train"],
        fingerprints={
            "data": joined_fingerprint(part.fingerprint for part in parts.values()),
            "tokenizer": tokenizer.fingerprint,
        },
        ledger=ledger_json(parts),
        build_model=lambda: new_model(recipe, config, start, progress),
        set_up=lambda trainer: set_up_blocks(
            trainer,
            s,
            padded=s.objective == "masked_lm+next_sentence",
            tokens=rows * s.seq_len,
            seq_len=s.seq_len,
        ),
        evaluate=evaluate,
        scored=scored,
        save=partial(save_model, tokenizer=tokenizer),
        tokenizer=tokenizer,
        costs=_costs(recipe, config),
    )


def validation_scores(encoder: Any, recipe: Recipe) -> Scores:
    """Return the scores of a :class:`~wordloom.run.models.text_encoder.TextEncoder` on validation data.

    The recipe of its run names the data, which are masked as in training. Raises RecipeError if that recipe
    trains no masked language model, or holds out nothing.
    """
    if not recipe.train.objective.startswith("masked_lm"):
        vectors = recipe.train.objective in ("contrastive", "cosine_similarity")
        raise RecipeError(
            f"{encoder.folder} was trained with objective '{recipe.train.objective}', which masks no tokens; "
            + ("give scored pairs and --task similarity" if vectors else "give a file")
        )
    tokenizer, parts = _prepared(recipe, encoder.folder, TrainingProgress())
    if "validation" not in parts:
        raise RecipeError(f"the recipe of {encoder.folder} holds out no validation data; give a file")
    windows = Windows.of(parts["validation"], recipe.train.evaluate_windows, recipe.train)
    settings = {**_scored(windows, tokenizer), "dtype": dtype_name(encoder.model)}
    return masked_scores(encoder.model, windows.batches(), settings=settings)


def _metrics(model: Any, ranks: Ranks, windows: Windows) -> dict[str, float]:
    """Return the scores on the validation part, whose masks are fixed."""
    own, others = ranks.divided(windows.spans())
    part = windows.part
    scores = masked_scores(
        model,
        (part.batch(*span) for span in own),
        settings={},
        reduce=ranks.summed,
        unscored=(part.batch(*span) for span in others),
    )
    return {name: score.value for name, score in scores.items() if score.value is not None}


def _scored(windows: Windows, tokenizer: Tokenizer) -> dict[str, object]:
    return {
        "data": windows.part.fingerprint[:8],
        "tok": tokenizer_name(tokenizer),
        "window": windows.part.seq_len,
        "windows": windows.count,
    }


def _prepared(
    recipe: Recipe, start: Path | None, progress: TrainingProgress
) -> tuple[Tokenizer, dict[str, AnyBatches | LengthSchedule]]:
    """Return the tokenizer and the batches of each part, "train" and perhaps "validation"."""
    corpus = recipe_corpus(recipe)
    assert not isinstance(corpus, LabelledDocuments), (
        "data.label_prefix has no meaning here, and the recipe says so"
    )
    tokenizer = Tokenizer.from_pretrained(start) if start else corpus_tokenizer(recipe, corpus, progress)
    s = recipe.train

    batches = partial(masked_part, recipe, corpus, tokenizer, progress=progress)
    train = batches("train", s.seq_len)
    parts: dict[str, AnyBatches | LengthSchedule] = {"train": train}
    if s.long_seq_len is not None:
        long = batches("train", s.long_seq_len)
        parts["train"] = LengthSchedule(train, long, switch=_switch(recipe, train.samples_per_epoch))
    if recipe.data.holds_out:
        parts["validation"] = batches("validation", s.long_seq_len or s.seq_len)
    for part in parts.values():
        progress.say(part.ledger.lines())
    return tokenizer, parts


def masked_part(
    recipe: Recipe,
    corpus: Corpus | PreparedCorpus,
    tokenizer: Tokenizer,
    part: Literal["train", "validation"],
    seq_len: int,
    progress: TrainingProgress,
) -> AnyBatches:
    """Return the rows of a part of ``corpus``, masked as the recipe says; only training rows are permuted."""
    d, pairs = recipe.data_as(MaskedData), recipe.train.objective == "masked_lm+next_sentence"
    masking = Masking(**recipe.masking.model_dump(exclude={"dynamic"}))
    with progress.data(part) as show:
        assert not pairs or isinstance(corpus, Corpus), "refused by prepared_corpus"
        source = Sentences(corpus, d.sentences) if pairs and isinstance(corpus, Corpus) else corpus
        end: Any = "none" if pairs else "sep" if tokenizer.eos_id is None else "eos"
        shards = prepare(source, tokenizer, part=part, specials=d.specials, end=end, progress=show)
    kind = SentencePairBatches if pairs else MaskedBatches
    masker = Masker(masking, tokenizer, empty_id=tokenizer.token_to_id(EMPTY))
    return kind(
        shards,
        seq_len=seq_len,
        marks=Marks.of(tokenizer),
        masker=masker,
        seed=recipe.seed,
        order="permutation" if part == "train" else "sequential",
        dynamic=recipe.masking.dynamic,
    )


def _switch(recipe: Recipe, samples_per_epoch: int) -> int:
    """Return the first sample of the long rows, at the beginning of a step."""
    s = recipe.train
    assert s.long_seq_len is not None
    steps = s.steps or max(1, round((s.epochs or 0.0) * samples_per_epoch / s.batch_size))
    return (steps - round(s.long_share * steps)) * s.batch_size


_DECIDED = ("masked_lm_head", "next_sentence_head", "empty_id")  # by the objective and [masking]


def _config(recipe: Recipe, tokenizer: Tokenizer, start: Path | None) -> Any:
    """Return the config of the recipe's or ``start``'s encoder, with the heads that the objective needs."""
    s, pairs = recipe.train, recipe.train.objective == "masked_lm+next_sentence"
    longest = max(s.seq_len, s.long_seq_len or 0)
    for name in _DECIDED:
        if name in recipe.model:
            raise RecipeError(f"model.{name} follows from train.objective and [masking]: leave it out")
    from_start = takes_model_of_start(recipe, start)
    if start is not None and from_start:
        config = with_recipe_attention(recipe, body_config(load_config(start)))
    else:
        config = new_config(recipe, tokenizer, longest)
    if not encodes(config):
        able = " or ".join(name for name, each in MODELS.items() if issubclass(each.config, BertConfig))
        raise RecipeError(
            f"model.family '{family_of(config)}' does not read in both directions, as train.objective "
            f"'{s.objective}' asks; take {able}"
        )
    pooler = pairs or config.pooler if from_start else recipe.model.get("pooler", pairs)
    # without "empty", also the token of a checkpoint that was trained with it is not used
    empty_id = tokenizer.token_to_id(EMPTY) if recipe.masking.placeholder == "empty" else None
    heads = {"masked_lm_head": True, "next_sentence_head": pairs, "pooler": pooler, "empty_id": empty_id}
    config = replace(config, **heads)
    if pairs and config.type_vocab_size < 2:
        raise RecipeError(
            f"next sentences are of two segments and model.type_vocab_size is {config.type_vocab_size}; give "
            'it 2, or take train.objective = "masked_lm"'
        )
    check_length(config, longest)
    check_vocabulary_size(config, tokenizer)
    format_of(config).token_settings({"pad_token_id": tokenizer.pad_id})  # refuses before the work
    return config


def _costs(recipe: Recipe, config: Any) -> Costs:
    """Return the operations per token: those of the layers, and of the head for the scored tokens."""
    s = recipe.train

    def of(length: int, longer: tuple[float, Costs] | None = None) -> Costs:
        each = round(training_flops(config, recipe.masking, length))
        return Costs(flops_per_token=each, tokens_per_sample=length, dense=True, longer=longer)

    return of(s.seq_len, (s.long_share, of(s.long_seq_len)) if s.long_seq_len is not None else None)


def training_flops(config: Any, masking: MaskingSettings, seq_len: int) -> float:
    """Return the operations to train on a token; the head reads only the scored share of the tokens."""
    m = masking
    share = m.share if m.kind == "bert" else 1.0 if m.scored == "all" else m.mask_words + m.substitute_words
    flops = flops_per_token(config, context=seq_len)
    hidden = flops.head + 2 * config.dim**2  # lm_head and mlm_transform
    return 3 * (flops.forward - hidden + share * hidden)
