"""Programs compiled by numba that run on PyTorch's own threads.

A second pool of threads beside PyTorch's would fight its waiting threads for the cores; so a program is
handed to the OpenMP runtime that PyTorch has loaded, and its threads take shares of the work in turn.  Work
is cut alike whatever the number of threads, so results repeat their bits.

Where there is no such runtime (not Linux) or no numba, :func:`ready` is False and callers use PyTorch.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import logging
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wordloom.kernels.acceptance import fall_back, plain

__all__ = ["MINIMUM_ELEMENTS", "SHARES", "fits", "ready", "run", "sgemm"]

log = logging.getLogger(__name__)

# A call costs some 15 microseconds and the first one loads numba: below this, PyTorch's kernels are as good.
MINIMUM_ELEMENTS = 1 << 14
SHARES = 64


@functools.cache
def ready() -> bool:
    """Whether programs can run here; the first call loads numba."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        _openmp()
        importlib.import_module("wordloom.kernels.memory")
    except (ImportError, OSError, AttributeError) as error:
        log.info("elementwise layers run as PyTorch's separate kernels: %s", error)
        return False
    return True


@functools.cache
def _openmp() -> Any:
    # the copy that PyTorch has loaded, or none: a second one would bring threads of its own
    parallel = ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW).GOMP_parallel
    parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    parallel.restype = None
    return parallel


@functools.cache
def sgemm() -> int:
    """The address of MKL's ``sgemm``, which keeps to one thread inside a program; 0 where there is none."""
    if not (torch._C.has_mkl and ready()):
        return 0
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return ctypes.cast(library.sgemm_, ctypes.c_void_p).value or 0
    except (OSError, AttributeError):
        return 0


def fits(*tensors: Tensor) -> bool:
    """Whether ``tensors`` are what the programs take: alike, dense, on the CPU, and worth it."""
    first = tensors[0]
    if first.numel() < MINIMUM_ELEMENTS or first.dtype not in (torch.float32, torch.bfloat16):
        return False
    if torch.compiler.is_compiling():
        return False
    for t in tensors:
        if t.device.type != "cpu":
            return False
        if not plain(t):
            fall_back("a fused layer", f"a tensor is a {type(t).__name__}")
            return False
        if not t.is_contiguous():
            return False
        if t.dtype != first.dtype or t.shape != first.shape:
            return False
    return ready()


def run(name: str, dtype: torch.dtype, *arguments: Tensor | int) -> None:
    """Run program ``name`` on all of PyTorch's threads, its tensors stored as ``dtype``."""
    from wordloom.kernels import attention as attention_programs
    from wordloom.kernels import elementwise as fused_programs
    from wordloom.kernels import recurrent as recurrent_programs
    from wordloom.kernels.packets import machine_code

    every = (fused_programs.PROGRAMS, attention_programs.PROGRAMS, recurrent_programs.PROGRAMS)
    program = next(programs[name] for programs in every if name in programs)
    packed = [a.data_ptr() if isinstance(a, Tensor) else a for a in arguments]
    packet = (ctypes.c_int64 * (3 + len(packed)))(0, SHARES, dtype == torch.bfloat16, *packed)
    _openmp()(machine_code(program), packet, torch.get_num_threads(), 0)
