"""A worker thread that computes the requests to one model, one at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from wordloom.serve.engine import QueueFullError

Item = TypeVar("Item")
Result = TypeVar("Result")


class AbandonedError(Exception):
    """The client of a request has left, or its time is over."""


class Job:
    """A request in a worker."""

    def __init__(self) -> None:
        self._abandoned = threading.Event()

    def abandon(self) -> None:
        """End the request before its next item, because nobody waits for the result."""
        self._abandoned.set()

    def each(self, items: Sequence[Item]) -> Iterator[Item]:
        """Yield ``items``; raises AbandonedError between two items once the request is abandoned."""
        for item in items:
            if self._abandoned.is_set():
                raise AbandonedError
            yield item


class Worker:
    """A thread that runs one call after another.

    Args:
        name: the name of the model.
        queue: how many calls may wait while another runs; further calls are refused.
    """

    def __init__(self, name: str, queue: int) -> None:
        self.queue = queue
        self._n = 0
        self._count = threading.Lock()
        self._executor = ThreadPoolExecutor(1, f"wordloom-{name}")

    @property
    def n_unfinished(self) -> int:
        """The number of calls that run or wait."""
        return self._n

    @property
    def n_waiting(self) -> int:
        """The number of calls that wait."""
        return max(0, self._n - 1)

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        """Queue ``call``; a call that waits can be cancelled.  Raises QueueFullError if too many wait."""
        with self._count:
            if self._n > self.queue:
                raise QueueFullError(f"{self.n_waiting} requests wait already; ask again later")
            self._n += 1
        try:
            future = self._executor.submit(call)
        except BaseException:
            self._finished()
            raise
        future.add_done_callback(lambda _: self._finished())
        return future

    def _finished(self) -> None:
        with self._count:
            self._n -= 1

    def close(self) -> None:
        """Drop the calls that wait, and end the thread after the call that runs."""
        self._executor.shutdown(wait=True, cancel_futures=True)
