"""Scores of a classifier: accuracy, F1, Matthews' correlation and loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch.nn import functional as F

from wordloom.data.batches.causal import IGNORE
from wordloom.errors import EvaluationError
from wordloom.evaluate.agreement import class_agreement, confusion_of, metrics_of
from wordloom.evaluate.forward import check_finite, outputs
from wordloom.evaluate.score import (
    Counts,
    Floats,
    RatioStatistics,
    Score,
    Scores,
    bootstrap_score,
    resampled_counts,
)


class Judged(NamedTuple):
    """The predictions of a classifier for labelled rows."""

    confusion: NDArray[np.int64]  # [C, C], how many rows of class i were predicted as class j
    nats: Floats  # [N], minus the log-probability of each row's class

    @property
    def accuracy(self) -> float:
        return float(np.trace(self.confusion) / self.confusion.sum())


def judge(model: Any, batches: Iterable[Any]) -> Judged:
    """Return the predictions for ``batches`` of :class:`wordloom.data.LabelBatch`.

    If classes are equally likely, the first one is predicted.

    Raises EvaluationError if nothing is scored, NonFiniteError for a model without finite probabilities.
    """
    confusion: NDArray[np.int64] | None = None
    nats: list[Floats] = []
    for batch, output in outputs(model, batches):
        scored = batch.targets != IGNORE
        logits, targets = output[scored], batch.targets[scored]  # [N, C], [N]
        nats.append(F.cross_entropy(logits, targets, reduction="none").numpy())
        check_finite(nats[-1])
        counts = confusion_of(targets, logits.argmax(1), logits.shape[1])
        confusion = counts if confusion is None else confusion + counts
    if confusion is None or not confusion.sum():
        raise EvaluationError("no row has a label to score; give at least one row with a label")
    return Judged(confusion, np.concatenate(nats))


def classification(
    model: Any,
    batches: Iterable[Any],
    *,
    labels: Sequence[str],
    settings: dict[str, object],
    positive: str | None = None,
) -> Scores:
    """Return ``accuracy``, ``macro_f1``, ``matthews``, ``loss`` (nats per row), and for two classes ``f1``.

    ``f1`` scores the label ``positive``, by default the second. ``settings`` go into the signatures.
    ``details`` holds the ``confusion`` matrix: its ``labels`` and the ``counts`` by true label.  The loss has
    a normal interval; for the other scores and the errors see :func:`judge` and
    :func:`~wordloom.evaluate.agreement.class_agreement`.
    """
    judged = judge(model, batches)
    confusion = judged.confusion
    metrics = ("accuracy", "macro_f1", *metrics_of(labels))
    agreement = class_agreement(
        confusion, labels=labels, metrics=metrics, positive=positive, settings=settings
    )
    signed = {**settings, "labels": len(labels)}
    loss = RatioStatistics.of(judged.nats, np.ones(len(judged.nats))).score("loss", signed, "rows")
    recall = [
        f"{label}: {confusion[i, i]:,} of {confusion[i].sum():,} found, {confusion[:, i].sum():,} predicted"
        for i, label in enumerate(labels)
    ]
    counts = {**agreement.counts, "nats": float(judged.nats.sum())}
    return replace(agreement, scores=(*agreement.scores, loss), counts=counts, notes=tuple(recall))


Tags: TypeAlias = Sequence[str]

# the columns of the counts of each text: right words, words; right, found and true entities
_HITS, _WORDS, _RIGHT, _FOUND, _TRUE = range(5)


class Entity(NamedTuple):
    """The type of an entity, the number of its first word, and the number after its last word."""

    type: str
    begin: int
    end: int


def is_bio(tags: Sequence[str]) -> bool:
    """Return whether all of ``tags`` are ``O``, ``B-TYPE`` or ``I-TYPE``."""
    return all(tag == "O" or (tag[:2] in ("B-", "I-") and len(tag) > 2) for tag in tags)


def entities(tags: Tags) -> list[Entity]:
    """Return the entities of one text, in order; raises EvaluationError for a tag outside the BIO scheme."""
    closed: list[Entity] = []
    kind, begin = "", 0  # of the open entity; "" if none is open
    for at, tag in enumerate((*tags, "O")):
        if not is_bio((tag,)):
            raise EvaluationError(f"the tag {tag!r} is not one of O, B-TYPE and I-TYPE, which entities need")
        mark, _, type_ = tag.partition("-")
        if kind and (mark != "I" or type_ != kind):
            closed.append(Entity(kind, begin, at))
            kind = ""
        if type_ and not kind:
            kind, begin = type_, at
    return closed


def tag_agreement(
    targets: Sequence[Tags], predicted: Sequence[Tags], *, settings: Mapping[str, object] | None = None
) -> Scores:
    """Return ``accuracy`` of words, and for BIO tags ``entity_f1``, ``entity_precision``, ``entity_recall``.

    ``settings`` are further settings that decide the scores, for their signatures. Words, entities and hits
    are summed over all texts.  From 20 texts on, intervals are the percentiles of 2,000 resamples of the
    texts, drawn with a fixed seed.  ``details`` holds for each type of ``entities`` how many are true, found
    and right.

    Raises EvaluationError: no word, unequal numbers of texts or words, predicted tags outside the BIO scheme
    for targets in it.
    """
    if len(targets) != len(predicted):
        raise EvaluationError(
            f"{len(targets):,} texts have {len(predicted):,} predictions; give one for each"
        )
    bio = is_bio(list({tag for tags in targets for tag in tags}))
    types: Counter[tuple[str, int]] = Counter()
    rows = [_counted(n, *pair, bio, types) for n, pair in enumerate(zip(targets, predicted, strict=True), 1)]
    counts = np.array(rows, np.int64).reshape(-1, 5)
    if not counts[:, _WORDS].sum():
        raise EvaluationError("there is no word to score; give at least one with its label")
    metrics = _METRICS if bio else {"accuracy": _METRICS["accuracy"]}
    scores = [_score(name, counts, *metric, settings or {}) for name, metric in metrics.items()]
    total = counts.sum(0).tolist()
    by_type = {
        kind: {"true": types[kind, _TRUE], "found": types[kind, _FOUND], "right": types[kind, _RIGHT]}
        for kind in sorted({kind for kind, _ in types})
    }
    summed = {"texts": len(rows), "words": total[_WORDS], "right": total[_HITS]}
    if not bio:
        return Scores(tuple(scores), summed)
    summed |= {"entities": total[_TRUE], "found": total[_FOUND], "right_entities": total[_RIGHT]}
    return Scores(tuple(scores), summed, details={"entities": by_type})


def _counted(n: int, target: Tags, predicted: Tags, bio: bool, types: Counter[tuple[str, int]]) -> list[int]:
    """Return the counts of text ``n``, and count its entities by type in ``types``."""
    if len(target) != len(predicted):
        raise EvaluationError(f"text {n:,} has {len(target):,} words and {len(predicted):,} predicted labels")
    hits = sum(a == b for a, b in zip(target, predicted, strict=True))
    if not bio:
        return [hits, len(target), 0, 0, 0]
    true, found = set(entities(target)), set(entities(predicted))
    for column, group in ((_RIGHT, true & found), (_FOUND, found), (_TRUE, true)):
        types.update((entity.type, column) for entity in group)
    return [hits, len(target), len(true & found), len(found), len(true)]


#: For each metric the columns that its numerator and its denominator sum, and a name for the denominator.
_METRICS: dict[str, tuple[tuple[int, ...], tuple[int, ...], str]] = {
    "accuracy": ((_HITS,), (_WORDS,), ""),
    "entity_f1": ((_RIGHT, _RIGHT), (_FOUND, _TRUE), "true or found"),
    "entity_precision": ((_RIGHT,), (_FOUND,), "found"),
    "entity_recall": ((_RIGHT,), (_TRUE,), "true"),
}


def _score(
    name: str,
    counts: Counts,
    above: tuple[int, ...],
    below: tuple[int, ...],
    kind: str,
    settings: Mapping[str, object],
) -> Score:
    """Return the ratio of two sums of the columns of ``counts`` [texts, 5]; 0 / 0 is 0, as in conlleval."""

    def ratio(sums: Counts) -> Floats:  # [K, 5] -> [K]
        return sums[:, above].sum(1) / np.maximum(sums[:, below].sum(1), 1)

    def resampled() -> Floats:
        kinds, often = np.unique(counts, axis=0, return_counts=True)  # texts with equal counts are one kind
        return ratio(resampled_counts(often) @ kinds)

    sums = counts.sum(0)
    note = "" if sums[list(below)].any() else f"{name} is 0 by convention: no entity is {kind}"
    value = float(ratio(sums[None])[0])
    return bootstrap_score(name, value, resampled, len(counts), "texts", settings, note)
