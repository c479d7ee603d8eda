"""Scores of a classifier: accuracy, F1, Matthews' correlation and loss."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch.nn import functional as F

from wordloom.data.batches.causal import IGNORE
from wordloom.errors import EvaluationError
from wordloom.evaluate.agreement import class_agreement, confusion_of, metrics_of
from wordloom.evaluate.forward import check_finite, outputs
from wordloom.evaluate.score import Floats, RatioStatistics, Scores


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
