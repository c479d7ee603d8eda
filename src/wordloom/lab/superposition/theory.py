"""Losses of hand-built solutions for n features in n - 1 dimensions, in closed form.

Source: Elhage et al. 2022, arXiv:2209.10652, section 4 (Superposition as a phase change).

All features have importance 1, except for the last, the extra feature, with importance r.  With density s:

- A feature without a direction costs its variance s/3 - s^2/4 times its importance; b_i is its mean s/2.
- Two features in an antipodal pair, W_i = -W_j, are lost only if both are present.  Then each has the error
  min(x_i, x_j), and E[min^2] = 1/6, so the pair costs (I_i + I_j) s^2 / 6.
- A feature with a direction of its own costs nothing.

A trained model may have a lower loss than all of these solutions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor

from wordloom.errors import ConfigError

Solution = Literal["extra dropped", "other dropped", "extra in a pair", "others in a pair"]
#: How each solution represents the extra feature.
OUTCOMES: dict[Solution, str] = {
    "extra dropped": "not represented",
    "other dropped": "dedicated dimension",
    "extra in a pair": "superposition",
    "others in a pair": "dedicated dimension",
}
_LOSSES: dict[Solution, Callable[[Tensor, Tensor], Tensor]] = {
    "extra dropped": lambda s, r: r * dropped_loss(s),
    "other dropped": lambda s, r: dropped_loss(s),
    "extra in a pair": lambda s, r: (1 + r) * s**2 / 6,
    "others in a pair": lambda s, r: s**2 / 3,
}


def dropped_loss(density: Tensor) -> Tensor:
    """Return the loss of a feature of importance 1 without a direction, which is its variance."""
    return density / 3 - density**2 / 4


def solution_losses(features: int, density: Tensor, importance: Tensor) -> dict[Solution, Tensor]:
    """Return the loss of each solution for ``features`` features in one dimension less.

    ``density`` and ``importance`` of the extra feature may have any shapes that broadcast.  With two features
    there is no pair of others.

    Raises ConfigError for fewer than two features.
    """
    if features < 2:
        raise ConfigError(f"the closed-form losses take 2 features or more, not {features}")
    names = [name for name in _LOSSES if features > 2 or name != "others in a pair"]
    shape = (density + importance).shape
    return {name: _LOSSES[name](density, importance).expand(shape) for name in names}
