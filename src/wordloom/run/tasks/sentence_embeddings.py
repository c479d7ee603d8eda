"""Sentence embeddings in a training run, by the objectives of :mod:`wordloom.sentence_objectives`.

The finished folder is an encoder's folder with the files of sentence-transformers in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wordloom.data.batches.framed import Frame, MarkedRows, marked_rows
from wordloom.data.batches.sequences import TextGroupBatches
from wordloom.data.ledgers import RowDigest, RowLedger
from wordloom.data.rows.labelled import REPEATED, LabelledCorpus, Part
from wordloom.data.rows.scored import GroupCorpus, ScoredCorpus, text_numbers
from wordloom.errors import DataError, RecipeError, did_you_mean, position
from wordloom.evaluate import number_agreement
from wordloom.evaluate.forward import check_finite, forward_passes
from wordloom.evaluate.reading import tokenizer_name
from wordloom.models import encodes, family_of
from wordloom.models.building.cost import flops_per_token
from wordloom.progress import TrainingProgress
from wordloom.recipe import Recipe
from wordloom.recipe.data import RowLengths, SentenceData
from wordloom.run.models.heads.head import ReadRows, values_in
from wordloom.run.models.sentence_folder import SentenceSettings, pooling_files, pooling_of
from wordloom.run.prepare import corpus_of
from wordloom.run.tasks.building import check_body, new_model, recipe_body, set_up_blocks, start_tokenizer
from wordloom.run.tasks.head_task import row_parts
from wordloom.run.tasks.task import Task
from wordloom.sentence_objectives import (
    TEXT_POOLINGS,
    Contrastive,
    CosineSimilarity,
    TextPooling,
    contrast,
    text_vectors,
)
from wordloom.text import Tokenizer
from wordloom.training.plan import Costs
from wordloom.weights import save_model

_HEADS = ("head_dropout", "pooler", "masked_lm_head", "next_sentence_head")


def sentence_task(recipe: Recipe, start: Path | None, progress: TrainingProgress) -> Task:
    """Return the task of sentence embeddings by an encoder; ``start`` is a checkpoint to begin with."""
    s, pooling = recipe.train, _pooling(recipe, start)
    corpus = _corpus(recipe)
    texts = (text for row in corpus.rows("train") for text in row.texts)
    tokenizer = start_tokenizer(recipe, start, texts, progress, "row")
    config = _config(recipe, tokenizer, start)
    groups = {"train": _read(recipe, tokenizer, corpus, "train")}
    if recipe.data.holds_out:
        groups["validation"] = _read(recipe, tokenizer, corpus, "validation")
    read = {}
    for (part, group), targets in zip(groups.items(), _targets(recipe, groups), strict=True):
        batches = TextGroupBatches(
            group.texts, targets, pad_id=group.pad, places=group.places, seed=recipe.seed
        )
        read[part] = ReadRows(batches, group.ledger, group)
    objective: Contrastive | CosineSimilarity
    if s.objective == "contrastive":
        objective = Contrastive(pooling, scale=s.similarity_scale, symmetric=s.symmetric)
        compared: dict[str, object] = {"scale": s.similarity_scale, "of": s.batch_size}
    else:
        objective, compared = CosineSimilarity(pooling), {}
    signature = {"tok": tokenizer_name(tokenizer), "texts": f"to-{s.seq_len}", "pooling": pooling, **compared}

    files = pooling_files(config.dim, SentenceSettings(pooling, True, s.seq_len))
    train: Any = read["train"].batches
    tokens = train.tokens_per_sample
    flops = flops_per_token(config, context=max(1, round(tokens / train.each)))
    return Task(
        settings=s,
        objective=objective,
        build_model=lambda: new_model(recipe, config, start, progress),
        set_up=lambda trainer: set_up_blocks(trainer, s, padded=True, tokens=s.batch_size * tokens),
        save=partial(save_model, tokenizer=tokenizer, files=files),
        tokenizer=tokenizer,
        files=files,
        costs=Costs(
            flops_per_token=3 * (flops.layers + flops.attention), tokens_per_sample=tokens, dense=True
        ),
        **row_parts(
            read,
            lambda model, validation: _metrics(model, objective, validation, s.batch_size),
            signature=signature,
            progress=progress,
            fingerprint=tokenizer.fingerprint,
        ),
    )


# -- the model -------------------------------------------------------------------------------------------


def _pooling(recipe: Recipe, start: Path | None) -> TextPooling:
    """Return the recipe's pooling, else that of the folder ``start``, else the mean."""
    saved = None if start is None else pooling_of(start)
    pooling: Any = recipe.model.get("pooling") or ("mean" if saved is None else saved.pooling)
    if pooling not in TEXT_POOLINGS:
        raise RecipeError(f"unknown model.pooling {pooling!r}; {did_you_mean(str(pooling), TEXT_POOLINGS)}")
    return pooling


def _config(recipe: Recipe, tokenizer: Tokenizer, start: Path | None) -> Any:
    """Return the config of the recipe's encoder, or that of ``start`` with the recipe's changes.

    The only head that it keeps is that of an old task.
    """
    for name in _HEADS:
        if name in recipe.model:
            raise RecipeError(f"model.{name} is of a head, and sentence embeddings need none; leave it out")
    settings = {key: value for key, value in recipe.model.items() if key != "pooling"}
    body = recipe_body(recipe.model_copy(update={"model": settings}), tokenizer, start)
    if not encodes(body):
        raise RecipeError(
            f"train.objective '{recipe.train.objective}' is for an encoder, which a {family_of(body)} is "
            "not; begin with a BERT or a RoBERTa"
        )
    check_body(recipe, tokenizer, body)
    keeps_head = recipe.old_task is not None
    return replace(body, pooler=False, masked_lm_head=keeps_head, next_sentence_head=False)


# -- the texts -------------------------------------------------------------------------------------------


def _corpus(recipe: Recipe) -> LabelledCorpus:
    """Return the rows of the recipe: with scores, or with texts that belong together."""
    d = recipe.data_as(SentenceData)
    if recipe.train.objective != "contrastive":
        return corpus_of(recipe, ScoredCorpus)
    if d.label_column is not None and d.positive is None:
        raise RecipeError(
            "data.label_column says nothing without data.positive: the label of rows whose texts belong "
            "together, or their least score; give both or none"
        )
    return replace(corpus_of(recipe, GroupCorpus), positive=d.positive)


@dataclass(frozen=True, kw_only=True)
class _Groups:
    """N rows of K texts.

    Attributes:
        texts: all texts, row by row; ``numbers`` [N, K] are their numbers, the same for equal texts.
        scores: [N], None without any; ``belong`` [N]: whether the texts of a row belong together.
    """

    texts: MarkedRows
    numbers: NDArray[np.int64]
    scores: NDArray[np.float32] | None
    belong: NDArray[np.bool_]
    places: Sequence[str]
    pad: int
    ledger: RowLedger


def _read(recipe: Recipe, tokenizer: Tokenizer, corpus: LabelledCorpus, part: Part) -> _Groups:
    """Return the rows of ``part``; training rows are those whose texts belong together.

    Raises DataError for rows of one text or of different numbers of texts, and for an empty or too long text.
    """
    dropped: Counter[str] = Counter()
    rows: list[Any] = list(corpus.rows(part, dropped))
    if not rows:
        raise corpus.no_rows(part)
    positive = corpus.positive if isinstance(corpus, GroupCorpus) else None
    scored = isinstance(corpus, ScoredCorpus) or isinstance(positive, float | int)
    belong = np.ones(len(rows), np.bool_)
    if isinstance(corpus, GroupCorpus):
        belong = np.array([corpus.belongs(row) for row in rows], np.bool_)
        _refuse_few(positive, part, rows, belong)
    others = int((~belong).sum())
    if part == "train" or not scored:  # validation compares the scores of the other rows, too
        rows = [row for row, keep in zip(rows, belong, strict=True) if keep]
        belong = belong[belong]
    _refuse_uneven(rows, pairs=isinstance(corpus, ScoredCorpus))
    texts = len(rows[0].texts)
    frame = Frame.of_encoder(tokenizer)
    read = marked_rows(
        tokenizer,
        ((text,) for row in rows for text in row.texts),
        frame,
        longest=recipe.train.seq_len,
        too_long=recipe.data_as(RowLengths).too_long,
        place=lambda n: f"{rows[n // texts].place}, column {rows[n // texts].columns[n % texts]!r}",
    )
    numbers = text_numbers([row.texts for row in rows])
    scores = np.array([row.score for row in rows], np.float32) if scored else None
    ledger = RowLedger(
        part=part,
        split=corpus.describe_split(),
        rows=len(rows),
        terms=len(read.ids),
        unknown=read.unknown,
        repeated=dropped[REPEATED],
        cut=read.cut,
        counts={
            "texts": texts,
            "others": others if belong.all() else 0,
            "beside": int((~belong).sum()),
            "shared": _shared(numbers),
        },
        scores=None if scores is None else (scores.min().item(), scores.max().item(), scores.mean().item()),
        text=str(RowDigest((row.texts, row.score if scored else None) for row in rows)),
    )
    places = [position(row.source, row.line) for row in rows]
    return _Groups(
        texts=read, numbers=numbers, scores=scores, belong=belong, places=places, pad=frame.pad, ledger=ledger
    )


def _refuse_few(positive: Any, part: Part, rows: Sequence[Any], belong: NDArray[np.bool_]) -> None:
    """Raise DataError if the texts of fewer than two rows belong together."""
    count = int(belong.sum())
    if count >= 2:
        return
    hint = ""
    if isinstance(positive, str):
        labels = sorted({str(row.label) for row in rows})
        hint = f"; data.positive is {positive!r} and the labels there: {', '.join(labels[:8])}"
    elif positive is not None:
        hint = f"; data.positive is {positive:g} and the scores go to {max(row.score for row in rows):g}"
    raise DataError(
        f"the {part} part has {count} row(s) whose texts belong together, and a text is to be found "
        f"among others: give 2 or more{hint}"
    )


def _refuse_uneven(rows: Sequence[Any], *, pairs: bool) -> None:
    """Raise DataError unless all rows have equally many texts: two, or without ``pairs`` two or more."""
    for row in rows:
        n = len(row.texts)
        if n < 2 or (pairs and n > 2):
            raise DataError(
                f"{row.place}: has {n} text(s), and {'two' if pairs else 'two or more'} are compared; name "
                'their columns: data.text_column = ["one", "two"]'
            )
        if n != len(rows[0].texts):
            raise DataError(
                f"{row.place}: has {n} texts and the first row {len(rows[0].texts)}; give all alike"
            )


def _shared(numbers: NDArray[np.int64]) -> int:
    """Return the number of rows that share a text with another row."""
    owners = Counter(number for row in numbers.tolist() for number in set(row))
    return sum(any(owners[number] > 1 for number in row) for row in numbers.tolist())


def _targets(recipe: Recipe, groups: Mapping[str, _Groups]) -> list[NDArray[np.int64] | NDArray[np.float32]]:
    """Return for each part the numbers of the texts, or for cosine similarity the scores scaled to 0 to 1."""
    if recipe.train.objective == "contrastive":
        return [group.numbers for group in groups.values()]
    score_range = recipe.data_as(SentenceData).score_range
    low, high = score_range or (groups["train"].ledger.scores or (0.0, 0.0))[:2]
    if low >= high:
        raise DataError(
            f"scores from {low:g} to {high:g} tell nothing apart; give rows of several, or data.score_range "
            "from the least alike to the most"
        )
    scaled: list[NDArray[np.int64] | NDArray[np.float32]] = []
    for group in groups.values():
        assert group.scores is not None
        outside = (group.scores < low) | (group.scores > high)
        if outside.any():
            row = int(outside.argmax())
            raise DataError(
                f"{group.places[row]}: the score {group.scores[row]:g} is outside of {low:g} to {high:g}; "
                "say data.score_range, from the least alike to the most"
            )
        scaled.append((group.scores - np.float32(low)) / np.float32(high - low))
    return scaled


# -- evaluation ------------------------------------------------------------------------------------------


def _embeddings(model: Any, batches: TextGroupBatches, pooling: TextPooling) -> Tensor:
    """Return the embeddings of all rows, on the CPU: [N, K, D]."""
    texts = batches.alone()
    embeddings = torch.empty(texts.samples_per_epoch, model.config.dim)
    spans = list(texts.passes())
    passes = forward_passes(
        model,
        (texts.batch(*span) for span in spans),
        lambda batch: text_vectors(model, batch.inputs[0], batch.inputs[1], pooling).cpu(),
    )
    for span, (_, vectors) in zip(spans, passes, strict=True):
        embeddings[torch.from_numpy(texts.rows(*span))] = vectors
    check_finite(embeddings, "vector")
    return embeddings.view(batches.samples_per_epoch, batches.each, -1)


def _metrics(
    model: Any, objective: Contrastive | CosineSimilarity, validation: ReadRows, batch_size: int
) -> dict[str, float]:
    """Return the loss, and for rows with scores the correlations of the cosines with them.

    The contrastive objective also has an accuracy: how often a row's second text is found among about
    ``batch_size``.
    """
    groups: _Groups = validation.source
    batches: Any = validation.batches
    vectors = _embeddings(model, batches, objective.pooling)
    cosines = (vectors[:, 0] * vectors[:, 1]).sum(-1).numpy()
    if isinstance(objective, Contrastive):
        metrics = _contrasted(objective, batches, groups, vectors, batch_size)
    else:
        errors = cosines.astype(np.float64) - batches.targets
        metrics = {"loss": float(np.mean(errors**2))}
    if groups.scores is None:
        return metrics
    agreement = number_agreement(groups.scores, cosines, metrics=("pearson", "spearman"))
    return {**metrics, **values_in(agreement, agreement)}


def _contrasted(
    objective: Contrastive, batches: TextGroupBatches, groups: _Groups, vectors: Tensor, batch_size: int
) -> dict[str, float]:
    """Return loss and accuracy of the rows whose texts belong together, in groups of about ``batch_size``."""
    order = batches.rows(0, batches.samples_per_epoch)
    order = order[groups.belong[order]]
    nats, right = 0.0, 0
    for rows in np.array_split(order, max(1, round(len(order) / batch_size))):
        logits = contrast(vectors[rows], torch.from_numpy(groups.numbers[rows]), objective.scale)
        nats += float(objective.nats(logits).sum())
        right += int((logits.argmax(1) == torch.arange(len(rows))).sum())
    return {"loss": nats / len(order), "accuracy": right / len(order)}
