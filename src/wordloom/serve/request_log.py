"""A line for each request: its model, status and times, never its text."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, MutableMapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wordloom.serve.errors import shown

log = logging.getLogger("wordloom.requests")


class RequestLog:
    """Log each request when its answer has ended, except for the paths ``left_out``, such as the page's.

    A line has the client's address, the method, the path, the model, the status, the seconds until the first
    byte of the answer, and the seconds until the last.
    """

    def __init__(self, app: ASGIApp, left_out: Collection[str]) -> None:
        self.app, self.left_out = app, frozenset(left_out)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self.left_out:
            await self.app(scope, receive, send)
            return
        began, first = time.perf_counter(), 0.0
        status, ended = 0, False

        async def watched(message: Message) -> None:
            nonlocal first, status, ended
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                first = first or time.perf_counter() - began
                ended = not message.get("more_body", False)
            await send(message)

        state: MutableMapping[str, Any] = scope.setdefault("state", {})
        try:
            await self.app(scope, receive, watched)
        except Exception:  # which is answered with 500 further out
            status, ended = status or 500, True
            raise
        finally:
            model = shown(state["model"]) if "model" in state else "-"
            client = scope["client"][0] if scope.get("client") else "-"
            end = "" if ended else ", the client left"
            log.info(
                "%s %s %s model=%s %s first=%.3fs all=%.3fs%s", client, scope["method"],
                shown(scope["path"])[1:-1], model, status or "-", first, time.perf_counter() - began, end,
            )  # fmt: skip


def write_to_output(config: dict[str, Any]) -> None:
    """Add to ``config``, a dictionary for :func:`logging.config.dictConfig`, that this log is printed."""
    config["formatters"]["requests"] = {"format": "%(asctime)s %(message)s"}
    config["handlers"]["requests"] = {
        "class": "logging.StreamHandler", "stream": "ext://sys.stdout", "formatter": "requests",
    }  # fmt: skip
    config["loggers"][log.name] = {"handlers": ["requests"], "level": "INFO", "propagate": False}
