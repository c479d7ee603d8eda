"""The limits hold: keys, hosts, bodies, queues, times, and clients that leave or read slowly."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.serve.servers import Running, assistant, command, events, running, wait_until

from wordloom.serve.limits import Limits
from wordloom.serve.request_log import RequestLog

LONG = {"model": "llama", "prompt": "Count.", "max_tokens": 240, "logit_bias": {"0": -100}, "stream": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return assistant(tmp_path_factory.mktemp("served") / "llama")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    limits = Limits(slots=2, queue=2, body_bytes=20_000, seconds=60)
    with running({"llama": folder}, limits) as found:
        yield found


class Slowed:
    """Lets each step of an engine take some time, so that requests are still running when the test looks."""

    def __init__(self, engine: Any, seconds: float) -> None:
        self.engine, self.seconds = engine, seconds
        self.step = engine.step

    def __enter__(self) -> None:
        def slow() -> None:
            time.sleep(self.seconds)
            self.step()

        self.engine.step = slow

    def __exit__(self, *_: object) -> None:
        del self.engine.step


def test_keys_are_asked_for(folder: Path) -> None:
    with running({"llama": folder}, Limits(keys=("right", "other"))) as found:
        for headers in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": "right"},
            {"authorization": "é"},
        ):
            refused = found.get("/v1/models", headers={k: v.encode() for k, v in headers.items()})
            assert refused.status_code == 401
            assert refused.json()["error"]["code"] == "invalid_api_key"
            assert refused.headers["www-authenticate"] == "Bearer"
        for key in ("right", "other"):
            assert found.get("/v1/models", headers={"authorization": f"Bearer {key}"}).status_code == 200
        assert found.get("/metrics").status_code == 401
        assert found.get("/health").status_code == 200
        assert found.get("/").status_code == 200


def test_foreign_hosts_and_sites_are_refused(folder: Path) -> None:
    limits = Limits(hosts=("127.0.0.1", "localhost"))
    with running({"llama": folder}, limits) as found:
        assert found.get("/v1/models", headers={"host": "evil.example"}).status_code == 400
        assert found.get("/v1/models", headers={"host": f"localhost:{found.port}"}).status_code == 200
        for headers in ({"origin": "https://evil.example"},):
            answer = found.get("/v1/models", headers=headers)
            assert "access-control-allow-origin" not in answer.headers
        simple = httpx.post(  # what a page of another site may send without asking
            f"{found.url}/v1/completions", content=b'{"model":"llama","prompt":"a"}',
            headers={"content-type": "text/plain"},
        )  # fmt: skip
        assert simple.status_code in (400, 415)
    with running({"llama": folder}, origins=["https://mine.example"]) as found:
        answer = found.get("/v1/models", headers={"origin": "https://mine.example"})
        assert answer.headers["access-control-allow-origin"] == "https://mine.example"
        other = found.get("/v1/models", headers={"origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers
        for origin, status in (("https://mine.example", 200), ("https://evil.example", 400)):
            asked = {  # what a browser asks before a page may use OpenAI's client
                "origin": origin,
                "access-control-request-method": "POST",
                "access-control-request-headers": "authorization,content-type,x-stainless-lang",
                "access-control-request-private-network": "true",
            }
            answer = httpx.options(f"{found.url}/v1/chat/completions", headers=asked)
            assert answer.status_code == status
            assert (answer.headers.get("access-control-allow-origin") == origin) == (status == 200)


def test_bodies_are_limited(server: Running) -> None:
    body = json.dumps({"model": "llama", "prompt": "a" * 30_000}).encode()
    headers = {"content-type": "application/json"}
    known = httpx.post(f"{server.url}/v1/completions", content=body, headers=headers)
    unknown = httpx.post(
        f"{server.url}/v1/completions", content=iter([body[:9000], body[9000:]]), headers=headers
    )
    for refused in (known, unknown):
        assert refused.status_code == 413
        assert "at most 20,000 bytes" in refused.json()["error"]["message"]


@pytest.mark.parametrize("body", [
    b"", b"{", b"\xff\xfe", b'{"model": NaN}', b'{"model": "llama", "prompt": "a", "temperature": NaN}',
    b'{"model": "llama", "prompt": "a", "temperature": Infinity}', b"[" * 9000, b'{"a":' * 3000,
    b'{"model": "llama", "prompt": "\\ud800"}', b'{"model": "llama\\u0000", "prompt": "a"}',
    b'{"model": "llama", "prompt": "a", "max_tokens": 1e400}', b'"' + b"a" * 9000,
    b'{"model": "llama", "prompt": "a", "seed": 99999999999999999999999}', b"0" * 9000,
])  # fmt: skip
def test_hostile_bodies_are_mistakes_of_the_client(server: Running, body: bytes) -> None:
    found = httpx.post(
        f"{server.url}/v1/completions", content=body, headers={"content-type": "application/json"}
    )
    assert found.status_code in (400, 404), found.text
    assert found.json()["error"]["message"]


def test_strange_text_is_text(server: Running) -> None:
    for prompt in ("\0", "a\0b", "\ufffe", "🏳️‍🌈" * 5, "\r\n\u2028", "<|endoftext|>" * 3, " " * 200):
        found = server.post("/v1/completions", {"model": "llama", "prompt": prompt, "max_tokens": 3})
        assert found.status_code == 200, found.text


def test_a_full_queue_refuses_and_recovers(server: Running) -> None:
    engine = server.engine("llama")
    with Slowed(engine, 0.02), httpx.Client(timeout=60) as client:
        streams = []
        for _ in range(4):
            stream = client.stream("POST", f"{server.url}/v1/completions", json=LONG)
            streams.append((stream, stream.__enter__()))
        wait_until(lambda: (engine.n_live, engine.n_waiting) == (2, 2))
        refused = server.post("/v1/completions", LONG)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["type"] == "rate_limit_error"
        for stream, _ in streams:
            stream.__exit__(None, None, None)
        wait_until(lambda: engine.n_live == engine.n_waiting == 0)
    assert server.post("/v1/completions", {**LONG, "stream": False}).status_code == 200
    assert "wordloom_rejected_requests_total" in server.get("/metrics").text


def raw(server: Running, body: dict[str, Any], *, received: int = 0) -> socket.socket:
    """Send a request over a socket of our own."""
    connection = socket.socket()
    if received:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, received)
    connection.connect(("127.0.0.1", server.port))
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {len(content)}\r\n\r\n"
    )
    connection.sendall(head.encode() + content)
    return connection


def close_at_once(connection: socket.socket) -> None:
    """Reset the connection."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("leave", [
    socket.socket.close, close_at_once, lambda each: each.shutdown(socket.SHUT_WR)
], ids=["closed", "reset", "half-closed"])  # fmt: skip
def test_a_client_that_leaves_frees_its_slot(server: Running, leave: Any, stream: bool) -> None:
    engine = server.engine("llama")
    with Slowed(engine, 0.05):
        connection = raw(server, {**LONG, "stream": stream})
        wait_until(lambda: engine.n_live == 1)
        if stream:
            connection.recv(100)
        leave(connection)
        began = time.monotonic()
        wait_until(lambda: engine.n_live == 0)
        assert time.monotonic() - began < 2.0  # of the 12 s that the text would take
        connection.close()


def test_a_client_that_leaves_while_its_prompt_is_read_frees_its_slot(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wordloom.generate import exact_rows as exact
    from wordloom.serve.engine import engine as module

    monkeypatch.setattr(exact, "PIECE", 1)
    monkeypatch.setattr(module, "READING_SECONDS", 0.0)
    with running({"llama": folder}) as found:
        engine = found.engine("llama")
        with Slowed(engine, 0.05):
            connection = raw(found, {"model": "llama", "prompt": "one two three " * 15, "max_tokens": 1})
            wait_until(lambda: engine.n_live == 1)
            (row,) = engine._live
            assert row.reads
            close_at_once(connection)
            wait_until(lambda: engine.n_live == 0, 2.0)
            assert row.reads


def test_a_slow_reader_rests_alone(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its row waits; another client's text is complete meanwhile, and then its own is as well."""
    engine = server.engine("llama")
    from wordloom.serve.engine.request import Stream

    monkeypatch.setattr(Stream, "most_unsent", 8)
    gate = threading.Event()
    original = Stream.sent

    def sent(stream: Stream, n: int) -> None:  # the network of one client takes nothing until the gate opens
        if len(stream.request.prompt) > 5 and not gate.is_set():
            threading.Thread(target=lambda: (gate.wait(), original(stream, n)), daemon=True).start()
        else:
            original(stream, n)

    monkeypatch.setattr(Stream, "sent", sent)
    slow = {**LONG, "prompt": "Count. one two three", "seed": 1}
    alone = server.post("/v1/completions", {**slow, "stream": False, "prompt": "x"})
    assert alone.status_code == 200
    with httpx.stream("POST", f"{server.url}/v1/completions", json=slow, timeout=60) as response:
        wait_until(lambda: engine.n_live == 1 and engine._live[0].stream.resting)
        length = len(engine._live[0].ids)
        assert server.post("/v1/completions", {**LONG, "stream": False, "prompt": "x"}).status_code == 200
        assert len(engine._live[0].ids) == length
        gate.set()
        texts = "".join(event["choices"][0]["text"] for event in events(response))
    expected = server.post("/v1/completions", {**slow, "stream": False}).json()["choices"][0]["text"]
    assert texts == expected


def test_a_socket_that_is_never_read_holds_back_its_row_alone(server: Running) -> None:
    engine = server.engine("llama")
    body = {**LONG, "logprobs": 5, "max_tokens": 240}
    connection = raw(server, body, received=2048)
    other = server.post("/v1/completions", {**LONG, "stream": False, "max_tokens": 5})
    assert other.status_code == 200
    connection.close()
    wait_until(lambda: engine.n_live == 0)


def test_a_request_has_a_time(folder: Path) -> None:
    with running({"llama": folder}, Limits(seconds=0.3)) as found, Slowed(found.engine("llama"), 0.05):
        late = found.post("/v1/completions", {**LONG, "stream": False})
        assert late.status_code == 504
        streamed = list(events(found.post("/v1/completions", LONG)))
        assert streamed[-1]["error"]["code"] == "timeout"
        wait_until(lambda: found.engine("llama").n_live == 0)


def test_a_failed_engine_is_reported(folder: Path) -> None:
    with running({"llama": folder}) as found:
        engine = found.engine("llama")

        def fail() -> None:
            raise RuntimeError("a bug")

        engine.step = fail
        answer = found.post("/v1/completions", {**LONG, "stream": False})
        assert answer.status_code == 503
        assert found.get("/health").status_code == 503
        assert "has failed" in found.get("/health").json()["error"]["message"]
        assert found.post("/v1/completions", LONG).status_code == 503


def test_sigterm_lets_running_requests_end(folder: Path) -> None:
    with command(folder, "--drain", 20) as (url, process, _), httpx.Client(timeout=60) as client:
        with client.stream("POST", f"{url}/v1/completions", json=LONG) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            rest = list(lines)
        assert rest[-2:] == ["data: [DONE]", ""]
        assert process.wait(timeout=20) == 0
        assert process.stderr is not None
        said = process.stderr.read().splitlines()
        assert not [line for line in said if "once on this machine" not in line]


def test_no_text_of_a_request_is_logged(folder: Path) -> None:
    with command(folder, "--log-requests") as (url, process, said):
        httpx.post(f"{url}/v1/completions", json={"model": "llama", "prompt": "a secret", "max_tokens": 2})
        httpx.post(f"{url}/v1/completions", json={"model": "llama", "prompt": ["a secret"], "max_tokens": -2})
        assert httpx.get(f"{url}/icon.svg").status_code == 200
        process.send_signal(signal.SIGINT)
        process.wait(timeout=20)
        logged = "".join(said) + process.stderr.read()
        requests = [line for line in said if "/v1/completions" in line]
        assert len(requests) == 2
        assert re.search(
            r" 127\.0\.0\.1 POST /v1/completions model='llama' 200 first=\d\.\d+s all=\d\.\d+s$", requests[0]
        )
        assert " model=- 400 " in requests[1]
        assert "icon.svg" not in logged
        assert "secret" not in logged


def test_the_log_tells_failures_from_clients_that_leave(caplog: pytest.LogCaptureFixture) -> None:
    async def fails(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError

    async def half(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})

    async def nothing(message: Any = None) -> None:
        return

    scope = {"type": "http", "method": "GET"}
    caplog.set_level("INFO", "wordloom.requests")
    # In a thread: the browser of other tests has an event loop running in this one.
    with ThreadPoolExecutor(1) as thread:

        def request(app: Any, path: str) -> None:
            thread.submit(
                asyncio.run, RequestLog(app, ["/c"])({**scope, "path": path}, nothing, nothing)
            ).result()

        with pytest.raises(RuntimeError):
            request(fails, "/a\nb")
        request(half, "/a\nb")
        request(half, "/c")
    failed, left = (record.getMessage() for record in caplog.records if record.name == "wordloom.requests")
    assert failed.startswith("- GET /a\\nb model=- 500 ")
    assert "left" not in failed
    assert left.startswith("- GET /a\\nb model=- 200 ")
    assert left.endswith(", the client left")


@pytest.mark.parametrize(("arguments", "says"), [
    (["--host", "0.0.0.0"], "lets other machines use the server without a key; set WORDLOOM_API_KEY"),
    (["--api-key-file", "nowhere"], "--api-key-file nowhere cannot be read"),
    (["--memory-gb", "inf"], "--memory-gb inf: give a finite number"),
    (["--adapter", "x"], "--adapter x: give it a name: NAME=x"),
    (["--adapter", "a=nowhere"], "--adapter a=nowhere: there is no folder 'nowhere'"),
])  # fmt: skip
def test_mistakes_are_one_line(
    printed: Callable[..., Any], folder: Path, arguments: list[str], says: str
) -> None:
    ran = printed("serve", folder, *arguments, WORDLOOM_API_KEY="")
    assert ran.returncode == 2
    assert says in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_a_port_in_use_is_named(printed: Callable[..., Any], folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ran = printed("serve", folder, "--port", port)
    assert ran.returncode == 2
    assert (
        f"cannot listen at 127.0.0.1 port {port}: Address already in use; choose another --port" in ran.stderr
    )
