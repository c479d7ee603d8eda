"""Iterators in batches: of a fixed size, or of the items that a pipe or a terminal has delivered so far."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from queue import Queue
from threading import Event, Thread
from typing import Any, TypeVar

Item = TypeVar("Item")


def batches_of(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield lists of ``size`` items; the last list may be shorter."""
    items = iter(items)
    while batch := list(islice(items, size)):
        yield batch


def available_batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield the items that are available, up to ``size`` at a time; wait only if there is none.

    A thread reads up to ``size`` items ahead.  An error of ``items`` is raised after the items before it.
    """
    queue: Queue[tuple[Item] | BaseException | None] = Queue(size)
    closed = Event()

    def read(_: Any) -> None:
        end = None
        try:
            for item in items:
                queue.put((item,))
                if closed.is_set():
                    return
        except BaseException as error:  # raised by the consumer
            end = error
        queue.put(end)

    # the thread holds sys.stdin: else a program that ends closes it, and Python aborts while it is read
    Thread(target=read, args=(sys.stdin,), daemon=True).start()
    try:
        while True:
            batch = []
            item = queue.get()
            while isinstance(item, tuple):
                batch.append(item[0])
                if len(batch) == size or queue.empty():
                    break
                item = queue.get()
            if batch:
                yield batch
            if isinstance(item, BaseException):
                raise item
            if item is None:
                return
    finally:
        closed.set()
        while not queue.empty():  # the thread may wait for room
            queue.get()
