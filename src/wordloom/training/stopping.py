"""Stop a run on a signal, after the current step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

__all__ = ["sigterm_interrupts", "stop_on_signals"]


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """SIGTERM is raised as a Ctrl-C is, where nothing is under way that must be finished."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def stop_on_signals(
    stop: threading.Event, signals: Sequence[int] = (signal.SIGTERM, signal.SIGINT)
) -> Iterator[None]:
    """SIGTERM and the first Ctrl-C set ``stop``, or those of them named; a second Ctrl-C stops at once.

    An exception at the first would be raised wherever Python is, also where it is swallowed.  Outside the
    main thread, where there are no signals, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, frame: Any) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, on_signal) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
