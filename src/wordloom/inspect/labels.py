"""Place the names of points so that no name covers another name or a point."""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Angles of a name from its point, in the order that cartographers prefer.
_ANGLES = (30, -30, 150, -150, 0, 180, 90, -90, 60, -60, 120, -120)
_REACHES = (0.15, 0.5, 1.0, 1.6, 2.3, 3.1, 4.0, 5.0)  # distances from the point, in heights of a name
_GAP = 0.2  # the smallest distance between two names, in heights of a name
_LEADER = 1.0  # heights of a name; a name farther away is joined to its point by a line
_TRIALS = 8  # orders in which all names are placed before the search gives up
_STEPS = np.linspace(0.0, 1.0, 12)[:, None]  # positions along such a line that are checked


def place_labels(
    points: Array,
    sizes: Array,
    radii: Array,
    area: tuple[float, float, float, float],
    *,
    lines_may_cross: bool = False,
) -> Array | None:
    """Return the lower left corners [n, 2] of n names, or None if the search finds no room for all.

    One name after another takes the first free place of a fixed list: beside its point, then farther away,
    where a line joins the name and the point without crossing a name.  If a name finds no place, the search
    starts again with this name first, a few times, because among close points the other names can surround
    the last one.  The search is greedy: there may be room although it returns None.

    Args:
        points: positions [n, 2] of the points; all lengths have one unit and one scale.
        sizes: widths and heights [n, 2] of the names.
        radii: radius [n] of each point's marker.
        area: left, bottom, right and top of the area for names.
        lines_may_cross: whether lines may cross names, for figures with little room.
    """
    order = list(range(len(points)))
    for _ in range(_TRIALS):
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
    """Return the corners [n, 2], or the index in ``order`` of the first name that found no place."""
    marks = np.concatenate([points - radii[:, None], points + radii[:, None]], axis=1)  # [n, 4]
    boxes, lines = np.zeros((0, 4)), np.zeros((0, 4))  # of placed names; of positions on their lines
    for turn, i in enumerate(order):
        point, size = points[i], sizes[i]
        places = _candidates(point, size, radii[i])  # [candidates, 4]
        inside = (places[:, :2] >= area[:2]).all(axis=1) & (places[:, 2:] <= area[2:]).all(axis=1)
        enlarged = places + _GAP * size[1] * np.array([-1, -1, 1, 1])
        taken = _overlap(places, np.concatenate([marks, lines]))
        free = inside & ~taken.any(axis=1) & ~_overlap(enlarged, boxes).any(axis=1)
        for candidate in np.flatnonzero(free):
            line = _line(places[candidate], point, size[1])
            if lines_may_cross or not _overlap(line, boxes).any():
                break
        else:
            return turn
        boxes = np.concatenate([boxes, places[candidate, None]])
        if not lines_may_cross:
            lines = np.concatenate([lines, line])
    corners = np.empty((len(points), 2))
    corners[order] = boxes[:, :2]
    return corners


def leader_line(box: Array, point: Array, height: float) -> Array | None:
    """Return the line [2, 2] from a name (left, bottom, right, top) to its point, or None if it is near."""
    nearest = np.clip(point, box[:2], box[2:])
    return np.stack([nearest, point]) if np.hypot(*(nearest - point)) > _LEADER * height else None


def _candidates(point: Array, size: Array, radius: float) -> Array:
    """Return boxes [reaches * angles, 4] for a name, the best first."""
    angles = np.deg2rad(_ANGLES)
    sides = np.stack([np.cos(angles), np.sin(angles)], axis=1)  # [angles, 2]
    away = np.array([(radius + reach * size[1]) * side for reach, side in product(_REACHES, sides)])
    centres = point + away + np.tile(sides, (len(_REACHES), 1)) * size / 2
    return np.concatenate([centres - size / 2, centres + size / 2], axis=1)


def _line(box: Array, point: Array, height: float) -> Array:
    """Return empty boxes [positions, 4] along the line from a name to its point, without its ends."""
    ends = leader_line(box, point, height)
    if ends is None:
        return np.zeros((0, 4))
    positions = (ends[0] + _STEPS * (ends[1] - ends[0]))[1:-1]
    return np.concatenate([positions, positions], axis=1)


def _overlap(a: Array, b: Array) -> NDArray[np.bool_]:
    """Return [n, m] whether boxes (left, bottom, right, top) of ``a`` [n, 4] and ``b`` [m, 4] overlap."""
    a, b = a[:, None], b[None]
    separate = (a[..., :2] >= b[..., 2:]) | (b[..., :2] >= a[..., 2:])
    return np.logical_not(separate.any(axis=2))
