"""The barrier of a team of threads that run one compiled program together."""

from __future__ import annotations

import sys
from typing import Any

from numba import types

from wordloom.kernels.machine_code import program
from wordloom.kernels.memory import add_atomically

_yield_to_others = types.ExternalFunction(
    "SwitchToThread" if sys.platform == "win32" else "sched_yield", types.int32()
)


@program
def barrier(counters: Any, threads: int, patience: int) -> None:
    """Wait until all threads have arrived.

    ``counters[0]`` counts arrivals; a nonzero ``counters[8]`` releases all threads.

    After ``patience`` polls, the thread yields its core to other programs, perhaps for milliseconds.
    """
    if threads == 1:
        return
    arrived, released = counters.ctypes.data, counters[8:].ctypes.data
    goal = (add_atomically(arrived, 1) // threads + 1) * threads
    polls = 0
    while add_atomically(arrived, 0) < goal and add_atomically(released, 0) == 0:
        polls += 1
        if polls > patience:
            _yield_to_others()
