"""The number of CPU cores for this process."""

from __future__ import annotations

import os


def cores() -> int:
    """Return the number of CPU cores that this process may use, which can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
