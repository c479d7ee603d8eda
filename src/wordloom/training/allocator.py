"""Keep large blocks in the process between steps: glibc's defaults hand them back at every step.

A training step allocates and frees the same hundreds of megabytes each time.  glibc serves them with
mmap and returns them with munmap, so every step faults all its pages in anew; on two cores that cost a
third of the step.  Called by the command and the trainer, never on import; ``train.allocator = "system"``
leaves the process alone.
"""

from __future__ import annotations

import ctypes
import logging
import platform

__all__ = ["tune_allocator"]

log = logging.getLogger(__name__)

# names and numbers of <malloc.h>
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
_TOP_PAD = 256 << 20  # grow the heap by 256 MiB at a time


def tune_allocator() -> bool:
    """Tell glibc to serve large blocks from the heap and to keep it; False where there is no glibc."""
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    mallopt.argtypes, mallopt.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    done = all(
        mallopt(name, value) == 1
        for name, value in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1), (_M_TOP_PAD, _TOP_PAD))
    )
    log.info(
        'memory allocator: large blocks are kept between steps (train.allocator = "system" turns it off)'
    )
    return done
