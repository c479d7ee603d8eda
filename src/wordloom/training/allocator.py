"""Keep large blocks of memory in the process between training steps, in pages of 2 MiB.

A training step allocates and frees the same hundreds of megabytes each time.  By default glibc serves them
with mmap and returns them with munmap, so every step faults its pages in again; on two cores that cost a
third of the step.  Looking up pages of 4 KiB instead of 2 MiB cost another 3 to 10 per cent.  The command and
the trainer call :func:`tune_allocator`, unless ``train.allocator`` is "system".
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

# names and numbers of <malloc.h> and <sys/mman.h>
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
_MADV_HUGEPAGE = 14
_TOP_PAD = 256 << 20  # grow the heap by 256 MiB at a time
_LARGE_PAGE = 2 << 20

_tuned: bool | None = None


def tune_allocator() -> bool:
    """Make glibc serve large blocks from the heap and keep it; return False where there is no glibc.

    A second call changes nothing and returns the first result.
    """
    global _tuned
    if _tuned is None:
        _tuned = platform.libc_ver()[0] == "glibc" and _tune(ctypes.CDLL(None))
    return _tuned


def _tune(libc: Any) -> bool:
    mallopt = libc.mallopt
    mallopt.argtypes, mallopt.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    done = all(mallopt(name, value) == 1 for name, value in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1)))
    large = _large_pages(libc)
    done = mallopt(_M_TOP_PAD, _TOP_PAD) == 1 and done
    log.info(
        "memory allocator: large blocks are kept between steps%s (train.allocator = 'system' turns it off)",
        ", in pages of 2 MiB" if large else "",
    )
    return done


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def _large_pages(libc: Any) -> bool:
    """Make the kernel use 2 MiB pages for the future heap; return False where it does not.

    The kernel takes advice on addresses, so the heap's addresses grow once to the size of the machine's
    memory.  A page takes memory only when it is first touched.
    """
    setting = _read("/sys/kernel/mm/transparent_hugepage/enabled")
    if "[madvise]" not in setting:
        return "[always]" in setting
    if _read("/proc/sys/vm/overcommit_memory").strip() == "2":
        return False  # where addresses count as memory
    libc.sbrk.argtypes, libc.sbrk.restype = [ctypes.c_ssize_t], ctypes.c_void_p
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    libc.free.argtypes, libc.free.restype = [ctypes.c_void_p], None
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return False
    before = libc.sbrk(0)
    # mallopt takes an int: the heap grows in steps of just under 2 GiB, one beside the other
    step = (1 << 31) - (4 << 20)
    libc.mallopt(_M_TOP_PAD, step)
    held = []
    for _ in range(max(1, memory // step)):
        block = libc.malloc(step - (8 << 20))
        if not block:
            break
        held.append(block)
    for block in held:
        libc.free(block)
    after = libc.sbrk(0)
    first, last = -(-before // _LARGE_PAGE) * _LARGE_PAGE, after // _LARGE_PAGE * _LARGE_PAGE
    if last <= first:
        return False
    return libc.madvise(first, last - first, _MADV_HUGEPAGE) == 0
