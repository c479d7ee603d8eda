"""Set the number of threads that PyTorch uses in the calling thread, without changing other threads.

``torch.set_num_threads`` also sets the number of every thread that first calls PyTorch later.  A thread that
begins while a temporary number is set would keep that number.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch


def set_own_threads(threads: int) -> None:
    """Let PyTorch use ``threads`` threads in the calling thread.

    The number of other threads does not change, also if they begin later.  Without access to PyTorch's OpenMP
    runtime (outside Linux), this is ``torch.set_num_threads``.
    """
    runtime = _runtime()
    if runtime is None:
        torch.set_num_threads(threads)
        return
    torch.get_num_threads()  # a thread's first call sets its number, which would undo ours
    runtime.omp_set_num_threads(threads)
    if torch._C.has_mkl:
        runtime.MKL_Set_Num_Threads_Local(threads)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let PyTorch use the calling thread alone inside the block.

    Threads that share an operation spin for milliseconds after it, on cores that the next program needs.
    """
    before = torch.get_num_threads()
    if before > 1:
        set_own_threads(1)
    try:
        yield
    finally:
        if before > 1:
            set_own_threads(before)


@functools.cache
def _runtime() -> Any:
    """Return PyTorch's library, which links its OpenMP runtime and MKL; None if they are not found."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        names = ["omp_set_num_threads", *["MKL_Set_Num_Threads_Local"] * torch._C.has_mkl]
        return library if all(hasattr(library, name) for name in names) else None
    except OSError:
        return None
