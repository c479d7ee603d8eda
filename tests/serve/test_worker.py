"""Requests to one model are computed one by one, in a bounded queue and time; models share bounded memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.serve.conftest import Kinds
from tests.serve.servers import Running, running, wait_until

from wordloom.serve.limits import Limits
from wordloom.serve.models import Models
from wordloom.serve.worker import Worker

BODY = {"model": "bag", "texts": ["a dog"]}


@contextmanager
def occupied(worker: Worker) -> Iterator[None]:
    """Keep the thread of ``worker`` busy."""
    done, began = threading.Event(), threading.Event()

    def wait() -> None:
        began.set()
        done.wait()

    worker.submit(wait)
    assert began.wait(10)
    try:
        yield
    finally:
        done.set()


@contextmanager
def one_model(folder: Path, limits: Limits) -> Iterator[tuple[Running, Worker]]:
    with running({"bag": folder}, limits) as server:
        yield server, server.models.loaded["bag"].worker


def test_a_request_beyond_the_queue_is_refused_at_once(kinds: Kinds) -> None:
    with one_model(kinds.folders["bag"], Limits(queue=2)) as (server, worker), ThreadPoolExecutor(2) as pool:
        with occupied(worker):
            waiting = [pool.submit(server.post, "/classify", BODY) for _ in range(2)]
            wait_until(lambda: worker.n_waiting == 2)
            answer = server.post("/classify", {**BODY, "texts": ["too many"]})
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")
            assert answer.headers["retry-after"] == "1"
            metrics = server.get("/metrics").text
            assert 'wordloom_rejected_requests_total{model="bag"} 1.0' in metrics
            assert 'wordloom_queue_length{model="bag"} 2.0' in metrics
        assert [each.result().status_code for each in waiting] == [200, 200]
        assert server.post("/classify", BODY).status_code == 200


def test_a_request_that_takes_too_long_times_out(kinds: Kinds) -> None:
    with one_model(kinds.folders["bag"], Limits(seconds=0.2)) as (server, worker):
        with occupied(worker):
            answer = server.post("/classify", BODY)
            assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")
            wait_until(lambda: worker.n_unfinished == 1)  # it no longer waits
        assert server.post("/classify", BODY).status_code == 200


def test_a_client_that_leaves_is_dropped(kinds: Kinds) -> None:
    with one_model(kinds.folders["bag"], Limits()) as (server, worker):
        model = server.models.loaded["bag"].model
        read: list[Any] = []
        predict = model.predict
        model.predict = lambda texts, **given: (read.append(texts), predict(texts, **given))[1]
        with occupied(worker):
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{server.url}/classify", json=BODY, timeout=0.3)
            wait_until(lambda: worker.n_unfinished == 1)
        assert server.post("/classify", BODY).status_code == 200
        assert read == [["a dog"]]  # the first request was never computed
        began, go = threading.Event(), threading.Event()

        def slow(texts: Any, **given: Any) -> Any:
            read.append(texts)
            began.set()
            go.wait(10)
            return predict(texts, **given)

        model.predict = slow
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.url}/classify", json={**BODY, "texts": ["a", "b", "c"]}, timeout=0.5)
        wait_until(
            lambda: 'wordloom_cancelled_requests_total{model="bag"} 2.0' in server.get("/metrics").text
        )
        go.set()
        wait_until(lambda: worker.n_unfinished == 0)
        assert began.is_set()
        assert read == [["a dog"], ["a"]]  # and the second not after its first text


def test_answers_on_one_connection_are_sent_without_delay(kinds: Kinds) -> None:
    kinds.ask("/classify", **BODY)
    times = []
    for _ in range(25):
        began = time.perf_counter()
        kinds.ask("/classify", **BODY)
        times.append(time.perf_counter() - began)
    assert sorted(times)[5] < 0.03  # a delayed acknowledgement takes 0.04 seconds


def test_many_requests_at_once_get_the_answers_that_each_gets_alone(kinds: Kinds) -> None:
    requests: list[tuple[str, dict[str, Any]]] = []
    for number in range(6):
        text = f"a dog ran {'and ran ' * number}"
        requests += [
            ("/v1/embeddings", {"model": "gpt2", "input": text}),
            ("/v1/embeddings", {"model": "bert", "input": [text, "a"]}),
            ("/score", {"model": "gpt2", "prompt": text, "continuations": [" sat", " ran far"]}),
            ("/score", {"model": "gpt2-adapted", "prompt": text, "continuations": [" sat"]}),
            ("/v1/completions", {"model": "gpt2", "prompt": text, "max_tokens": 12, "seed": number}),
            ("/v1/completions", {"model": "gpt2-adapted", "prompt": text, "max_tokens": 12, "seed": number}),
            ("/score", {"model": "lstm", "prompt": text, "continuations": [" sat"]}),
            ("/v1/completions", {"model": "lstm", "prompt": text, "max_tokens": 12, "seed": number}),
            ("/classify", {"model": "rnn", "texts": [text]}),
            ("/neighbours", {"model": "gpt2", "word": "a"}),
        ]  # fmt: skip

    def ask(request: tuple[str, dict[str, Any]]) -> Any:
        answer = kinds.post(*request)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        return found.get("data") or [choice["text"] for choice in found["choices"]]

    alone = [ask(request) for request in requests]
    with ThreadPoolExecutor(16) as pool:
        for _ in range(3):
            assert list(pool.map(ask, requests)) == alone


def loaded(models: Models) -> set[str]:
    return set(models.loaded)


def test_models_load_when_asked_for_and_the_least_recently_used_one_leaves(kinds: Kinds) -> None:
    names = ["classification", "regression", "multiple_choice"]
    size = kinds.models.get("regression")[0].n_bytes
    sources = {name: kinds.folders[name] for name in names}
    bodies = {name: {"texts": ["a"]} for name in names} | {
        "multiple_choice": {"prompt": "a", "choices": ["a", "b"]}
    }
    with running(sources, Limits(model_bytes=int(2.5 * size))) as server:

        def ask(name: str) -> None:
            answer = server.post("/classify", {"model": name, **bodies[name]})
            assert answer.status_code == 200, answer.text

        assert loaded(server.models) == {"classification"}
        ask("regression")
        assert loaded(server.models) == {"classification", "regression"}
        ask("classification")
        ask("multiple_choice")  # the regression model was used longest ago
        assert loaded(server.models) == {"classification", "multiple_choice"}
        entries = server.get("/v1/models").json()["data"]
        assert [one["loaded"] for one in entries] == [True, False, True]
        ask("regression")
        assert loaded(server.models) == {"multiple_choice", "regression"}


def test_a_model_in_use_stays_loaded(kinds: Kinds) -> None:
    names = ["regression", "bag", "rnn"]
    sources = {name: kinds.folders[name] for name in names}
    with running(sources, Limits(model_bytes=1)) as server, ThreadPoolExecutor(1) as pool:
        served = server.models.loaded["regression"]
        with occupied(served.worker):
            waiting = pool.submit(server.post, "/classify", {"model": "regression", "texts": ["a"]})
            wait_until(lambda: served.busy == 1)
            for name in ("bag", "rnn", "bag"):  # loading others, and unloading them, waits for nothing
                assert server.post("/classify", {"model": name, "texts": ["a"]}).status_code == 200
                assert loaded(server.models) == {"regression", name}
        assert waiting.result().status_code == 200
        assert server.post("/classify", {"model": "rnn", "texts": ["a"]}).status_code == 200
        assert loaded(server.models) == {"rnn"}


def test_many_models_in_little_memory_answer_many_requests(kinds: Kinds) -> None:
    names = ["regression", "bag", "rnn", "classification", "gpt2"]
    sources = {name: kinds.folders[name] for name in names}

    def request(server: Running, name: str) -> Any:
        path, body = "/classify", {"texts": ["a dog"]}
        if name == "gpt2":
            path, body = "/score", {"prompt": "a dog", "continuations": [" ran"]}
        return server.post(path, {"model": name, **body})

    expected = {name: request(kinds, name).json()["data"] for name in names}
    with running(sources, Limits(model_bytes=1)) as server, ThreadPoolExecutor(8) as pool:
        asked = names * 8
        for name, answer in zip(asked, pool.map(lambda name: request(server, name), asked), strict=True):
            assert answer.status_code == 200, answer.text
            assert answer.json()["data"] == expected[name]
        wait_until(lambda: all(not each.busy for each in list(server.models.loaded.values())))
