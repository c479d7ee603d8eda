"""The threads that run one compiled program together."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch

log = logging.getLogger(__name__)

WEIGHTS_PER_THREAD = 2_000_000  # with fewer, waiting for one another costs more than sharing saves


class Accelerated:
    """A model that decodes by compiled programs.

    Attributes:
        most_alike: The largest number of tokens at once of which each gets the bits that it would get alone;
            1: a program takes one token of a row.
    """

    most_alike = 1


class Threads:
    """``count`` threads that run one program together; the caller is one of them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.counters = np.zeros(16, dtype=np.int64)  # of the barriers in the programs
        self.others = ThreadPoolExecutor(count - 1, "wordloom-decode") if count > 1 else None
        self.lock = threading.Lock()

    def run(self, program: Any, *arguments: Any) -> None:
        """Call ``program(*arguments, counters, thread)`` on every thread; return when all have ended."""
        shared = (*arguments, self.counters)
        with self.lock:
            started = []
            try:
                for thread in range(1, self.count):
                    assert self.others is not None
                    started.append(self.others.submit(partial(program, *shared, thread)))
                program(*shared, 0)
                for other in started:
                    other.result()
            except BaseException:
                # after an interrupt between two starts, some threads would wait for others for ever
                self.counters[8] = 1
                for other in started:
                    other.exception()
                self.counters[:] = 0
                raise


_shared: dict[int, Threads] = {}


def threads_for(weights: int) -> Threads:
    """Return as many threads as PyTorch uses, or fewer for a model of few ``weights``."""
    count = min(torch.get_num_threads(), max(1, weights // WEIGHTS_PER_THREAD))
    if count == 1:
        return Threads(1)  # each has a lock of its own, so that several models can run side by side
    if count not in _shared:
        _shared[count] = Threads(count)
    return _shared[count]


@contextmanager
def compiling(program: Any) -> Iterator[None]:
    """Log a line if the call of ``program`` inside the block has to compile it."""
    if program.overloads:
        yield
        return
    notice = threading.Timer(2.0, log.warning, ["compiling the decoding programs, once on this machine ..."])
    notice.start()
    yield
    notice.cancel()
