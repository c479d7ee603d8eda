"""Stop a run on a signal, after the current step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM, for work that need not finish a step."""

    def on_signal(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    with _handled((signal.SIGTERM,), on_signal):
        yield


@contextmanager
def stop_on_signals(
    stop: threading.Event, signals: Sequence[int] = (signal.SIGTERM, signal.SIGINT)
) -> Iterator[None]:
    """Set ``stop`` on SIGTERM and the first Ctrl-C, or on ``signals``; a second Ctrl-C stops at once.

    The first Ctrl-C raises no exception, because code could swallow the exception.
    """

    def on_signal(number: int, frame: Any) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    with _handled(signals, on_signal):
        yield


@contextmanager
def _handled(signals: Sequence[int], on_signal: Callable[[int, Any], None]) -> Iterator[None]:
    """Handle ``signals`` by ``on_signal`` within the block; only the main thread can handle signals."""
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, on_signal) for number in signals} if is_main else {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
