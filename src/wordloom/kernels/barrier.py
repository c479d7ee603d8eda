"""Where the threads of a team wait for one another inside a compiled program."""

from __future__ import annotations

import sys
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from wordloom.kernels.cache import compiled

__all__ = ["add_atomically", "meet"]

_exact: Any = compiled(nogil=True, error_model="numpy")
_intrinsic: Any = intrinsic

_yield_to_others = types.ExternalFunction(
    "SwitchToThread" if sys.platform == "win32" else "sched_yield", types.int32()
)


@_intrinsic
def add_atomically(_typing: Any, address: Any, value: Any) -> Any:
    """Add to the int64 at ``address``, seen by all threads at once; returns what was there."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        place = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", place, args[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


@_exact
def meet(counters: Any, threads: int, patience: int) -> None:
    """Wait until all threads are here.  ``counters[0]`` counts arrivals, ``counters[8]`` set lets all go.

    After ``patience`` looks the core is offered to other programs, which may keep it for milliseconds.
    """
    if threads == 1:
        return
    arrived, left = counters.ctypes.data, counters[8:].ctypes.data
    goal = (add_atomically(arrived, 1) // threads + 1) * threads
    spins = 0
    while add_atomically(arrived, 0) < goal and add_atomically(left, 0) == 0:
        spins += 1
        if spins > patience:  # another program may have a core of ours: let it finish
            _yield_to_others()
