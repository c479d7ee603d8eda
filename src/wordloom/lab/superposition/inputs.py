"""Inputs of toy models: sparse random features, as a sample or by the pattern of the features present."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wordloom.errors import ConfigError

_MOST_FEATURES = 10  # by pattern, of which there are 2^n


class Inputs(NamedTuple):
    """Rows of features and the weight of each row in an expectation.

    Attributes:
        x: [B, n], shared by all models, or [I, B, n].
        weights: [I, B] or [B]; the weights of a model sum to 1.
    """

    x: Tensor
    weights: Tensor


def sampled(density: Tensor, features: int, rows: int, generator: torch.Generator) -> Inputs:
    """Return ``rows`` random inputs for each density: density [I] -> x [I, rows, n].

    All models share one draw v per value, and a feature is present where v is below the density.  Then
    v / density is uniform on [0, 1].  The inputs of a model do not depend on the other models.

    Raises ConfigError for a density outside (0, 1].
    """
    _check(density)
    draws = torch.rand(rows, features, generator=generator)  # [B, n]
    limit = density[:, None, None]  # [I, 1, 1]
    x = torch.where(draws < limit, draws / limit, 0.0)  # [I, B, n]
    return Inputs(x, torch.full((rows,), 1 / rows))


def by_pattern(density: Tensor, points: Tensor) -> Inputs:
    """Return inputs for each of the 2^n patterns of present features: density [I], points [P, n] -> Inputs.

    ``points`` are values in [0, 1], the same for every pattern.  The weight of a row is the probability of
    its pattern, divided among the P rows of the pattern.  Rare patterns therefore have as many rows as
    others, and all models share the rows x [B, n], B = 1 + (2^n - 1) P.

    Raises ConfigError for a density outside (0, 1], and for more than 10 features.
    """
    _check(density)
    P, n = points.shape
    if n > _MOST_FEATURES:
        raise ConfigError(f"inputs by pattern take at most {_MOST_FEATURES} features, not {n}")
    patterns = torch.tensor(list(product((0.0, 1.0), repeat=n)))[1:]  # [2^n - 1, n]
    x = torch.cat([torch.zeros(1, n), (patterns[:, None] * points).flatten(0, 1)])  # [B, n]
    present = patterns.sum(1)  # [2^n - 1]
    s = density[:, None]  # [I, 1]
    probability = s**present * (1 - s) ** (n - present) / P  # [I, 2^n - 1]
    weights = torch.cat([(1 - s) ** n, probability.repeat_interleave(P, dim=1)], dim=1)  # [I, B]
    return Inputs(x, weights)


def even_points(points: int, features: int, seed: int = 0) -> Tensor:
    """Return ``points`` points that cover the unit cube evenly (a scrambled Sobol sequence) [P, n]."""
    sobol: Any = torch.quasirandom.SobolEngine  # torch leaves it untyped
    drawn: Tensor = sobol(features, scramble=True, seed=seed).draw(points)
    return drawn


def _check(density: Tensor) -> None:
    if not bool(((density > 0) & (density <= 1)).all()):
        raise ConfigError(f"densities must be above 0 and at most 1, not {density.tolist()}")
