"""Run the server: listen, answer, and drain at SIGTERM."""

from __future__ import annotations

import copy
import logging
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import uvicorn

from wordloom.errors import WordloomError
from wordloom.serve.app import create_app
from wordloom.serve.limits import LOOPBACK, Limits
from wordloom.serve.models import Models

log = logging.getLogger(__name__)


def serve(
    models: Models,
    limits: Limits,
    *,
    host: str,
    port: int,
    origins: Sequence[str] = (),
    access_log: bool = False,
    first: Sequence[str] = (),
    say: Callable[[str], object] = log.info,
) -> None:
    """Listen at ``host`` and ``port`` until SIGTERM or SIGINT.

    After the signal, the server accepts no request, and running ones have ``limits.drain_seconds`` to end.
    ``say`` is called with a line that names the models and the address.

    Raises WordloomError for a host beyond this machine without a key, and for an address that is in use.
    """
    app = create_app(models, limits, origins=origins, first=first)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        access_log=access_log,
        log_config=_logging(),
        timeout_graceful_shutdown=round(limits.drain_seconds),
        h11_max_incomplete_event_size=1 << 16,
        server_header=False,
        ws="none",
    )
    server, listener = _Server(config), listening(host, port)
    where = f"[{host}]" if ":" in host else host
    say(f"serving {', '.join(models.names)} at http://{where}:{listener.getsockname()[1]}/  (Ctrl-C ends)")
    try:
        server.run(sockets=[listener])
    finally:
        models.close(0.0)


class _Server(uvicorn.Server):
    """A server that ends normally after SIGTERM and SIGINT; uvicorn's would raise the signal once more."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {each: signal.signal(each, self.handle_exit) for each in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)


def _logging() -> dict[str, Any]:
    """Return uvicorn's settings of logging, without its lines about starting and stopping."""
    found = copy.deepcopy(uvicorn.config.LOGGING_CONFIG)
    found["loggers"]["uvicorn.error"] = {"level": "WARNING"}
    return found


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens; raises WordloomError for an address that cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends small answers at once only where the protocol is named
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise WordloomError(
            f"cannot listen at {host} port {port}: {error.strerror}; choose another --port or --host"
        ) from None
    listener.set_inheritable(True)
    return listener


def is_loopback(host: str) -> bool:
    """Return whether ``host`` is reached from this machine alone."""
    return host in LOOPBACK or host.startswith("127.")
