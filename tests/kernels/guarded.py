"""Memory that lies against a page that may not be touched: who reads or writes past it ends with a signal."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from wordloom.kernels import programs
from wordloom.nn import dropout, fused, recurrent_kernels

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Guarded:
    """``size`` bytes that end where a forbidden page begins, or begin where one ends."""

    def __init__(self, size: int, *, at_end: bool) -> None:
        page = mmap.PAGESIZE
        pages = max(1, -(-size // page))
        self.map = mmap.mmap(-1, (pages + 2) * page)
        self.first = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        for forbidden in (self.first, self.first + (pages + 1) * page):
            if _libc.mprotect(forbidden, page, 0):
                raise OSError(ctypes.get_errno(), "mprotect")
        self.size = size
        self.address = self.first + page + (pages * page - size if at_end else 0)

    def array(self, dtype: type, *shape: int) -> np.ndarray:
        """The memory as an array, which is valid as long as this object lives."""
        raw = (ctypes.c_char * self.size).from_address(self.address)
        return np.frombuffer(raw, dtype=dtype).reshape(shape)


def _extent(t: torch.Tensor) -> int:
    """Bytes from the first element of ``t`` to behind its last."""
    if not t.numel():
        return 0
    return t.element_size() * (1 + sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True)))


@contextmanager
def guarded_programs(*, at_end: bool) -> Iterator[list[str]]:
    """Inside, each tensor of a program lies in guarded memory while it runs; gives the names of those run."""
    names: list[str] = []
    own = programs.run

    def run(name: str, dtype: torch.dtype, *arguments: torch.Tensor | float | None, scratch: int = 0) -> None:
        names.append(name)
        held = []
        given: list[float | None] = []
        for argument in arguments:
            if not isinstance(argument, torch.Tensor):
                given.append(argument)
                continue
            memory = Guarded(_extent(argument), at_end=at_end)
            ctypes.memmove(memory.address, argument.data_ptr(), memory.size)
            held.append((argument, memory))
            given.append(memory.address)
        own(name, dtype, *given, scratch=scratch)
        for argument, memory in held:
            ctypes.memmove(argument.data_ptr(), memory.address, memory.size)

    rooms = []

    def scratch_memory(floats: int) -> torch.Tensor:
        memory = Guarded(4 * floats, at_end=at_end)
        rooms.append(memory)
        return torch.from_numpy(memory.array(np.float32, floats))

    users = (programs, dropout, fused, recurrent_kernels)
    programs_memory, programs.scratch_memory = programs.scratch_memory, scratch_memory
    for module in users:
        module.run = run
    try:
        yield names
    finally:
        for module in users:
            module.run = own
        programs.scratch_memory = programs_memory
