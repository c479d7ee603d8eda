"""The CPU cores of this process, and tasks on threads: one on each, or many with their results in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def run_on_threads(threads: int, task: Callable[[int], Result], tasks: int | None = None) -> list[Result]:
    """Return ``task(number)`` of each number below ``tasks`` (by default one for each thread)."""
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(task, range(threads if tasks is None else tasks)))


def in_order(
    pool: ThreadPoolExecutor, task: Callable[[Item], Result], items: Iterable[Item], most: int
) -> Iterator[Result]:
    """Yield ``task`` of each item, in the order of the items.

    At most ``most`` tasks have started and not been yielded yet, which bounds the memory of their results.
    """
    waiting: deque[Future[Result]] = deque()
    for item in items:
        if len(waiting) == most:
            yield waiting.popleft().result()
        waiting.append(pool.submit(task, item))
    while waiting:
        yield waiting.popleft().result()


def cores() -> int:
    """Return the number of CPU cores that this process may use, which can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
