"""Run sides in turns, so that other programs on the machine slow all sides equally."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

__all__ = ["in_turns"]


def in_turns(sides: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Return the median of each side's values over ``rounds``; every other round has the reverse order."""
    measured: dict[str, list[float]] = {name: [] for name in sides}
    order = list(sides)
    for _ in range(rounds):
        for name in order:
            measured[name].append(sides[name]())
        order.reverse()
    return {name: statistics.median(values) for name, values in measured.items()}
