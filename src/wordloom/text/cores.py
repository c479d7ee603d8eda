"""How many processors there are for this process."""

from __future__ import annotations

import os

__all__ = ["cores"]


def cores() -> int:
    """How many CPU cores this process may use, at least 1; on some systems that is fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
