"""Work for several threads whose results are wanted in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["in_order"]

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(
    pool: ThreadPoolExecutor, task: Callable[[Item], Result], items: Iterable[Item], under_way: int
) -> Iterator[Result]:
    """``task`` of each item, in the order of the items.

    At most ``under_way`` are begun, or finished and not yet taken, at a time: results do not pile up.
    """
    waiting: deque[Future[Result]] = deque()
    for item in items:
        if len(waiting) == under_way:
            yield waiting.popleft().result()
        waiting.append(pool.submit(task, item))
    while waiting:
        yield waiting.popleft().result()
