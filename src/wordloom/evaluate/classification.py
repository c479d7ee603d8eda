"""Scores of a classifier: accuracy, F1, Matthews' correlation and loss.

Macro-F1 is the mean over the classes that occur (among targets or predictions) of
2 TP / (2 TP + FP + FN), as scikit-learn's ``f1_score(average="macro")``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch.nn import functional as F

from wordloom.data.batches.causal import IGNORE
from wordloom.errors import EvaluationError
from wordloom.evaluate.agreement import class_agreement, metrics_of
from wordloom.evaluate.forward import check_finite, outputs
from wordloom.evaluate.score import (
    MIN_UNITS,
    Floats,
    RatioStatistics,
    Score,
    Scores,
    share_interval,
    signature,
)

__all__ = ["Judged", "classification", "judge", "macro_f1"]

RESAMPLES = 2000  # of the rows, for the interval of macro-F1


class Judged(NamedTuple):
    """The predictions of a classifier for labelled rows.

    Attributes:
        confusion: ``[C, C]``, how many rows of class i were predicted as class j.
        nats: ``[N]``, minus the log-probability of each row's class.
    """

    confusion: NDArray[np.int64]
    nats: Floats

    @property
    def accuracy(self) -> float:
        return float(np.trace(self.confusion) / self.confusion.sum())


def judge(model: Any, batches: Iterable[Any]) -> Judged:
    """Return the predictions for ``batches`` of :class:`wordloom.data.LabelBatch`.

    Of equally likely classes the first is predicted.

    Raises EvaluationError when nothing is scored, NonFiniteError for a model without finite probabilities.
    """
    confusion: NDArray[np.int64] | None = None
    nats: list[Floats] = []
    for batch, output in outputs(model, batches):
        scored = batch.targets != IGNORE
        logits, targets = output[scored], batch.targets[scored]  # [N, C], [N]
        found = F.cross_entropy(logits, targets, reduction="none").numpy()
        check_finite(found)
        nats.append(found)
        C = logits.shape[1]
        pairs = (targets * C + logits.argmax(1)).numpy()
        counted = np.bincount(pairs, minlength=C * C).reshape(C, C)
        confusion = counted if confusion is None else confusion + counted
    if confusion is None or not confusion.sum():
        raise EvaluationError("no row of these is scored; give at least one row with a label")
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

    ``f1`` is that of the label ``positive``, by default the second. ``settings`` go into the signatures.
    ``details`` holds the ``confusion`` matrix: its ``labels`` and the ``counts`` by true label.

    Accuracy has Wilson's interval; F1, its mean and Matthews' correlation the percentiles of 2,000 resamples
    of the rows, drawn with a fixed seed (Efron 1979), from 20 rows on; loss the normal one.  Raises as
    :func:`judge`, and :func:`~wordloom.evaluate.agreement.class_agreement`.
    """
    judged = judge(model, batches)
    confusion, n = judged.confusion, int(judged.confusion.sum())
    hits = int(np.trace(confusion))
    loss = RatioStatistics.of(judged.nats, np.ones(n))
    enough = n >= MIN_UNITS
    by = {
        "accuracy": f"{n}-rows-wilson",
        "macro_f1": f"{n}-rows-bootstrap{RESAMPLES}" if enough else "no",
        "loss": f"{n}-rows" if enough else "no",
    }
    signed = {
        name: signature(name, **{**settings, "labels": len(labels), "ci": ci}) for name, ci in by.items()
    }
    agreement = class_agreement(
        confusion, labels=labels, metrics=metrics_of(labels), positive=positive, settings=settings
    )
    scores = (
        Score("accuracy", hits / n, share_interval(hits, n), signed["accuracy"]),
        Score("macro_f1", macro_f1(confusion), _bootstrap(confusion) if enough else None, signed["macro_f1"]),
        *agreement.scores,
        Score("loss", loss.ratio, loss.interval(), signed["loss"]),
    )
    recall = [
        f"{label}: {confusion[i, i]:,} of {confusion[i].sum():,} found, {confusion[:, i].sum():,} predicted"
        for i, label in enumerate(labels)
    ]
    counts = {"rows": n, "right": hits, "nats": float(judged.nats.sum())}
    details = {"confusion": {"labels": list(labels), "counts": confusion.tolist()}}
    return Scores(scores, counts, tuple(recall), details)


def macro_f1(confusion: NDArray[np.integer[Any]]) -> float:
    """Mean F1 of the classes that occur in ``confusion`` [..., C, C]; see the module."""
    return float(_macro_f1(confusion[None])[0])


def _macro_f1(confusions: NDArray[np.integer[Any]]) -> Floats:
    """[K, C, C] -> [K]."""
    found = np.diagonal(confusions, axis1=1, axis2=2)
    both = confusions.sum(1) + confusions.sum(2)  # 2 TP + FP + FN: [K, C]
    f1 = 2 * found / np.maximum(both, 1)
    return f1.sum(1) / (both > 0).sum(1)


def _bootstrap(confusion: NDArray[np.int64]) -> tuple[float, float]:
    n = int(confusion.sum())
    drawn = np.random.default_rng(0).multinomial(n, confusion.ravel() / n, size=RESAMPLES)  # [K, C * C]
    low, high = np.quantile(_macro_f1(drawn.reshape(-1, *confusion.shape)), (0.025, 0.975))
    return float(low), float(high)
