"""Scores: a number, its confidence interval, and a signature of the settings that decide it.

Two scores are comparable if their signatures differ only in the settings under comparison.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, dataclass, field, replace
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wordloom.version import __version__

MIN_UNITS = 20  # fewer units give no useful normal or bootstrap interval
RESAMPLES = 2000  # of a bootstrap interval, drawn with a fixed seed
Z95 = 1.959963984540054  # the 97.5 % quantile of the standard normal distribution

Floats = NDArray[np.float64]
Counts = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Score:
    """A value with its 95 % confidence interval.

    ``value`` is None if the score is undefined. ``note`` explains an undefined value and one that is 0 by
    convention.
    """

    name: str
    value: float | None
    interval: tuple[float, float] | None
    signature: str
    note: str = ""

    def __str__(self) -> str:
        value = "undefined" if self.value is None else f"{self.value:.4f}"
        interval = f" [{self.interval[0]:.4f}, {self.interval[1]:.4f}]" if self.interval else ""
        return f"{self.name} {value}{interval} {self.signature}"

    def as_dict(self) -> dict[str, Any]:
        """Return the values that JSON can hold."""
        return {
            "name": self.name,
            "value": self.value,
            "interval": None if self.interval is None else list(self.interval),
            "signature": self.signature,
            **({"note": self.note} if self.note else {}),
        }


@dataclass(frozen=True)
class Scores(Mapping[str, Score]):
    """The scores of one evaluation by name."""

    scores: tuple[Score, ...]
    counts: Mapping[str, int | float]  # from which the scores were computed
    notes: tuple[str, ...] = ()  # facts that a reader of the scores must know
    details: Mapping[str, Any] = field(default_factory=dict)  # plain values, for programs and plots

    def __getitem__(self, name: str) -> Score:
        return {score.name: score for score in self.scores}[name]

    def __iter__(self) -> Iterator[str]:
        return iter(score.name for score in self.scores)

    def __len__(self) -> int:
        return len(self.scores)

    def with_setting(self, name: str, value: str) -> Scores:
        """Return the scores with one more setting in their signatures."""
        scores = []
        for score in self.scores:
            before, version, after = score.signature.rpartition("|v:")  # translations have another form
            signed = f"{before}|{name}:{value}|v:{after}" if version else f"{after}|{name}:{value}"
            scores.append(replace(score, signature=signed))
        return replace(self, scores=tuple(scores))

    def as_dict(self) -> dict[str, Any]:
        """Return the values that JSON can hold."""
        return {
            "scores": [score.as_dict() for score in self.scores],
            "counts": dict(self.counts),
            "notes": list(self.notes),
            **self.details,
        }


def signature(name: str, **settings: object) -> str:
    """Return ``name|key:value|...|v:version``, the form of sacreBLEU (Post 2018, arXiv:1804.08771)."""
    pairs = [f"{key}:{value}" for key, value in settings.items()] + [f"v:{__version__}"]
    return "|".join([name, *pairs])


def signed_score(
    name: str,
    value: float | None,
    interval: tuple[float, float] | None,
    settings: Mapping[str, object],
    method: str,
    note: str = "",
) -> Score:
    """Return a score; its signature holds ``settings`` and the ``method`` of the interval, "no" if None."""
    signed = signature(name, **{**settings, "ci": "no" if interval is None else method})
    return Score(name, value, interval, signed, note)


def perplexity_of(loss: float) -> float:
    """Return e to the power of ``loss`` nats; infinity if the power is above the largest float."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def perplexity_score(
    name: str, loss: float | None, interval: tuple[float, float] | None, signed: str, note: str = ""
) -> Score:
    """Return a perplexity, from the ``loss`` in nats and its interval."""
    bounds = None if interval is None else (perplexity_of(interval[0]), perplexity_of(interval[1]))
    return Score(name, None if loss is None else perplexity_of(loss), bounds, signed, note)


def loss_and_perplexity(
    loss: float | None,
    interval: tuple[float, float] | None,
    settings: Mapping[str, object],
    *,
    prefix: str = "",
    note: str = "",
) -> tuple[Score, Score]:
    """Return the scores ``loss`` and ``perplexity``, with ``prefix`` before their names."""
    names = f"{prefix}loss", f"{prefix}perplexity"
    first, second = (signature(name, **settings) for name in names)
    return (
        Score(names[0], loss, interval, first, note),
        perplexity_score(names[1], loss, interval, second, note),
    )


def share_interval(hits: int, n: int) -> tuple[float, float]:
    """Return the 95 % score interval of ``hits`` / ``n`` (Wilson 1927), which stays between 0 and 1."""
    z2 = Z95**2
    middle = (hits + z2 / 2) / (n + z2)
    half = Z95 / (n + z2) * math.sqrt(hits * (n - hits) / n + z2 / 4)
    return max(0.0, middle - half), min(1.0, middle + half)


def share_score(name: str, hits: int, n: int, settings: Mapping[str, object]) -> Score:
    """Return the share of ``hits`` among ``n`` rows, with its :func:`share_interval`."""
    return signed_score(name, hits / n, share_interval(hits, n), settings, f"{n}-rows-wilson")


def bootstrap_score(
    name: str,
    value: float | None,
    resampled: Callable[[], Floats],
    n: int,
    units: str,
    settings: Mapping[str, object],
    note: str = "",
) -> Score:
    """Return a score of ``n`` units, such as "rows", with the percentiles of its ``resampled`` values.

    Below MIN_UNITS units and with a note there is no interval: the score is undefined or 0 by convention.
    """
    interval = None if n < MIN_UNITS or note else percentile_interval(resampled())
    return signed_score(name, value, interval, settings, f"{n}-{units}-bootstrap{RESAMPLES}", note)


def resampled_counts(counts: Counts) -> Counts:
    """Draw bootstrap resamples (Efron 1979) of the units that ``counts`` [..] counts by kind.

    Returns how many units of each kind each resample holds: [RESAMPLES, ..]. The seed is fixed.
    """
    n = int(counts.sum())
    drawn = np.random.default_rng(0).multinomial(n, counts.ravel() / n, size=RESAMPLES)
    return drawn.reshape(-1, *counts.shape)


def percentile_interval(values: Floats) -> tuple[float, float]:
    """Return the middle 95 % of the ``values`` of resamples; NaN values are left out."""
    low, high = np.nanquantile(values, (0.025, 0.975))
    return float(low), float(high)


@dataclass(frozen=True)
class RatioStatistics:
    """Sums that give a ratio of totals, sum(x) / sum(y), and its interval. Two of them can be added.

    A unit is an independent draw: a document, a block of text, or a passage.
    """

    units: int = 0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0
    yy: float = 0.0

    @classmethod
    def of(cls, x: Floats, y: Floats) -> RatioStatistics:
        """Return the statistics of units with numerators ``x`` and denominators ``y``, both [units]."""
        return cls(len(x), float(x.sum()), float(y.sum()), float(x @ x), float(x @ y), float(y @ y))

    @classmethod
    def of_one(cls, x: float, y: float) -> RatioStatistics:
        """Return the statistics of one unit."""
        return cls(1, x, y, x * x, x * y, y * y)

    def __add__(self, other: RatioStatistics) -> RatioStatistics:
        return RatioStatistics(*map(add, astuple(self), astuple(other)))

    @property
    def ratio(self) -> float:
        """sum(x) / sum(y)."""
        return self.x / self.y

    def interval(self) -> tuple[float, float] | None:
        """Return the 95 % normal interval of the ratio; None below MIN_UNITS units.

        Linearisation (Cochran 1977, Sampling Techniques, 6.3):
        variance = n / (n - 1) * sum (x_i - ratio * y_i)^2 / (sum y_i)^2.
        """
        if self.units < MIN_UNITS:
            return None
        r = self.ratio
        squares = max(self.xx - 2 * r * self.xy + r * r * self.yy, 0.0)  # rounding can fall below zero
        half = Z95 * math.sqrt(self.units / (self.units - 1) * squares) / self.y
        return r - half, r + half

    def score(self, name: str, settings: Mapping[str, object], units: str) -> Score:
        """Return the ratio as a score with its interval over ``units``, such as "rows"."""
        return signed_score(name, self.ratio, self.interval(), settings, f"{self.units}-{units}")
