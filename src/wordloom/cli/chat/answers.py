"""Print an answer piece by piece, until Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

from wordloom.cli.generate import start_now


def print_pieces(pieces: Iterator[str], *, terminal: bool, before: str = "") -> None:
    """Print ``before`` and the pieces; on a terminal the first Ctrl-C ends them."""
    from wordloom.training.stopping import stop_on_signals

    stop = threading.Event()
    try:
        started = start_now(pieces)
        with stop_on_signals(stop, [signal.SIGINT] if terminal else []):
            print(before, end="", flush=True)
            for text in started:
                print(text, end="", flush=True)
                if stop.is_set():
                    break
    except KeyboardInterrupt:  # before the first piece, or a second time
        if not terminal:
            raise
    finally:
        close = getattr(pieces, "close", None)
        if close is not None:
            close()
    print(flush=True)
