"""What comes from a pipe or a terminal, taken as it comes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from queue import Queue
from threading import Event, Thread
from typing import Any, TypeVar

__all__ = ["arriving", "taken"]

Item = TypeVar("Item")


def taken(items: Iterator[Item], most: int) -> Iterator[list[Item]]:
    """``items`` in lists of ``most``, the last one shorter."""
    while some := list(islice(items, most)):
        yield some


def arriving(items: Iterable[Item], most: int) -> Iterator[list[Item]]:
    """``items`` in lists of those that are there, up to ``most``, and at least one, which is waited for.

    A thread takes them, ``most`` ahead of those given.  An error of theirs is raised behind what came before.
    """
    arrived: Queue[tuple[Item] | BaseException | None] = Queue(most)
    left = Event()

    def take(_: Any) -> None:
        end = None
        try:
            for item in items:
                arrived.put((item,))
                if left.is_set():
                    return
        except BaseException as error:  # it belongs to the one who asks
            end = error
        arrived.put(end)

    # it holds sys.stdin: a program that ends closes it otherwise, which Python aborts on where it is read
    Thread(target=take, args=(sys.stdin,), daemon=True).start()
    try:
        while True:
            found = []
            item = arrived.get()
            while isinstance(item, tuple):
                found.append(item[0])
                if len(found) == most or arrived.empty():
                    break
                item = arrived.get()
            if found:
                yield found
            if isinstance(item, BaseException):
                raise item
            if item is None:
                return
    finally:
        left.set()
        while not arrived.empty():  # the thread may wait for room
            arrived.get()
