"""Where to write the names of points so that none covers another name or a point."""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import NDArray

__all__ = ["place_labels"]

Array = NDArray[np.float64]

# The sides of a point in the order in which people like to read its name there (cartographers' rule).
_ANGLES = (30, -30, 150, -150, 0, 180, 90, -90, 60, -60, 120, -120)
_REACHES = (0.15, 0.5, 1.0, 1.6, 2.3, 3.1, 4.0, 5.0)  # heights of a name, between it and its point
_APART = 0.2  # heights of a name, between two of them


def place_labels(
    points: Array, sizes: Array, radii: Array, area: tuple[float, float, float, float]
) -> Array | None:
    """[n, 2] lower left corners of n names, or None where there is no room for all.

    One name after another takes the first free place of a fixed list: beside its point, then farther away.

    Args:
        points: [n, 2] places of the points; all lengths are in one unit, of the same scale across and up.
        sizes: [n, 2] widths and heights of the names.
        radii: [n] how far each point's mark reaches.
        area: left, bottom, right and top of where names may be.
    """
    n = len(points)
    corners = np.zeros((n, 2))
    marks = np.concatenate([points - radii[:, None], points + radii[:, None]], axis=1)  # [n, 4]
    boxes = np.zeros((0, 4))
    angles = np.deg2rad(_ANGLES)
    sides = np.stack([np.cos(angles), np.sin(angles)], axis=1)  # [angles, 2]
    for i in range(n):
        height = sizes[i, 1]
        away = np.array([(radii[i] + reach * height) * side for reach, side in product(_REACHES, sides)])
        half = np.tile(sides, (len(_REACHES), 1)) * sizes[i] / 2
        centres = points[i] + away + half  # [candidates, 2]
        tried = np.concatenate([centres - sizes[i] / 2, centres + sizes[i] / 2], axis=1)  # [candidates, 4]
        inside = (tried[:, :2] >= area[:2]).all(axis=1) & (tried[:, 2:] <= area[2:]).all(axis=1)
        roomy = tried + _APART * height * np.array([-1, -1, 1, 1])
        free = inside & ~_overlap(tried, marks).any(axis=1) & ~_overlap(roomy, boxes).any(axis=1)
        if not free.any():
            return None
        chosen = tried[free.argmax()]
        corners[i] = chosen[:2]
        boxes = np.concatenate([boxes, chosen[None]])
    return corners


def _overlap(a: Array, b: Array) -> NDArray[np.bool_]:
    """[n, m], whether boxes (left, bottom, right, top) of ``a`` [n, 4] and ``b`` [m, 4] share any area."""
    a, b = a[:, None], b[None]
    apart = (a[..., :2] >= b[..., 2:]) | (b[..., :2] >= a[..., 2:])
    return np.logical_not(apart.any(axis=2))
