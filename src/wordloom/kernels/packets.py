"""Programs of one packet of numbers, and each thread's share of one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from numba import types

from wordloom.kernels.machine_code import compiled_callback, exact

__all__ = ["bounds", "machine_code"]

_CPointer: Any = types.CPointer


@exact
def bounds(packet: Any, share: int) -> tuple[int, int]:
    """From where to where share number ``share`` of the packet's first figure of items goes."""
    return packet[3] * share // packet[1], packet[3] * (share + 1) // packet[1]


@functools.cache
def machine_code(program: Callable[[Any], None]) -> int:
    """Where the machine code of ``program``, of one packet, begins; compiled when first asked for."""
    return int(compiled_callback(types.void(_CPointer(types.int64)), program).address)
