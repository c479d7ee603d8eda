"""Run kernels on PyTorch's own threads.

A second pool of threads beside PyTorch's would compete with its waiting threads for the cores.  So a kernel
(:mod:`wordloom.kernels.parallel`) is handed to the OpenMP runtime that PyTorch has loaded.

Without that runtime (not Linux) or without numba, :func:`ready` is False and callers use PyTorch.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import logging
import os
import struct
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wordloom.kernels.acceptance import fall_back, plain

log = logging.getLogger(__name__)

# A call costs some 15 microseconds, so PyTorch's kernels are as fast for fewer elements.
MINIMUM_ELEMENTS = 1 << 14
SHARES = 64


@functools.cache
def ready() -> bool:
    """Return whether kernels can run here; the first call loads numba."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        _openmp()
        importlib.import_module("wordloom.kernels.parallel")
    except (ImportError, OSError, AttributeError) as error:
        log.info("elementwise layers run as PyTorch's separate kernels: %s", error)
        return False
    return True


@functools.cache
def _openmp() -> Any:
    # only the copy that PyTorch has loaded: a second one would bring threads of its own
    parallel = ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW).GOMP_parallel
    parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    parallel.restype = None
    return parallel


@functools.cache
def sgemm() -> int:
    """Return the address of MKL's ``sgemm``, which keeps to one thread inside a kernel; 0 without MKL."""
    if not (torch._C.has_mkl and ready()):
        return 0
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return ctypes.cast(library.sgemm_, ctypes.c_void_p).value or 0
    except (OSError, AttributeError):
        return 0


def fits(*tensors: Tensor) -> bool:
    """Return whether kernels accept ``tensors``: of one shape and dtype, contiguous, on a CPU and large."""
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


def run(
    name: str, dtype: torch.dtype, items: int, *arguments: Tensor | float | None, scratch: int = 0
) -> None:
    """Run kernel ``name``, "module.function", on ``items`` units of work, by all of PyTorch's threads.

    ``dtype`` is the dtype of the kernel's Stored tensors; None stands for an absent tensor.  Each thread gets
    ``scratch`` floats of memory.
    """
    kernel = _kernel(name)
    packed = [_as_integer(value, kind) for value, kind in zip(arguments, kernel.kinds, strict=True)]
    threads = torch.get_num_threads()
    memory = scratch_memory(threads * scratch) if scratch else None
    header = (0, SHARES, items, 0, memory.data_ptr() if memory is not None else 0, 4 * scratch)
    packet = (ctypes.c_int64 * (len(header) + len(packed)))(*header, *packed)
    _openmp()(kernel.address("bfloat16" if dtype == torch.bfloat16 else "float32"), packet, threads, 0)


@functools.cache
def _kernel(name: str) -> Any:
    module, _, function = name.rpartition(".")
    return getattr(importlib.import_module(f"wordloom.kernels.{module}"), function)


def scratch_memory(floats: int) -> Tensor:
    return torch.empty(floats, dtype=torch.float32)


def _as_integer(value: Tensor | float | None, kind: str) -> int:
    """Return an argument as a number of the packet: an address, an integer, or a float32's bits."""
    if isinstance(value, Tensor):
        return value.data_ptr()
    if kind == "float":
        return int(struct.unpack("<I", struct.pack("<f", value))[0])
    return 0 if value is None else int(value)
