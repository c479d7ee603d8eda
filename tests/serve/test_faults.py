"""Damaged models, requests that stop in the middle, and the end of the server: each gives a clear error."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.serve.servers import command, running, wait_until
from tests.serve.tiny import save_tiny

from wordloom.cli.serve import _keys as keys_of
from wordloom.errors import WordloomError
from wordloom.models import LlamaConfig, build
from wordloom.serve import connections
from wordloom.serve import models as models_module
from wordloom.serve.app import _load as load_first
from wordloom.serve.engine import Engine
from wordloom.serve.limits import Limits
from wordloom.serve.metrics import Metrics
from wordloom.serve.models import Models, Source, check_sources, load_served
from wordloom.serve.server import listening
from wordloom.text import Tokenizer
from wordloom.text.chat import shipped_source
from wordloom.weights import save_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("faults") / "chat")


def loaded(folder: Path) -> None:
    load_served("m", Source(folder), Limits(), Metrics()).close(0.0)


def test_damaged_weights_are_found_before_a_client_asks(tmp_path: Path) -> None:
    save_tiny(tmp_path / "m")
    weights = load_file(tmp_path / "m" / "model.safetensors")
    weights["model.norm.weight"] = torch.full_like(weights["model.norm.weight"], float("nan"))
    save_file(weights, tmp_path / "m" / "model.safetensors")
    with pytest.raises(WordloomError, match="NaN or infinite"):
        loaded(tmp_path / "m")


def test_settings_of_the_checkpoint_are_checked_when_it_is_loaded(tmp_path: Path) -> None:
    save_tiny(tmp_path / "m")
    (tmp_path / "m" / "generation_config.json").write_text('{"top_p": -3}')
    with pytest.raises(WordloomError, match="top_p"):
        loaded(tmp_path / "m")


def test_every_folder_and_the_device_are_checked_at_the_start(tmp_path: Path, folder: Path) -> None:
    sources = {"good": Source(folder), "empty": Source(tmp_path)}
    with pytest.raises(WordloomError, match="is no checkpoint folder"):
        check_sources(sources, "cpu")
    with pytest.raises(WordloomError, match="foo"):
        check_sources({"good": Source(folder)}, "foo")
    check_sources({"good": Source(folder)}, "cpu")


def test_a_model_that_cannot_be_loaded_ends_the_command(printed: Callable[..., Any], tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "m")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    ended = printed("serve", folder, "--port", 0)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert "model.safetensors" in ended.stderr.splitlines()[-1]


def test_running_requests_get_an_error_when_the_drain_is_over(folder: Path) -> None:
    with command(folder, "--drain", "0", "--no-key") as (url, process, _):
        assert httpx.get(f"{url}/health", headers={"host": "evil.example"}).status_code == 400
        found: list[httpx.Response] = []
        streamed: list[str] = []
        prompts = ["the weather is fine"] * 16

        def whole() -> None:
            body = {"model": "chat", "prompt": prompts, "max_tokens": 400, "logit_bias": {"0": -100}}
            found.append(httpx.post(f"{url}/v1/completions", json=body, timeout=60))

        def streaming() -> None:
            body = {"model": "chat", "prompt": prompts, "max_tokens": 400, "stream": True}
            with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
                for line in answer.iter_lines():
                    streamed.append(line)
                    running_now.set()

        running_now = threading.Event()
        threads = [threading.Thread(target=call) for call in (whole, streaming)]
        for thread in threads:
            thread.start()
        assert running_now.wait(30)
        process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join(30)
        assert process.wait(30) == 0
        assert "Traceback" not in process.stderr.read()
    assert len(found) == 1
    for answer in found:
        assert answer.status_code in (200, 503)
        assert answer.status_code == 200 or answer.json()["error"]["type"] == "service_unavailable_error"
    data = [line.removeprefix("data: ") for line in streamed if line.startswith("data: ")]
    assert data[-1] == "[DONE]" or json.loads(data[-1])["error"]["message"] == "the server stops"


def test_comments_in_a_file_of_keys_are_no_keys(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# of the team\n\n  # old\n first \nsecond#2\n")
    assert keys_of(tmp_path / "keys") == ("first", "second#2")
    (tmp_path / "keys").write_text("# none\n")
    with pytest.raises(WordloomError, match="holds no key"):
        keys_of(tmp_path / "keys")


@pytest.mark.parametrize("key", ["schlüssel", "🎉", "a\x7fb"])
def test_a_key_that_no_header_holds_is_refused(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keys").write_text(f"good\n{key}\n")
    with pytest.raises(WordloomError, match="has a key that clients cannot send"):
        keys_of(tmp_path / "keys")
    monkeypatch.setenv("WORDLOOM_API_KEY", key)
    with pytest.raises(WordloomError, match="WORDLOOM_API_KEY has a key that clients cannot send"):
        keys_of(None)


def test_a_port_in_use_is_found_before_the_server_says_that_it_serves() -> None:
    first = listening("127.0.0.1", 0)
    with first, pytest.raises(WordloomError, match="cannot listen"):
        listening("127.0.0.1", first.getsockname()[1])


def test_connections_that_ask_nothing_are_closed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SECONDS_TO_ASK", 0.3)
    with running({"chat": folder}) as server:
        address = ("127.0.0.1", server.port)
        for begun in (b"", b"GET /health HTTP/1.1\r\nhost: loc"):
            with socket.create_connection(address, timeout=30) as connection:
                connection.sendall(begun)
                assert connection.recv(100) == b""
        with socket.create_connection(address, timeout=30) as connection:  # one that asks is kept
            for _ in range(2):
                connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
                assert connection.recv(4000).startswith(b"HTTP/1.1 200")
                threading.Event().wait(0.4)


@pytest.mark.parametrize("late", [b"G", b"\r\n", b"GET /health HTTP/1.1\r\nhost: loc"])
def test_connections_that_stop_in_a_later_request_are_closed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, late: bytes
) -> None:
    monkeypatch.setattr(connections, "SECONDS_TO_ASK", 0.3)
    with (
        running({"chat": folder}) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection,
    ):
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert connection.recv(4000).startswith(b"HTTP/1.1 200")
        connection.sendall(late)
        assert connection.recv(4000) == b""


@pytest.mark.parametrize("endless", [b"a: b\r\n", b"x" * 100])
def test_endless_headers_are_cut_off(folder: Path, endless: bytes) -> None:
    with (
        running({"chat": folder}) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection,
    ):
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: ")
        with suppress(ConnectionError):  # it may be reset while this is sent
            connection.sendall(endless * 200_000)
            assert connection.recv(100) == b""


def test_any_failure_while_a_model_is_loaded_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("the kernel cannot be compiled")

    monkeypatch.setattr(models_module, "load_served", fails)
    models, ended = Models({"m": Source(folder)}, Limits(), Metrics()), threading.Event()
    # in a thread of its own, because Playwright, once used, keeps a loop in this one
    with ThreadPoolExecutor(1) as loader, ThreadPoolExecutor(1) as apart:
        apart.submit(asyncio.run, load_first(models, ["m"], loader, ended.set)).result()
    assert ended.is_set()
    assert models.error == "m cannot be loaded: the kernel cannot be compiled"


def test_ids_that_the_tokenizer_lacks_are_refused(tmp_path: Path) -> None:
    """A model may have more rows than its tokenizer has tokens."""
    tokenizer = Tokenizer.train(["the sea"] * 9, kind="bpe", vocab_size=270)
    tokenizer = tokenizer.with_chat_template(shipped_source("plain"))
    V = tokenizer.vocab_size
    config = LlamaConfig(vocab_size=V + 7, dim=16, n_layers=1, n_heads=2, max_seq_len=64)
    save_model(build(config), tmp_path / "padded", tokenizer=tokenizer)
    say = [{"role": "user", "content": "the sea"}]
    with running({"m": tmp_path / "padded"}) as server:
        for path, body in (
            ("/v1/completions", {"prompt": [V + 1]}),
            ("/v1/completions", {"prompt": "the", "continue_ids": [V]}),
            ("/v1/chat/completions", {"messages": say, "continue_ids": [V + 6]}),
            ("/score", {"prompt": [V], "continuations": [[1]]}),
            ("/detokenize", {"ids": [V]}),
        ):
            answer = server.post(path, {"model": "m", **body})
            assert answer.status_code == 400, (path, answer.text)
            assert "is not in the vocabulary" in answer.json()["error"]["message"]
        assert server.get("/health").status_code == 200


def test_half_a_surrogate_pair_in_the_metadata_is_refused(folder: Path) -> None:
    body = b'{"model": "chat", "input": "hi", "metadata": {"a": "\\ud800"}}'
    with running({"chat": folder}) as server:
        answer = httpx.post(
            f"{server.url}/v1/responses", content=body, headers={"content-type": "application/json"}
        )
        assert answer.status_code == 400, answer.text


def test_a_body_that_does_not_arrive_is_408(folder: Path) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with (
        running({"chat": folder}, Limits(seconds=0.5)) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection,
    ):
        connection.sendall(head + b'content-length: 100\r\n\r\n{"model"')
        assert connection.recv(4000).startswith(b"HTTP/1.1 408")


def test_models_that_were_in_use_leave_afterwards(tmp_path: Path, folder: Path) -> None:
    other = save_tiny(tmp_path / "other", "rnn", template=None)
    models = Models({"a": Source(folder), "b": Source(other)}, Limits(model_bytes=1), Metrics())
    a, _ = models.acquire("a")
    b, _ = models.acquire("b")
    assert set(models.loaded) == {"a", "b"}
    models.release(a)
    models.release(b)
    wait_until(lambda: set(models.loaded) == {"b"})
    models.close(0.0)


@pytest.fixture(scope="module")
def server(folder: Path) -> Any:
    with running({"chat": folder}) as found:
        yield found


MESSAGES = [{"role": "user", "content": "the sea"}]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": [-1] * 300_000}, "prompt"),
        ("/v1/completions", {"prompt": ["a"] * 100_000}, "prompt"),
        ("/v1/completions", {"prompt": [None] * 300_000}, "prompt"),
        ("/detokenize", {"ids": [-1] * 300_000}, "ids"),
        ("/v1/completions", {"prompt": "a", **{f"x{n}": 0 for n in range(100_000)}}, None),
        ("/v1/completions", {"prompt": "the " * 600}, "prompt"),
        ("/v1/responses", {"input": "the " * 600}, "input"),
        ("/v1/responses", {"input": "the", "max_output_tokens": 5000}, "max_output_tokens"),
        ("/v1/chat/completions", {"messages": MESSAGES, "stream_options": {"include_usage": True}}, None),
        ("/v1/chat/completions", {"messages": MESSAGES, "logit_bias": {"999999": 1}}, "logit_bias"),
        ("/v1/completions", {"prompt": "a", "best_of": 0}, "best_of"),
    ],
)  # fmt: skip
def test_refusals_name_the_field(server: Any, path: str, body: dict[str, Any], param: str | None) -> None:
    answer = server.post(path, {"model": "chat", **body})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert re.split(r"[.\[]", error["param"] or "")[0] == (param or "")
    assert len(error["message"]) < 300


def test_the_chosen_token_is_among_the_likeliest(server: Any) -> None:
    for seed in range(8):
        body = {"model": "chat", "messages": MESSAGES, "logprobs": True, "top_logprobs": 20, "seed": seed}
        found = server.post("/v1/chat/completions", {**body, "temperature": 0, "max_tokens": 4}).json()
        for each in found["choices"][0]["logprobs"]["content"]:
            assert each["token"] in [likely["token"] for likely in each["top_logprobs"]]


def test_the_tokens_of_a_text_are_its_parts(server: Any) -> None:
    text = "the weather is <b>fine</b>"
    assert "".join(server.post("/tokenize", {"model": "chat", "text": text}).json()["tokens"]) == text


def test_long_texts_are_read_beside_others(server: Any) -> None:
    text = "the weather is fine " * 5000
    count = server.post("/tokenize", {"model": "chat", "text": text}).json()["count"]
    answer = server.post("/v1/completions", {"model": "chat", "prompt": text})
    assert answer.status_code == 400
    assert f"{count:,} tokens" in answer.json()["error"]["message"]


def test_a_request_that_comes_while_the_server_ends_is_no_flood(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt may be tokenized when the drain begins."""
    with running({"chat": folder}) as server:
        server.engine("chat").stop()
        assert server.post("/v1/completions", {"model": "chat", "prompt": "a"}).status_code == 503
        monkeypatch.setattr(Engine, "is_ending", False)
        monkeypatch.setattr(Engine, "alive", True)
        answer = server.post("/v1/completions", {"model": "chat", "prompt": "a"})
        assert (answer.status_code, answer.json()["error"]["message"]) == (503, "the server stops")


def test_what_can_never_be_answered_is_no_flood(folder: Path) -> None:
    with running({"chat": folder}, Limits(slots=1, queue=1)) as server:
        body = {"model": "chat", "prompt": ["a"] * 3, "max_tokens": 1}
        answer = server.post("/v1/completions", body)
        assert answer.status_code == 400
        assert "3 prompts are asked for at once; the server has 1 slots" in answer.json()["error"]["message"]
        assert server.post("/v1/completions", {**body, "prompt": ["a"] * 2}).status_code == 200


def test_paths_methods_and_names_that_do_not_exist(folder: Path) -> None:
    with running({"chat": folder}) as server:
        answers = {}
        for method, path in (
            ("GET", "/v1/completions"), ("POST", "/health"), ("PUT", "/tokenize"), ("POST", "/"),
            ("GET", "/absent"), ("DELETE", "/" + "x" * 5000), ("POST", "/v1/models/chat/card"),
            ("POST", "/tokenize/"),
        ):  # fmt: skip
            answer = httpx.request(method, server.url + path)
            answers[method, path] = answer.status_code, answer.headers.get("allow")
            assert path[:10] in answer.json()["error"]["message"]
            assert len(answer.content) < 500
        assert list(answers.values()) == [
            (405, "POST"), (405, "GET, HEAD"), (405, "POST"), (404, None), (404, None), (404, None),
            (405, "GET"), (404, None),
        ]  # fmt: skip
        long = "m" * 5000
        for body in ({"model": long, "prompt": "a"}, {"model": "chat", "prompt": "a", long: 1}):
            assert len(server.post("/v1/completions", body).content) < 600
        error = server.post("/v1/completions", {"model": "chat", "prompt": "a", "stop": ["a", ""]}).json()[
            "error"
        ]
        assert error["message"] == "'stop[1]': string should have at least 1 character"
