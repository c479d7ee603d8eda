"""Connections that send no request in time are closed, before they use up all that a machine allows."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

SECONDS_TO_ASK = 20.0  # from the first byte of a request, or the connection, to the end of its headers
MOST_HEADER_BYTES = 64 << 10  # of the address and the headers of a request


class TimedProtocol(HttpToolsProtocol):
    """HTTP/1.1 as uvicorn speaks it, with limits to how long and how much a client may take to ask."""

    _closing: asyncio.TimerHandle | None = None
    _n_received: int | None = None  # bytes since a request began whose headers are not complete; else None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._limit()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._n_received is not None:
            self._n_received += len(data)
            if self._n_received > MOST_HEADER_BYTES:
                self._give_up()
        if self.cycle is None or self.cycle.response_complete:  # it asks, or its last request has no end
            self._limit()

    def on_message_begin(self) -> None:
        self._n_received = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._n_received = None
        self._keep()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._keep()
        super().connection_lost(exc)

    def _limit(self) -> None:
        if self._closing is None and not self.transport.is_closing():
            self._closing = self.loop.call_later(SECONDS_TO_ASK, self._give_up)

    def _keep(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()
