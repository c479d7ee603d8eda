"""Agreement of predictions with the right answers: classes, and numbers.

Classes      accuracy; F1 of one class, 2 TP / (2 TP + FP + FN); Matthews' correlation, for more than two
             classes Gorodkin's R_K (2004, Computational Biology and Chemistry 28:367)
Numbers      Pearson's correlation; Spearman's, which is Pearson's of ranks, ties at their mean rank; mean
             squared error

If a denominator is 0, F1 and Matthews' correlation are 0 without an interval, as in scikit-learn and GLUE.
Other correlations with a constant side are undefined (NaN in scipy), and their value is None. A note says
why.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wordloom.errors import EvaluationError, did_you_mean
from wordloom.evaluate.score import (
    MIN_UNITS,
    Floats,
    RatioStatistics,
    Score,
    Scores,
    share_interval,
    signature,
)

__all__ = [
    "CLASS_METRICS",
    "NUMBER_METRICS",
    "class_agreement",
    "class_values",
    "confusion_of",
    "metrics_of",
    "number_agreement",
]

CLASS_METRICS = ("accuracy", "f1", "matthews")
NUMBER_METRICS = ("pearson", "spearman", "mean_squared_error")
RESAMPLES = 2000  # of the rows, with a fixed seed
_Z95 = 1.959963984540054
_CELLS = 1 << 20  # numbers held at a time while rows are resampled

Counts = NDArray[np.integer[Any]]


# ---------------------------------------------------------------------------------------------- classes


def confusion_of(targets: ArrayLike, predicted: ArrayLike, classes: int) -> NDArray[np.int64]:
    """Return the confusion matrix [C, C]: how many rows of class i were predicted as class j."""
    right, taken = np.asarray(targets, np.int64), np.asarray(predicted, np.int64)
    _refuse_unequal(len(right), len(taken))
    for side in (right, taken):
        if len(side) and not 0 <= side.min() <= side.max() < classes:
            raise EvaluationError(f"a class is {side.min()} or {side.max()}; {classes} are numbered from 0")
    return np.bincount(right * classes + taken, minlength=classes * classes).reshape(classes, classes)


def class_agreement(
    confusion: Counts,
    *,
    labels: Sequence[str],
    metrics: Sequence[str] = CLASS_METRICS,
    positive: str | None = None,
    settings: Mapping[str, object] | None = None,
) -> Scores:
    """Score predicted classes by their ``confusion`` matrix [C, C] of :func:`confusion_of`, one row for each
    true class.

    Accuracy has Wilson's interval; the others the percentiles of 2,000 resamples of the rows, drawn with a
    fixed seed, from 20 rows on.

    Args:
        labels: of the classes, in order.
        metrics: of :data:`CLASS_METRICS`.
        positive: the label that ``f1`` is of.  None: the second of two.
        settings: what else decides the scores, for their signatures, such as ``{"rows": "dev"}``.

    Raises EvaluationError: no rows, an unknown metric or label, F1 among three or more without a label.
    """
    _refuse_unknown(metrics, CLASS_METRICS)
    n = int(confusion.sum())
    if not n:
        raise EvaluationError("there is no row to score; give at least one")
    about: dict[str, object] = {**(settings or {}), "labels": len(labels)}
    found = []
    for name in metrics:
        if name == "accuracy":
            found.append(_accuracy(confusion, about, n))
        elif name == "f1":
            which = _positive(labels, positive)
            of_one = {**about, "positive": labels[which]}
            seen = confusion[which].any() or confusion[:, which].any()
            why_zero = "" if seen else f"no row is {labels[which]!r}, and none was taken for it"
            found.append(_resampled(name, confusion, partial(_f1, which=which), of_one, n, why_zero))
        else:
            found.append(_resampled(name, confusion, _matthews, about, n, _constant(confusion, labels)))
    counts = {"rows": n, "right": int(np.trace(confusion))}
    details = {"confusion": {"labels": list(labels), "counts": confusion.tolist()}}
    return Scores(tuple(found), counts, details=details)


def metrics_of(labels: Sequence[str]) -> tuple[str, ...]:
    """Return the metrics besides accuracy for these ``labels``: F1 is for two classes only."""
    return ("f1", "matthews") if len(labels) == 2 else ("matthews",)


def class_values(confusion: Counts, labels: Sequence[str], positive: str | None = None) -> dict[str, float]:
    """Return the values of :func:`metrics_of` for a ``confusion`` matrix [C, C]."""
    found = {"matthews": float(_matthews(confusion[None])[0])}
    if len(labels) == 2:
        found["f1"] = float(_f1(confusion[None], _positive(labels, positive))[0])
    return {name: found[name] for name in metrics_of(labels)}


def _positive(labels: Sequence[str], positive: str | None) -> int:
    if positive is None:
        if len(labels) != 2:
            raise EvaluationError(f"F1 is of one of {len(labels)} labels; say which (positive)")
        return 1
    if positive not in labels:
        raise EvaluationError(f"no label is {positive!r} (positive); {did_you_mean(positive, labels)}")
    return labels.index(positive)


def _accuracy(confusion: Counts, settings: dict[str, object], n: int) -> Score:
    hits = int(np.trace(confusion))
    signed = signature("accuracy", **{**settings, "ci": f"{n}-rows-wilson"})
    return Score("accuracy", hits / n, share_interval(hits, n), signed)


def _constant(confusion: Counts, labels: Sequence[str]) -> str:
    """Say which side is constant; empty if neither is."""
    for side, what in ((confusion.sum(1), "is"), (confusion.sum(0), "was taken for")):
        if (side > 0).sum() == 1:
            return f"every row {what} {labels[int(side.argmax())]!r}"
    return ""


def _resampled(
    name: str,
    confusion: Counts,
    score: Callable[[Counts], Floats],
    about: dict[str, object],
    n: int,
    why_zero: str,
) -> Score:
    """Return the score of the confusion matrix, with the interval of its resamples.

    ``score`` maps [K, C, C] to [K]. ``why_zero`` says why the score is 0 by convention; then there is no
    interval, because all resamples would be 0.
    """
    value = float(score(confusion[None])[0])
    enough = n >= MIN_UNITS and not why_zero
    signed = signature(name, **{**about, "ci": f"{n}-rows-bootstrap{RESAMPLES}" if enough else "no"})
    if why_zero:
        return Score(name, value, None, signed, f"{name} is 0 by convention: {why_zero}")
    if not enough:
        return Score(name, value, None, signed)
    drawn = np.random.default_rng(0).multinomial(n, confusion.ravel() / n, size=RESAMPLES)  # [K, C * C]
    return Score(name, value, _middle(score(drawn.reshape(-1, *confusion.shape))), signed)


def _middle(values: Floats) -> tuple[float, float]:
    low, high = np.nanquantile(values, (0.025, 0.975))
    return float(low), float(high)


def _f1(confusions: Counts, which: int) -> Floats:
    """[K, C, C] -> [K], 0 where the class occurs nowhere."""
    both = confusions[:, which].sum(1) + confusions[:, :, which].sum(1)  # 2 TP + FP + FN
    with np.errstate(invalid="ignore"):
        return np.where(both > 0, 2 * confusions[:, which, which] / both, 0.0)


def _matthews(confusions: Counts) -> Floats:
    """[K, C, C] -> [K], 0 where a side is constant."""
    counts = confusions.astype(np.float64)
    right, taken, n = counts.sum(2), counts.sum(1), counts.sum((1, 2))
    hits = np.trace(counts, axis1=1, axis2=2)
    spread = (n**2 - (right**2).sum(1)) * (n**2 - (taken**2).sum(1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(spread > 0, (hits * n - (right * taken).sum(1)) / np.sqrt(spread), 0.0)


# ---------------------------------------------------------------------------------------------- numbers


def number_agreement(
    targets: ArrayLike,
    predicted: ArrayLike,
    *,
    metrics: Sequence[str] = NUMBER_METRICS,
    settings: Mapping[str, object] | None = None,
) -> Scores:
    """Score the ``predicted`` numbers [N] against the ``targets`` by ``metrics`` of :data:`NUMBER_METRICS`.

    ``settings`` are what else decides the scores, for their signatures.

    Pearson's correlation has Fisher's interval (1921) from 4 rows on; Spearman's the percentiles of 2,000
    resamples of the rows, drawn with a fixed seed, and the mean squared error the normal one, both from 20.

    Raises EvaluationError: no rows, unequal counts, what is no finite number, an unknown metric.
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
                f"the {what} of row {int(np.isfinite(side).argmin()) + 1:,} is no finite number"
            )
    scores = {"pearson": _pearson, "spearman": _spearman, "mean_squared_error": _squared}
    about = dict(settings or {})
    return Scores(tuple(scores[name](name, x, y, about) for name in metrics), {"rows": n})


def _pearson(name: str, x: Floats, y: Floats, settings: dict[str, object]) -> Score:
    r, n = _correlation(x, y), len(x)
    signed = signature(name, **{**settings, "ci": f"{n}-rows-fisher" if n >= 4 and r is not None else "no"})
    if r is None:
        return Score(name, None, None, signed, _undefined(name, x))
    if n < 4:
        return Score(name, r, None, signed)
    with np.errstate(divide="ignore"):  # of a perfect correlation the interval is the point
        z, half = np.arctanh(r), _Z95 / math.sqrt(n - 3)
    return Score(name, r, (float(np.tanh(z - half)), float(np.tanh(z + half))), signed)


def _spearman(name: str, x: Floats, y: Floats, settings: dict[str, object]) -> Score:
    r, n = _correlation(mean_ranks(x), mean_ranks(y)), len(x)
    enough = n >= MIN_UNITS and r is not None
    signed = signature(name, **{**settings, "ci": f"{n}-rows-bootstrap{RESAMPLES}" if enough else "no"})
    if r is None:
        return Score(name, None, None, signed, _undefined(name, x))
    return Score(name, r, _middle(_spearman_of_resamples(x, y)) if enough else None, signed)


def _squared(name: str, x: Floats, y: Floats, settings: dict[str, object]) -> Score:
    errors, n = RatioStatistics.of((x - y) ** 2, np.ones(len(x))), len(x)
    signed = signature(name, **{**settings, "ci": f"{n}-rows" if n >= MIN_UNITS else "no"})
    return Score(name, errors.ratio, errors.interval(), signed)


def _undefined(name: str, x: Floats) -> str:
    side = "every target is" if x.min() == x.max() else "every prediction is"
    return f"{name} is not defined: {side} the same" if len(x) > 1 else f"{name} is not defined of one row"


def _correlation(x: Floats, y: Floats) -> float | None:
    """Pearson's; None where a side is constant."""
    if x.min() == x.max() or y.min() == y.max():
        return None
    x, y = _centred(x), _centred(y)
    return float(np.clip(x @ y / math.sqrt((x @ x) * (y @ y)), -1.0, 1.0))


def _centred(x: Floats) -> Floats:
    """Less the mean, the largest at 1, so that no square is lost to the smallest numbers or the largest."""
    x = x / np.abs(x).max()
    x = x - x.mean()
    return x / np.abs(x).max()


def mean_ranks(x: Floats) -> Floats:
    """The rank of each, from 1; equal ones share the mean of theirs."""
    _, place, counts = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place]


def _spearman_of_resamples(x: Floats, y: Floats) -> Floats:
    """[RESAMPLES]: Spearman's of rows drawn with replacement; NaN where a side is constant.

    A resample is told by how often each row is in it, so ranks come from sums over the sorted values.
    """
    n, rng = len(x), np.random.default_rng(0)
    at_once = max(1, _CELLS // n)
    found = []
    for start in range(0, RESAMPLES, at_once):
        k = min(at_once, RESAMPLES - start)
        drawn = rng.integers(0, n, (k, n)) + np.arange(k)[:, None] * n
        often = np.bincount(drawn.ravel(), minlength=k * n).reshape(k, n).astype(np.float64)
        ranks_x, ranks_y = (_ranks_of_resamples(side, often) - (n + 1) / 2 for side in (x, y))  # mean 0
        both = (often * ranks_x * ranks_y).sum(1)
        spread = (often * ranks_x**2).sum(1) * (often * ranks_y**2).sum(1)
        with np.errstate(invalid="ignore", divide="ignore"):
            found.append(np.where(spread > 0, both / np.sqrt(spread), np.nan))
    return np.concatenate(found)


def _ranks_of_resamples(x: Floats, often: Floats) -> Floats:
    """[K, N]: the mean rank of each row's value where row i occurs ``often[k, i]`` times."""
    order = np.argsort(x, kind="stable")
    ordered = x[order]
    begins = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))  # of equal values
    equal = np.add.reduceat(often[:, order], begins, axis=1)  # [K, values]
    ranks = np.cumsum(equal, axis=1) - (equal - 1) / 2
    return ranks[:, np.unique(x, return_inverse=True)[1]]


# --------------------------------------------------------------------------------------------- settings


def _refuse_unequal(targets: int, predicted: int) -> None:
    if targets != predicted:
        raise EvaluationError(f"{targets:,} rows have {predicted:,} predictions; give one for each")


def _refuse_unknown(metrics: Sequence[str], known: Sequence[str]) -> None:
    for name in metrics:
        if name not in known:
            raise EvaluationError(f"no metric is called '{name}'; {did_you_mean(name, known)}")
