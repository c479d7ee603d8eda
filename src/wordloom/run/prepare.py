"""Prepare the data that a recipe names: running text and its tokenizer, and rows with their columns."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from wordloom.data import CausalBatches, ContiguousBatches, Corpus, TokenShards, prepare
from wordloom.data.batches.causal import Order
from wordloom.data.batches.masking import EMPTY
from wordloom.data.files.source import hash_position, is_stdin
from wordloom.data.rows.labelled import ColumnChoice, CorpusPart, LabelledCorpus, Part
from wordloom.data.rows.labelled_documents import LabelledDocuments
from wordloom.data.sets.expand import matches, walk
from wordloom.data.sets.fetch import local_files, names_dataset
from wordloom.data.shards.prepared import PreparedCorpus
from wordloom.errors import RecipeError, TokenizerError
from wordloom.progress import TrainingProgress
from wordloom.recipe import Recipe, load_recipe
from wordloom.recipe.data import CausalData, Columns, LabelColumns, SentenceData, Split, TextData
from wordloom.recipe.table import Table
from wordloom.run.prepared import prepared_corpus, tokenizer_of_prepared
from wordloom.text import TOKENIZERS, Tokenizer

AnyCorpus: TypeAlias = Corpus | LabelledDocuments | PreparedCorpus
AnyBatches: TypeAlias = CausalBatches | ContiguousBatches


def joined_fingerprint(parts: Iterable[str]) -> str:
    """Return the sha256 of several fingerprints and names."""
    return hashlib.sha256("/".join(parts).encode()).hexdigest()


def ledger_json(parts: Mapping[Part, Any] | Mapping[str, Any]) -> str:
    """Return the ledgers of parts, such as batches, as JSON."""
    ledgers = {name: part.ledger.as_dict() for name, part in parts.items()}
    return json.dumps(ledgers, indent=1, ensure_ascii=False)


def recipe_corpus(recipe: Recipe) -> AnyCorpus:
    """Return the corpus that ``[data]`` names; raises RecipeError if that is no running text."""
    if not isinstance(recipe.data, TextData):
        raise RecipeError(
            f"the recipe's data is not running text, but that of train.objective '{recipe.train.objective}'; "
            "name a file of text"
        )
    d = recipe.data_as(TextData)
    if (prepared := prepared_corpus(recipe)) is not None:
        return prepared
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
    if not shards.ledger.bytes:
        progress.say("bits per byte is not given: the prepared tokens do not say how long their text is")
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
        settings["start_id"] = start_id(recipe, tokenizer)
        if not is_training:
            return ContiguousBatches(shards, rows=1, **settings)
        restart_share = d.restart_share if settings["start_id"] is not None else 0.0
        settings |= {"restart_share": restart_share, "seed": recipe.seed}
        return ContiguousBatches(shards, rows=recipe.train.batch_size, **settings)
    order: Order = d.order if is_training else "sequential"
    return CausalBatches(shards, seed=recipe.seed, order=order, **settings)


def start_id(recipe: Recipe, tokenizer: Tokenizer) -> int | None:
    """Return the token that a recurrent model learns to begin a text with; None if it learns of none.

    With a document mask, each document begins with an empty state and its own first token.  A text with a
    label begins with the label.
    """
    d = recipe.data_as(CausalData)
    if recipe.train.objective != "truncated_bptt" or not d.restart_share or d.document_mask or d.label_prefix:
        return None
    return tokenizer.bos_id if tokenizer.adds_bos else tokenizer.eos_id


def corpus_tokenizer(recipe: Recipe, corpus: AnyCorpus, progress: TrainingProgress) -> Tokenizer:
    """Return the recipe's tokenizer, with the special tokens that the recipe needs.

    They are a token for each label in front of texts, and that of ``masking.placeholder = "empty"``.
    """
    kind = recipe.tokenizer.kind
    if isinstance(corpus, PreparedCorpus):
        return tokenizer_of_prepared(corpus, recipe)
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
    try:
        tokenizer = Tokenizer.train(texts, kind=t.kind, lower=t.lower, **settings)
    except TokenizerError as error:
        raise TokenizerError(f"the training {what}, without the validation part: {error}") from None
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


RowCorpus = TypeVar("RowCorpus", bound=LabelledCorpus)
Item = TypeVar("Item")


def corpus_of(recipe: Recipe, kind: type[RowCorpus]) -> RowCorpus:
    """Return the rows that ``[data]`` names as a ``kind``, such as :class:`~wordloom.data.ScoredCorpus`."""
    d, columns = recipe.data, recipe.data_as(LabelColumns)
    _check_files(recipe)
    split: Literal["tail", "hash", "files"]
    split = recipe.data_as(Split).split if d.validation is None else "files"
    return kind(
        sources=d.train,
        validation_sources=d.validation or (),
        split=split,
        validation_fraction=d.validation_fraction,
        unique=columns.unique,
        text=columns.text_column,
        label=columns.label_column,
        header=columns.header,
        encoding_errors=d.row_errors,
    )


def parts_of(recipe: Recipe, kind: type[LabelledCorpus]) -> dict[str, CorpusPart]:
    """Return the rows of :func:`corpus_of` by part: "train", and "validation" if the recipe holds out any."""
    corpus = corpus_of(recipe, kind)
    parts: tuple[Part, ...] = ("train", "validation") if recipe.data.holds_out else ("train",)
    return {part: corpus.part(part) for part in parts}


def recipe_of(folder: str | Path) -> Recipe | None:
    """Return the recipe of the run in ``folder``, or None without one."""
    path = Path(folder) / "recipe.toml"
    return load_recipe(str(path)) if path.exists() else None


def training_columns(recipe: Recipe | None, *objectives: str) -> ColumnChoice | None:
    """Return the columns that a recipe for one of ``objectives`` names; None if it names none.

    Only the first two texts of a row are compared.  The label of texts that belong together is not a score.
    """
    if recipe is None or recipe.train.objective not in objectives:
        return None
    d: Table = recipe.data
    if not isinstance(d, Columns):
        return None
    is_label = isinstance(d, SentenceData) and isinstance(d.positive, str)
    answer = None if is_label else d.label_column
    if d.text_column is None and answer is None:
        return None
    text = d.text_column[:2] if isinstance(d.text_column, list) else d.text_column
    return ColumnChoice(text=text, answer=answer, header=d.header if isinstance(d, LabelColumns) else None)


def divided(
    recipe: Recipe,
    read: Callable[[Any], list[Item]],
    noun: str,
    group: Callable[[Item], str] | None = None,
    text: Callable[[Item], str] | None = None,
    left_out: Mapping[str, int] | None = None,
) -> dict[str, list[Item]]:
    """Return the rows of the recipe by part; ``read`` reads a source and ``noun`` is the name of its rows.

    The validation part has its own sources, or is the last share of the training rows; with ``group`` it is
    the rows of the last share of the groups, such as all questions about a text.  If data.split is "hash", it
    is the rows whose ``text`` has a hash in the share.  ``left_out`` has the numbers of rows that ``read``
    left out, by reason, for errors.

    Raises RecipeError for a part without rows.
    """
    d = recipe.data
    _check_files(recipe)
    _check_separate_files(recipe)
    rows = read(d.train)
    if not rows:
        raise RecipeError(f"data.train: holds no {noun}{_further(left_out)}; give at least one")
    before = Counter(left_out or {})
    if d.validation is not None:
        parts = {"train": rows, "validation": read(d.validation)}
    elif not d.validation_fraction:
        return {"train": rows}
    elif text is not None and getattr(d, "split", "tail") == "hash":
        parts = {"train": [], "validation": []}
        for row in rows:
            held_out = hash_position(text(row)) < d.validation_fraction
            parts["validation" if held_out else "train"].append(row)
    else:
        keys: list[Any] = list(range(len(rows)) if group is None else map(group, rows))
        groups = list(dict.fromkeys(keys))
        last = set(groups[len(groups) - int(len(groups) * d.validation_fraction) :])
        parts = {"train": [], "validation": []}
        for key, row in zip(keys, rows, strict=True):
            parts["validation" if key in last else "train"].append(row)
    if not parts["validation"]:
        if d.validation is not None:
            further = _further(Counter(left_out or {}) - before)
            raise RecipeError(
                f"data.validation: holds no {noun}{further}; give at least one, or leave it out"
            )
        raise RecipeError(
            f"data.validation_fraction {d.validation_fraction:g} of {len(rows):,} {noun} is none; give more "
            "of them, or data.validation_fraction = 0"
        )
    if not parts["train"]:
        raise RecipeError(
            f"data.validation_fraction {d.validation_fraction:g} holds out all {len(rows):,} {noun}, and "
            "none is left to train on; lower it, or give more of them"
        )
    return parts


def _further(left_out: Mapping[str, int] | None) -> str:
    """Return the numbers of rows left out, by reason, for an error about rows that are missing."""
    counts = ", ".join(f"{count:,} {reason}" for reason, count in (left_out or {}).items())
    return f" ({counts})" if counts else ""


def _check_separate_files(recipe: Recipe) -> None:
    """Raise RecipeError for a file that is both a training and a validation file."""
    training, held_out = (real_files(part or ()) for part in (recipe.data.train, recipe.data.validation))
    for path in filter(training.__contains__, held_out):
        raise RecipeError(f"{held_out[path]}: is both a training and a validation file; take it from one")


def _check_files(recipe: Recipe) -> None:
    """Raise RecipeError for rows from standard input."""
    for name in ("train", "validation"):
        sources = getattr(recipe.data, name) or ()
        if any(map(is_stdin, [sources] if isinstance(sources, str) else sources)):
            raise RecipeError(
                f"data.{name}: rows are read more than once, standard input only once; name a file"
            )


def real_files(sources: str | Sequence[str]) -> dict[str, str]:
    """Return the names of the files of ``sources`` by their real paths."""
    files: dict[str, str] = {}
    for name in [sources] if isinstance(sources, str) else sources:
        path = os.path.expanduser(name)
        if names_dataset(name):
            files |= {os.path.realpath(file): name for file in local_files(name)}
        for found in [path] if os.path.exists(path) else matches(path):
            inside = (os.path.join(folder, file) for folder, below in walk(found) for file in below)
            files |= {os.path.realpath(file): file for file in (inside if os.path.isdir(found) else [found])}
    return files
