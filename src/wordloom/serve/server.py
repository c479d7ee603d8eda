"""Run the server: listen, answer, and drain at SIGTERM."""

from __future__ import annotations

import copy
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import uvicorn

from wordloom.errors import WordloomError
from wordloom.serve import request_log
from wordloom.serve.app import create_app
from wordloom.serve.connections import TimedProtocol
from wordloom.serve.limits import AFTER_DRAIN, LOOPBACK, Limits
from wordloom.serve.models import Models

log = logging.getLogger(__name__)


def serve(
    models: Models,
    limits: Limits,
    *,
    host: str,
    port: int,
    origins: Sequence[str] = (),
    log_requests: bool = False,
    first: Sequence[str] = (),
    say: Callable[[str], object] = log.info,
) -> None:
    """Listen at ``host`` and ``port`` until SIGTERM or SIGINT.

    After the signal, the server accepts no request, and running ones have ``limits.drain_seconds`` to end.
    ``say`` is called with a line that names the models and the address.  With ``log_requests``, each request
    has a line in the output.

    Raises WordloomError for an address that cannot be used, and for one of the ``first`` models that cannot
    be loaded, which ends the server.
    """
    app = create_app(
        models,
        limits,
        origins=origins,
        first=first,
        on_failure=lambda: server.end(),
        log_requests=log_requests,
    )
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        access_log=False,
        log_config=_logging(),
        timeout_graceful_shutdown=round(limits.drain_seconds + AFTER_DRAIN),
        http=TimedProtocol,
        server_header=False,
        ws="none",
    )
    server, listener = _Server(config, models, limits), listening(host, port)
    where = f"[{host}]" if ":" in host else host
    say(f"serving {', '.join(models.names)} at http://{where}:{listener.getsockname()[1]}/  (Ctrl-C ends)")
    try:
        server.run(sockets=[listener])
    finally:
        models.close(0.0)
    if models.error is not None:
        raise WordloomError(models.error)


class _Server(uvicorn.Server):
    """A server that ends normally after SIGTERM and SIGINT; uvicorn's would raise the signal once more.

    Requests that still run after ``limits.drain_seconds`` end with an error that says so.
    """

    def __init__(self, config: uvicorn.Config, models: Models, limits: Limits) -> None:
        super().__init__(config)
        self.models, self.drain_seconds = models, limits.drain_seconds

    def end(self) -> None:
        """End the server, and its requests when their time is over."""
        if not self.should_exit:
            self.should_exit = True
            timer = threading.Timer(self.drain_seconds, self.models.close, (0.0,))
            timer.daemon = True
            timer.start()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            super().handle_exit(sig, frame)  # a second signal does not wait
        self.end()

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
    request_log.write_to_output(found)
    return found


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens; raises WordloomError for an address that cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends small answers at once only where the protocol is named
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)  # so that an address in use is an error here
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
