"""Where to write the names of points so that none covers another name or a point."""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import NDArray

__all__ = ["leads", "place_labels"]

Array = NDArray[np.float64]

# The sides of a point in the order in which people like to read its name there (cartographers' rule).
_ANGLES = (30, -30, 150, -150, 0, 180, 90, -90, 60, -60, 120, -120)
_REACHES = (0.15, 0.5, 1.0, 1.6, 2.3, 3.1, 4.0, 5.0)  # heights of a name, between it and its point
_APART = 0.2  # heights of a name, between two of them
_LEADS = 1.0  # heights: a name farther away is joined to its point by a line
_TURNS = 8  # orders in which names are placed, before there is said to be no room
_STEPS = np.linspace(0.0, 1.0, 12)[:, None]  # places along such a line that are looked at


def place_labels(
    points: Array,
    sizes: Array,
    radii: Array,
    area: tuple[float, float, float, float],
    *,
    lines_may_cross: bool = False,
) -> Array | None:
    """[n, 2] lower left corners of n names, or None where no room for all was found.

    One name after another takes the first free place of a fixed list: beside its point, then farther away,
    where a line has to join the two without crossing a name.  If one finds none, all begin anew with it as
    the first, a few times: among points close together the last is walled in by the others' names.  That is
    a search, no proof: there may be room where it returns None.

    Args:
        points: [n, 2] places of the points; all lengths are in one unit, of the same scale across and up.
        sizes: [n, 2] widths and heights of the names.
        radii: [n] how far each point's mark reaches.
        area: left, bottom, right and top of where names may be.
        lines_may_cross: whether lines may cross names after all, where there is little room.
    """
    order = list(range(len(points)))
    for _ in range(_TURNS):
        found = _in_order(order, points, sizes, radii, area, lines_may_cross=lines_may_cross)
        if not isinstance(found, int):
            return found
        order.insert(0, order.pop(found))
    return None


def _in_order(
    order: list[int],
    points: Array,
    sizes: Array,
    radii: Array,
    area: tuple[float, float, float, float],
    *,
    lines_may_cross: bool,
) -> Array | int:
    """The corners, as of :func:`place_labels`, or which of ``order`` found no place."""
    marks = np.concatenate([points - radii[:, None], points + radii[:, None]], axis=1)  # [n, 4]
    boxes, lines = np.zeros((0, 4)), np.zeros((0, 4))  # names placed; spots on the lines to them
    for turn, i in enumerate(order):
        point, size = points[i], sizes[i]
        tried = _candidates(point, size, radii[i])  # [candidates, 4]
        inside = (tried[:, :2] >= area[:2]).all(axis=1) & (tried[:, 2:] <= area[2:]).all(axis=1)
        roomy = tried + _APART * size[1] * np.array([-1, -1, 1, 1])
        taken = _overlap(tried, np.concatenate([marks, lines]))
        free = inside & ~taken.any(axis=1) & ~_overlap(roomy, boxes).any(axis=1)
        for candidate in np.flatnonzero(free):
            line = _line(tried[candidate], point, size[1])
            if lines_may_cross or not _overlap(line, boxes).any():
                break
        else:
            return turn
        boxes = np.concatenate([boxes, tried[candidate, None]])
        if not lines_may_cross:
            lines = np.concatenate([lines, line])
    corners = np.empty((len(points), 2))
    corners[order] = boxes[:, :2]
    return corners


def leads(box: Array, point: Array, height: float) -> Array | None:
    """[2, 2] the line that joins a name (left, bottom, right, top) to its point, None where it is near."""
    nearest = np.clip(point, box[:2], box[2:])
    return np.stack([nearest, point]) if np.hypot(*(nearest - point)) > _LEADS * height else None


def _candidates(point: Array, size: Array, radius: float) -> Array:
    """[reaches * angles, 4] places for a name, the best first."""
    angles = np.deg2rad(_ANGLES)
    sides = np.stack([np.cos(angles), np.sin(angles)], axis=1)  # [angles, 2]
    away = np.array([(radius + reach * size[1]) * side for reach, side in product(_REACHES, sides)])
    centres = point + away + np.tile(sides, (len(_REACHES), 1)) * size / 2
    return np.concatenate([centres - size / 2, centres + size / 2], axis=1)


def _line(box: Array, point: Array, height: float) -> Array:
    """[spots, 4] boxes without extent along the line from a name to its point, the ends left out."""
    ends = leads(box, point, height)
    if ends is None:
        return np.zeros((0, 4))
    spots = (ends[0] + _STEPS * (ends[1] - ends[0]))[1:-1]
    return np.concatenate([spots, spots], axis=1)


def _overlap(a: Array, b: Array) -> NDArray[np.bool_]:
    """[n, m], whether boxes (left, bottom, right, top) of ``a`` [n, 4] and ``b`` [m, 4] share any area."""
    a, b = a[:, None], b[None]
    apart = (a[..., :2] >= b[..., 2:]) | (b[..., :2] >= a[..., 2:])
    return np.logical_not(apart.any(axis=2))
