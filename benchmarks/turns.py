"""Sides that take turns, so that what else runs on the machine falls on all alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

__all__ = ["in_turns"]


def in_turns(sides: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """The median of what each side returns over ``rounds``, every other one in the reverse order."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    order = list(sides)
    for _ in range(rounds):
        for name in order:
            found[name].append(sides[name]())
        order.reverse()
    return {name: statistics.median(values) for name, values in found.items()}
