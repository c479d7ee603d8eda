"""From a recipe to batches: corpus, tokenizer, shards."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from wordloom.data import CausalBatches, ContiguousBatches, Corpus, TokenShards, prepare
from wordloom.data.batches.causal import Order
from wordloom.data.batches.masking import EMPTY
from wordloom.data.rows.labelled import LabelledCorpus, Part
from wordloom.data.rows.labelled_documents import LabelledDocuments
from wordloom.errors import RecipeError
from wordloom.progress import TrainingProgress
from wordloom.recipe import Recipe
from wordloom.recipe.data import CausalData, TextData
from wordloom.run.recipe_rows import corpus_of
from wordloom.text import TOKENIZERS, Tokenizer

AnyCorpus: TypeAlias = Corpus | LabelledDocuments
AnyBatches: TypeAlias = CausalBatches | ContiguousBatches


def joined_fingerprint(parts: Iterable[str]) -> str:
    """Return the sha256 of several fingerprints and names."""
    return hashlib.sha256("/".join(parts).encode()).hexdigest()


def ledger_json(parts: Mapping[Part, Any] | Mapping[str, Any]) -> str:
    """Return the ledgers of parts, such as batches, as JSON."""
    ledgers = {name: part.ledger.as_dict() for name, part in parts.items()}
    return json.dumps(ledgers, indent=1, ensure_ascii=False)


def recipe_corpus(recipe: Recipe) -> AnyCorpus:
    """Return the corpus that ``[data]`` names."""
    d = recipe.data_as(TextData)
    if isinstance(d, CausalData) and d.label_prefix:
        return LabelledDocuments(corpus_of(recipe, LabelledCorpus))
    settings: dict[str, Any] = {"separator": d.separator, "encoding_errors": d.encoding_errors}
    if d.field is not None:
        settings["field"] = d.field
    if d.validation is not None:
        return Corpus(sources=d.train, split="files", validation_sources=d.validation, **settings)
    return Corpus(sources=d.train, split=d.split, validation_fraction=d.validation_fraction, **settings)


def prepare_recipe(
    recipe: Recipe, *, tokenizer: Tokenizer | None, progress: TrainingProgress
) -> tuple[Tokenizer, dict[Part, AnyBatches]]:
    """Return the tokenizer and the batches of each part; a tokenizer that is not given is trained."""
    corpus = recipe_corpus(recipe)
    if tokenizer is None:
        tokenizer = corpus_tokenizer(recipe, corpus, progress)
    if isinstance(corpus, LabelledDocuments):
        corpus.check(tokenizer)
    names: tuple[Part, ...] = ("train", "validation") if recipe.data.holds_out else ("train",)
    parts = {part: causal_part(recipe, corpus, tokenizer, part, progress) for part in names}
    for batches in parts.values():
        progress.say(batches.ledger.lines())
    shards = parts["train"].shards
    if unknown := _unknown(shards, tokenizer):
        progress.say(
            f"unknown: {unknown:,} of {len(shards):,} training tokens stand for text the tokenizer lacks"
        )
    if tokenizer.byte_lengths() is None:
        progress.say(
            f"bits per byte is not given: this {tokenizer.kind} tokenizer does not give all text back"
        )
    return tokenizer, parts


def causal_part(
    recipe: Recipe, corpus: AnyCorpus, tokenizer: Tokenizer, part: Part, progress: TrainingProgress
) -> AnyBatches:
    """Return a part as independent windows, or as parallel streams of windows for truncated BPTT.

    Validation windows are in the order of the text.
    """
    d, is_training = recipe.data_as(CausalData), part == "train"
    with progress.data(part) as show:
        shards = prepare(corpus, tokenizer, part=part, specials=d.specials, progress=show)
    settings: dict[str, Any] = {
        "seq_len": recipe.train.seq_len,
        "document_mask": d.document_mask,
        "mask_document_starts": d.mask_document_starts,
    }
    if recipe.train.objective == "truncated_bptt":
        return ContiguousBatches(shards, rows=recipe.train.batch_size if is_training else 1, **settings)
    order: Order = d.order if is_training else "sequential"
    return CausalBatches(shards, seed=recipe.seed, order=order, **settings)


def corpus_tokenizer(recipe: Recipe, corpus: AnyCorpus, progress: TrainingProgress) -> Tokenizer:
    """Return the recipe's tokenizer, with the special tokens that the recipe needs.

    They are a token for each label in front of texts, and that of ``masking.placeholder = "empty"``.
    """
    kind = recipe.tokenizer.kind
    if corpus.encoding_errors == "bytes" and kind not in ("byte", None):
        raise RecipeError(
            f'data.encoding_errors = "bytes" reads raw bytes, which tokenizer.kind "{kind}" does not take; '
            'set tokenizer.kind = "byte", or encoding_errors to strict or replace'
        )
    # only the byte tokenizer takes raw bytes, and it needs no training text
    pieces = (piece.text for piece in corpus.pieces("train") if isinstance(piece.text, str))
    further = list(corpus.tokens) if isinstance(corpus, LabelledDocuments) else []
    if recipe.masking.placeholder == "empty" and EMPTY not in (recipe.tokenizer.special_tokens or ()):
        further.append(EMPTY)
    return recipe_tokenizer(recipe, pieces, progress, "text", further=further)


def recipe_tokenizer(
    recipe: Recipe,
    texts: Iterable[str],
    progress: TrainingProgress,
    what: str,
    *,
    further: Sequence[str] = (),
) -> Tokenizer:
    """Return the tokenizer that ``[tokenizer]`` asks for: read, or trained on ``texts``.

    ``what`` says in the log what the texts are. The ``further`` special tokens are added to a new tokenizer;
    one that is read must have them.
    """
    t = recipe.tokenizer
    if t.path is not None:
        return Tokenizer.from_pretrained(t.path)
    if t.kind is None:
        raise RecipeError(
            "the recipe has no [tokenizer]: begin with a checkpoint, whose tokenizer is taken (--from "
            "CHECKPOINT), or say tokenizer.kind or tokenizer.path"
        )
    standard = t.special_tokens if t.special_tokens is not None else TOKENIZERS[t.kind].special_tokens
    settings: dict[str, Any] = {
        "vocab_size": t.vocab_size,
        "min_frequency": t.min_frequency,
        "special_tokens": [*standard, *further] if further else t.special_tokens,
        "split": t.split,
    }
    settings = {name: value for name, value in settings.items() if value is not None}
    progress.say(f"tokenizer   training a {t.kind} tokenizer on the training {what}")
    tokenizer = Tokenizer.train(texts, kind=t.kind, lower=t.lower, **settings)
    if tokenizer.training_report is not None:
        progress.say(f"tokenizer   {note}" for note in tokenizer.training_report.notes)
    return tokenizer


def _unknown(shards: TokenShards, tokenizer: Tokenizer) -> int:
    """Return the number of unknown tokens in ``shards``, which are read a few million at a time."""
    if tokenizer.unk_id is None:
        return 0
    step = 1 << 22
    windows = (shards.tokens(at, min(at + step, len(shards))) for at in range(0, len(shards), step))
    return sum(int((ids == tokenizer.unk_id).sum()) for ids in windows)
