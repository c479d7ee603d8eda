"""Scores of predictions against targets: classes, and numbers.

Classes      accuracy; F1 of one class, 2 TP / (2 TP + FP + FN); macro-F1, the mean F1 of the classes that
             occur among targets or predictions; Matthews' correlation, for more than two classes Gorodkin's
             R_K (2004, Computational Biology and Chemistry 28:367)
Numbers      Pearson's correlation; Spearman's, which is Pearson's of ranks, ties at their mean rank; mean
             squared error

If a denominator is 0, F1 and Matthews' correlation are 0 without an interval, as in scikit-learn and GLUE.
Other correlations with a constant side are undefined (NaN in scipy), and their value is None. A note says
why. :data:`GLUE` names the metrics of the GLUE tasks (Wang et al. 2018, arXiv:1804.07461, table 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wordloom.errors import EvaluationError, did_you_mean
from wordloom.evaluate.score import (
    RESAMPLES,
    Z95,
    Counts,
    Floats,
    RatioStatistics,
    Score,
    Scores,
    bootstrap_score,
    resampled_counts,
    share_score,
    signed_score,
)

CLASS_METRICS = ("accuracy", "f1", "matthews")
NUMBER_METRICS = ("pearson", "spearman", "mean_squared_error")
_CELLS = 1 << 20  # numbers held at a time while rows are resampled


# ---------------------------------------------------------------------------------------------- classes


def confusion_of(targets: ArrayLike, predicted: ArrayLike, classes: int) -> NDArray[np.int64]:
    """Return the confusion matrix [C, C]: how many rows of class i were predicted as class j."""
    true, guessed = np.asarray(targets, np.int64), np.asarray(predicted, np.int64)
    _refuse_unequal(len(true), len(guessed))
    for side in (true, guessed):
        if len(side) and not 0 <= side.min() <= side.max() < classes:
            raise EvaluationError(f"a class is {side.min()} or {side.max()}; {classes} are numbered from 0")
    return np.bincount(true * classes + guessed, minlength=classes * classes).reshape(classes, classes)


def class_agreement(
    confusion: Counts,
    *,
    labels: Sequence[str],
    metrics: Sequence[str] = CLASS_METRICS,
    positive: str | None = None,
    settings: Mapping[str, object] | None = None,
) -> Scores:
    """Score predicted classes by their ``confusion`` matrix [C, C] of :func:`confusion_of`.

    Accuracy has Wilson's interval. From 20 rows on, the other scores have the percentiles of 2,000 resamples
    of the rows, drawn with a fixed seed.

    Args:
        labels: the labels of the classes, in order.
        metrics: names from :data:`CLASS_METRICS`, or ``macro_f1``.
        positive: the label of the class that ``f1`` scores.  Default: the second of two labels.
        settings: further settings that decide the scores, for their signatures, such as ``{"rows": "dev"}``.

    Raises EvaluationError: no rows, an unknown metric or label, F1 of three or more classes without a label.
    """
    _refuse_unknown(metrics, (*CLASS_METRICS, "macro_f1"))
    n = int(confusion.sum())
    if not n:
        raise EvaluationError("there is no row to score; give at least one")
    signed: dict[str, object] = {**(settings or {}), "labels": len(labels)}
    right, scores = int(np.trace(confusion)), []
    for name in metrics:
        if name == "accuracy":
            scores.append(share_score(name, right, n, signed))
        elif name == "f1":
            which = _positive(labels, positive)
            occurs = confusion[which].any() or confusion[:, which].any()
            why_zero = "" if occurs else f"no row has the label {labels[which]!r}, and none was predicted so"
            f1_signed = {**signed, "positive": labels[which]}
            scores.append(_resampled(name, confusion, partial(_f1, which=which), f1_signed, why_zero))
        elif name == "macro_f1":
            scores.append(_resampled(name, confusion, _macro_f1, signed))
        else:
            scores.append(_resampled(name, confusion, _matthews, signed, _constant(confusion, labels)))
    counts = {"rows": n, "right": right}
    details = {"confusion": {"labels": list(labels), "counts": confusion.tolist()}}
    return Scores(tuple(scores), counts, details=details)


def metrics_of(labels: Sequence[str]) -> tuple[str, ...]:
    """Return the metrics besides accuracy for these ``labels``: F1 is for two classes only."""
    return ("f1", "matthews") if len(labels) == 2 else ("matthews",)


def class_values(confusion: Counts, labels: Sequence[str], positive: str | None = None) -> dict[str, float]:
    """Return the values of :func:`metrics_of` for a ``confusion`` matrix [C, C]."""
    values = {"matthews": float(_matthews(confusion[None])[0])}
    if len(labels) == 2:
        values["f1"] = float(_f1(confusion[None], _positive(labels, positive))[0])
    return {name: values[name] for name in metrics_of(labels)}


def macro_f1(confusion: Counts) -> float:
    """Return the mean F1 of the classes that occur in ``confusion`` [C, C]."""
    return float(_macro_f1(confusion[None])[0])


def _positive(labels: Sequence[str], positive: str | None) -> int:
    if positive is None:
        if len(labels) != 2:
            raise EvaluationError(f"F1 scores one of the {len(labels)} labels; name it (positive)")
        return 1
    if positive not in labels:
        raise EvaluationError(f"no label is {positive!r} (positive); {did_you_mean(positive, labels)}")
    return labels.index(positive)


def _constant(confusion: Counts, labels: Sequence[str]) -> str:
    """Describe the side that is constant; empty if neither is."""
    for side, what in ((confusion.sum(1), "is"), (confusion.sum(0), "was predicted as")):
        if (side > 0).sum() == 1:
            return f"every row {what} {labels[int(side.argmax())]!r}"
    return ""


def _resampled(
    name: str,
    confusion: Counts,
    score: Callable[[Counts], Floats],
    signed: Mapping[str, object],
    why_zero: str = "",
) -> Score:
    """Return the score of the confusion matrix; ``score`` maps [K, C, C] to [K]."""
    value, n = float(score(confusion[None])[0]), int(confusion.sum())
    note = why_zero and f"{name} is 0 by convention: {why_zero}"
    return bootstrap_score(name, value, lambda: score(resampled_counts(confusion)), n, "rows", signed, note)


def _f1(confusions: Counts, which: int) -> Floats:
    """Return F1 of class ``which`` for confusion matrices [K, C, C]: [K], 0 where it occurs nowhere."""
    both = confusions[:, which].sum(1) + confusions[:, :, which].sum(1)  # 2 TP + FP + FN: [K]
    with np.errstate(invalid="ignore"):
        return np.where(both > 0, 2 * confusions[:, which, which] / both, 0.0)


def _macro_f1(confusions: Counts) -> Floats:
    """Return the mean F1 of the classes that occur, for confusion matrices [K, C, C]: [K]."""
    hits = np.diagonal(confusions, axis1=1, axis2=2)  # [K, C]
    both = confusions.sum(1) + confusions.sum(2)  # 2 TP + FP + FN: [K, C]
    f1 = 2 * hits / np.maximum(both, 1)
    return f1.sum(1) / (both > 0).sum(1)


def _matthews(confusions: Counts) -> Floats:
    """Return Matthews' correlation of confusion matrices [K, C, C]: [K], 0 where a side is constant."""
    counts = confusions.astype(np.float64)
    true, guessed, n = counts.sum(2), counts.sum(1), counts.sum((1, 2))  # [K, C], [K, C], [K]
    hits = np.trace(counts, axis1=1, axis2=2)  # [K]
    spread = (n**2 - (true**2).sum(1)) * (n**2 - (guessed**2).sum(1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(spread > 0, (hits * n - (true * guessed).sum(1)) / np.sqrt(spread), 0.0)


# ---------------------------------------------------------------------------------------------- numbers


def number_agreement(
    targets: ArrayLike,
    predicted: ArrayLike,
    *,
    metrics: Sequence[str] = NUMBER_METRICS,
    settings: Mapping[str, object] | None = None,
) -> Scores:
    """Score the ``predicted`` numbers [N] against the ``targets`` by ``metrics`` of :data:`NUMBER_METRICS`.

    ``settings`` are further settings that decide the scores, for their signatures.

    Pearson's correlation has Fisher's interval (1921) from 4 rows on. From 20 rows on, Spearman's correlation
    has the percentiles of 2,000 resamples of the rows, drawn with a fixed seed, and the mean squared error
    has a normal interval.

    Raises EvaluationError: no rows, unequal counts, a number that is not finite, an unknown metric.
    """
    _refuse_unknown(metrics, NUMBER_METRICS)
    x, y = np.asarray(targets, np.float64).ravel(), np.asarray(predicted, np.float64).ravel()
    _refuse_unequal(len(x), len(y))
    n = len(x)
    if not n:
        raise EvaluationError("there is no row to score; give at least one")
    for side, what in ((x, "target"), (y, "prediction")):
        if not np.isfinite(side).all():
            raise EvaluationError(
                f"the {what} of row {int(np.isfinite(side).argmin()) + 1:,} is not a finite number"
            )
    scores = {"pearson": _pearson, "spearman": _spearman, "mean_squared_error": _squared}
    return Scores(tuple(scores[name](name, x, y, settings or {}) for name in metrics), {"rows": n})


def _pearson(name: str, x: Floats, y: Floats, settings: Mapping[str, object]) -> Score:
    r, n, interval = _correlation(x, y), len(x), None
    if r is not None and n >= 4:
        with np.errstate(divide="ignore"):  # the interval of a perfect correlation is that point
            z, half = np.arctanh(r), Z95 / math.sqrt(n - 3)
        interval = float(np.tanh(z - half)), float(np.tanh(z + half))
    return signed_score(name, r, interval, settings, f"{n}-rows-fisher", _why_undefined(name, r, x))


def _spearman(name: str, x: Floats, y: Floats, settings: Mapping[str, object]) -> Score:
    r = _correlation(mean_ranks(x), mean_ranks(y))
    note = _why_undefined(name, r, x)
    return bootstrap_score(name, r, lambda: _spearman_of_resamples(x, y), len(x), "rows", settings, note)


def _squared(name: str, x: Floats, y: Floats, settings: Mapping[str, object]) -> Score:
    return RatioStatistics.of((x - y) ** 2, np.ones(len(x))).score(name, settings, "rows")


def _why_undefined(name: str, r: float | None, x: Floats) -> str:
    if r is not None:
        return ""
    sides = "targets" if x.min() == x.max() else "predictions"
    return f"{name} is undefined: " + (f"all {sides} are equal" if len(x) > 1 else "there is only one row")


def _correlation(x: Floats, y: Floats) -> float | None:
    """Return Pearson's correlation; None if a side is constant."""
    if x.min() == x.max() or y.min() == y.max():
        return None
    x, y = _centred(x), _centred(y)
    return float(np.clip(x @ y / math.sqrt((x @ x) * (y @ y)), -1.0, 1.0))


def _centred(x: Floats) -> Floats:
    """Subtract the mean and scale the largest value to 1, so that squares neither overflow nor vanish."""
    x = x / np.abs(x).max()
    x = x - x.mean()
    return x / np.abs(x).max()


def mean_ranks(x: Floats) -> Floats:
    """Return the rank of each number, from 1; equal numbers share their mean rank."""
    _, place, counts = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place]


def _spearman_of_resamples(x: Floats, y: Floats) -> Floats:
    """Return Spearman's correlation of each resample of the rows: [RESAMPLES], NaN where a side is constant.

    A resample is stored as the count of each row, so that ranks come from sums over the sorted values.
    """
    n, rng = len(x), np.random.default_rng(0)
    at_once = max(1, _CELLS // n)
    correlations = []
    for start in range(0, RESAMPLES, at_once):
        k = min(at_once, RESAMPLES - start)
        drawn = rng.integers(0, n, (k, n)) + np.arange(k)[:, None] * n
        often = np.bincount(drawn.ravel(), minlength=k * n).reshape(k, n).astype(np.float64)
        ranks_x, ranks_y = (_ranks_of_resamples(side, often) - (n + 1) / 2 for side in (x, y))  # mean 0
        both = (often * ranks_x * ranks_y).sum(1)
        spread = (often * ranks_x**2).sum(1) * (often * ranks_y**2).sum(1)
        with np.errstate(invalid="ignore", divide="ignore"):
            correlations.append(np.where(spread > 0, both / np.sqrt(spread), np.nan))
    return np.concatenate(correlations)


def _ranks_of_resamples(x: Floats, often: Floats) -> Floats:
    """Return the mean rank of each row's value if row i occurs ``often[k, i]`` times: [K, N]."""
    order = np.argsort(x, kind="stable")
    ordered = x[order]
    begins = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))  # of equal values
    equal = np.add.reduceat(often[:, order], begins, axis=1)  # [K, values]
    ranks = np.cumsum(equal, axis=1) - (equal - 1) / 2
    return ranks[:, np.unique(x, return_inverse=True)[1]]


def _refuse_unequal(targets: int, predicted: int) -> None:
    if targets != predicted:
        raise EvaluationError(f"{targets:,} rows have {predicted:,} predictions; give one for each")


def _refuse_unknown(metrics: Sequence[str], known: Sequence[str]) -> None:
    for name in metrics:
        if name not in known:
            raise EvaluationError(f"no metric is called '{name}'; {did_you_mean(name, known)}")


# ------------------------------------------------------------------------------------------------ GLUE


class GlueTask(NamedTuple):
    """The metrics of a task, the leading one first, and the label that F1 scores."""

    metrics: tuple[str, ...]
    positive: str | None = None


GLUE: Mapping[str, GlueTask] = {
    "glue-cola": GlueTask(("matthews", "accuracy")),
    "glue-mrpc": GlueTask(("f1", "accuracy"), positive="1"),
    "glue-rte": GlueTask(("accuracy",)),
    "glue-sst2": GlueTask(("accuracy",)),
    "glue-stsb": GlueTask(("pearson", "spearman")),
}


def glue_task(source: str) -> GlueTask | None:
    """Return the task of a named set, or of a part such as ``glue-mrpc/dev``; None outside GLUE."""
    return GLUE.get(source.partition("/")[0])
