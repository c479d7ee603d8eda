"""Run a server in a process of its own, and read its answers.

The client shares the machine with the server, so it reads events from the socket without a library.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

__all__ = ["call", "free_port", "quantiles", "report", "running", "server", "stream"]


@contextmanager
def server(checkpoint: str, *options: str, threads: int | None = None) -> Iterator[tuple[int, int]]:
    """Run ``wordloom serve``; give its port and its process id."""
    port = free_port()
    command = [sys.executable, "-m", "wordloom", "serve", f"model={checkpoint}", "--port", str(port)]
    environment = {**os.environ, **({"OMP_NUM_THREADS": str(threads)} if threads else {})}
    with running([*command, *options], port, environment) as pid:
        yield port, pid


@contextmanager
def running(
    command: Sequence[str], port: int, environment: Mapping[str, str] | None = None, ready: str = "/health"
) -> Iterator[int]:
    """Run a server until it answers ``ready``, and end it afterwards; give its process id."""
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )  # fmt: skip
    try:
        asyncio.run(_until_healthy(process, port, ready))
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


async def _until_healthy(process: Any, port: int, ready: str) -> None:
    for _ in range(1800):
        if process.poll() is not None:
            raise SystemExit(f"a server ended with {process.returncode}: {' '.join(process.args)}")
        try:
            status, _ = await call(port, "GET", ready)
            if status == 200:
                return
        except OSError:
            pass
        await asyncio.sleep(0.1)
    raise SystemExit(f"a server does not answer after three minutes: {' '.join(process.args)}")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


async def _open(port: int, method: str, path: str, body: Any) -> tuple[Any, Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    content = b"" if body is None else json.dumps(body).encode()
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    writer.write(head.encode() + content)
    await writer.drain()
    return reader, writer


async def call(port: int, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Return the status and the body of an answer."""
    reader, writer = await _open(port, method, path, body)
    raw = await reader.read()
    writer.close()
    head, _, rest = raw.partition(b"\r\n\r\n")
    status = int(head.split()[1])
    if b"transfer-encoding: chunked" in head.lower():
        rest = b"".join(re.findall(rb"[0-9a-f]+\r\n(.*?)\r\n", rest, re.DOTALL))
    return status, json.loads(rest) if rest.startswith((b"{", b"[")) else rest


async def stream(port: int, body: Any, *, parse: bool = True) -> AsyncIterator[tuple[float, Any]]:
    """Yield the time and the data of each event; a status other than 200 is an event of its own.

    Without ``parse``, the data of an event are its bytes.
    """
    reader, writer = await _open(port, "POST", "/v1/completions", {**body, "stream": True})
    try:
        status = int((await reader.readline()).split()[1])
        while (await reader.readline()).strip():
            pass
        if status != 200:
            yield time.perf_counter(), {"status": status}
            return
        while line := await reader.readline():
            if line.startswith(b"data: "):
                data = line[6:].strip()
                if data == b"[DONE]":
                    return
                yield time.perf_counter(), json.loads(data) if parse else data
    finally:
        writer.close()


def quantiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return the median, the 95 % quantile and the largest in milliseconds."""
    ordered = sorted(seconds)
    return {
        name: round(1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)
        for name, share in (("p50", 0.5), ("p95", 0.95), ("max", 1.0))
    }


def report(values: dict[str, Any]) -> None:
    """Print a line of JSON."""
    print(json.dumps(values), flush=True)
