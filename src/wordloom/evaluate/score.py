"""Scores: a number, how sure it is, and the settings that decide it.

Two scores may be compared when their signatures are equal but for the settings one means to compare.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wordloom.version import __version__

__all__ = [
    "MIN_UNITS",
    "RatioStatistics",
    "Score",
    "Scores",
    "perplexity_interval",
    "perplexity_of",
    "share_interval",
    "signature",
]

MIN_UNITS = 20  # a normal interval from fewer is not worth the name
_Z95 = 1.959963984540054

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Score:
    """``value`` with its 95 % ``interval``; None where it is not defined, or 0 by convention alone, which
    ``note`` then explains."""

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
        """Plain values, for ``--json``."""
        return {
            "name": self.name,
            "value": self.value,
            "interval": None if self.interval is None else list(self.interval),
            "signature": self.signature,
            **({"note": self.note} if self.note else {}),
        }


@dataclass(frozen=True)
class Scores(Mapping[str, Score]):
    """Scores of one evaluation by name, the counts they were made from, what the reader must know, and
    ``details`` in plain values, for programs and pictures."""

    scores: tuple[Score, ...]
    counts: Mapping[str, int | float]
    notes: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Score:
        return {score.name: score for score in self.scores}[name]

    def __iter__(self) -> Iterator[str]:
        return iter(score.name for score in self.scores)

    def __len__(self) -> int:
        return len(self.scores)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for ``--json``."""
        return {
            "scores": [score.as_dict() for score in self.scores],
            "counts": dict(self.counts),
            "notes": list(self.notes),
            **self.details,
        }


def signature(name: str, **settings: object) -> str:
    """``name|key:value|...|v:version``, after sacreBLEU's (Post 2018, arXiv:1804.08771)."""
    pairs = [f"{key}:{value}" for key, value in settings.items()] + [f"v:{__version__}"]
    return "|".join([name, *pairs])


def perplexity_of(loss: float) -> float:
    """Return e to the power of ``loss`` nats; infinity where that is above the largest float."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def perplexity_interval(loss: tuple[float, float] | None) -> tuple[float, float] | None:
    """Return the interval of a perplexity, given that of the loss in nats."""
    return None if loss is None else (perplexity_of(loss[0]), perplexity_of(loss[1]))


def share_interval(hits: int, n: int) -> tuple[float, float]:
    """The 95 % score interval of a share (Wilson 1927), which stays within 0 and 1 however few the hits."""
    z2 = _Z95**2
    middle = (hits + z2 / 2) / (n + z2)
    half = _Z95 / (n + z2) * math.sqrt(hits * (n - hits) / n + z2 / 4)
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True)
class RatioStatistics:
    """Sums from which a ratio of totals, sum(x) / sum(y), and its interval come; they add up.

    A unit is what is drawn independently: a document, a block of text, a passage.
    """

    units: int = 0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0
    yy: float = 0.0

    @classmethod
    def of(cls, x: Floats, y: Floats) -> RatioStatistics:
        """The statistics of units with numerators ``x`` and denominators ``y``, both [units]."""
        return cls(len(x), float(x.sum()), float(y.sum()), float(x @ x), float(x @ y), float(y @ y))

    def __add__(self, other: RatioStatistics) -> RatioStatistics:
        return RatioStatistics(
            self.units + other.units,
            self.x + other.x,
            self.y + other.y,
            self.xx + other.xx,
            self.xy + other.xy,
            self.yy + other.yy,
        )

    @property
    def ratio(self) -> float:
        """sum(x) / sum(y)."""
        return self.x / self.y

    def interval(self) -> tuple[float, float] | None:
        """The 95 % normal interval of the ratio by linearisation (Cochran 1977, Sampling Techniques, 6.3).

        variance = n / (n - 1) * sum (x_i - ratio * y_i)^2 / (sum y_i)^2.  None below MIN_UNITS units.
        """
        if self.units < MIN_UNITS:
            return None
        r = self.ratio
        squares = max(self.xx - 2 * r * self.xy + r * r * self.yy, 0.0)  # rounding can fall below zero
        half = _Z95 * math.sqrt(self.units / (self.units - 1) * squares) / self.y
        return r - half, r + half
