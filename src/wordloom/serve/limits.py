"""The limits of a server: bodies, keys, hosts and requests."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wordloom.serve.errors import ApiError, shown

AFTER_DRAIN = 5.0  # seconds in which the requests that were ended at the end of the drain get their errors
_OPEN = ("/health",)  # answered without a key, as the files of the page are
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of requests, and of what the server keeps.

    Attributes:
        context: the longest text in tokens; None: the model's own limit.
        max_tokens: the most new tokens of a request.
        choices: the most choices of a request.
        slots: the most texts that a model continues at once.
        queue: the most requests that wait for a model.
        body_bytes: the most bytes of a request.
        seconds: the longest time of a request.
        prefix_bytes: the most bytes of kept beginnings of texts.
        model_bytes: the most bytes of weights; the least recently used model leaves.  None: no limit.
        drain_seconds: the longest time of requests that run when the server ends.
        keys: API keys; empty: none is asked for.
        hosts: the names by which the server is called; empty: any.
    """

    context: int | None = None
    max_tokens: int = 4096
    choices: int = 16
    slots: int = 32
    queue: int = 128
    body_bytes: int = 4 << 20
    seconds: float = 600.0
    prefix_bytes: int = 1 << 28
    model_bytes: int | None = None
    drain_seconds: float = 30.0
    keys: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()


class Gate:
    """Refuse requests with a foreign host, without a key, or with a body that is too large.

    An unknown host is refused where no key is asked for: a page of another site that resolves its own name
    to this machine could otherwise use the server.
    """

    def __init__(self, app: ASGIApp, limits: Limits, open_paths: Sequence[str] = ()) -> None:
        self.app, self.limits = app, limits
        self.open = {*_OPEN, *open_paths}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        try:
            self._check(scope, headers)
        except ApiError as error:
            await error.response()(scope, receive, send)
            return
        await self._limited(scope, receive, send)

    def _check(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        limits = self.limits
        host = _host(headers.get(b"host", b"").decode("latin-1"))
        if limits.hosts and host not in limits.hosts:
            raise ApiError(
                400, f"unknown host {shown(host)}; name it with --allowed-host", code="unknown_host"
            )
        if limits.keys and scope["path"] not in self.open and scope["method"] != "OPTIONS":
            given = headers.get(b"authorization", b"")
            scheme, _, key = given.partition(b" ")
            # every key is compared, in constant time
            fits = [hmac.compare_digest(key.strip(), known.encode()) for known in limits.keys]
            if scheme.lower() != b"bearer" or not any(fits):
                raise ApiError(401, "an API key is needed: Authorization: Bearer KEY", code="invalid_api_key")
        length = headers.get(b"content-length", b"0")
        if not length.isdigit():
            raise ApiError(400, "content-length is not a number")
        if int(length) > limits.body_bytes:
            raise self._too_large()

    def _too_large(self) -> ApiError:
        return ApiError(413, f"a body has at most {self.limits.body_bytes:,} bytes", code="request_too_large")

    async def _limited(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; a body without a length is counted as it comes."""
        size, ended, began = 0, False, time.monotonic()

        async def counted() -> Message:
            nonlocal size, ended
            if ended:  # what comes now is that the client leaves
                return await receive()
            try:
                left = self.limits.seconds - (time.monotonic() - began)
                message = await asyncio.wait_for(receive(), max(0.0, left))
            except TimeoutError:
                raise HTTPException(408, "the body did not arrive in time") from None
            ended = not message.get("more_body", False)
            size += len(message.get("body", b""))
            if size > self.limits.body_bytes:
                error = self._too_large()
                raise HTTPException(error.status, error.message)
            return message

        await self.app(scope, counted, send)


def _host(value: str) -> str:
    """Return the name in a Host header, without the port."""
    if value.startswith("["):
        return value[1:].partition("]")[0]
    return value.partition(":")[0].lower()


def allowed_hosts(host: str, extra: Sequence[str], keys: Sequence[Any]) -> tuple[str, ...]:
    """Return the names by which a server that listens at ``host`` may be called; empty: any."""
    if keys and not extra:
        return ()
    return tuple(dict.fromkeys((*LOOPBACK, host.lower(), *(name.lower() for name in extra))))
