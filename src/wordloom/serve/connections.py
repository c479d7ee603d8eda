"""Connections that send no request in time are closed, before they use up all that a machine allows."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

SECONDS_TO_ASK = 20.0  # from the connection to the end of the first request's headers


class TimedProtocol(HttpToolsProtocol):
    """HTTP/1.1 as uvicorn speaks it, with a limit to how long a client may take to ask."""

    _closing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._closing = self.loop.call_later(SECONDS_TO_ASK, self._give_up)

    def on_headers_complete(self) -> None:
        self._keep()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._keep()
        super().connection_lost(exc)

    def _keep(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()
