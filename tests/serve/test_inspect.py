"""The attention and the gates of one token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from httpx import Client
from tests.serve.tiny import save_tiny, serving

from wordloom.inspect import attention_map
from wordloom.serve.api import inspect
from wordloom.weights import load_model


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    return {name: save_tiny(place / name, name) for name in ("llama", "gpt", "rnn")}


@pytest.fixture(scope="module")
def client(folders: dict[str, Path]) -> Iterator[Client]:
    with serving(folders) as client:
        yield client


def ask(client: Client, **body: Any) -> dict[str, Any]:
    answer = client.post("/inspect", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("family", ["llama", "gpt"])
def test_attention_of_a_token(client: Client, folders: dict[str, Path], family: str) -> None:
    ids = client.post("/tokenize", json={"model": family, "text": "the weather is fine"}).json()["ids"]
    found = ask(client, model=family, ids=ids, position=3)
    assert found["kind"] == "attention"
    assert found["ids"] == ids[:4]
    assert len(found["tokens"]) == 4
    model = load_model(folders[family])
    expected = attention_map(model, ids).weights[:, :, 3, :4]
    assert [len(found["weights"]), len(found["weights"][0])] == list(expected.shape[:2])
    for layer, heads in enumerate(found["weights"]):
        for head, weights in enumerate(heads):
            assert weights == pytest.approx(expected[layer, head].tolist(), abs=1e-4)


def test_messages_are_encoded_by_the_server(client: Client) -> None:
    messages = [{"role": "user", "content": "the sea"}]
    ids = client.post("/tokenize", json={"model": "llama", "messages": messages}).json()["ids"]
    assert ask(client, model="llama", messages=messages, continue_ids=[5, 6])["ids"] == [*ids, 5, 6]
    assert ask(client, model="llama", text="the sea", layer=1)["layers"] == [1]


def test_the_answers_of_the_engine_do_not_change(client: Client) -> None:
    body = {"model": "llama", "prompt": "the sea", "temperature": 0, "max_tokens": 20, "alternatives": 2}
    before = client.post("/v1/completions", json=body).json()["choices"]
    ask(client, model="llama", text="the sea")
    assert client.post("/v1/completions", json=body).json()["choices"] == before


def test_gates_of_a_recurrent_model(client: Client) -> None:
    found = ask(client, model="rnn", text="the sea is calm")
    assert found["kind"] == "gates"
    assert [list(layer) for layer in found["gates"]] == [["i", "f", "g", "o", "c", "h"]] * 2
    assert all(len(values) == 16 for layer in found["gates"] for values in layer.values())
    assert all(0 < value < 1 for layer in found["gates"] for name in "ifo" for value in layer[name])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"text": "a", "ids": [1]}, None),
        ({}, None),
        ({"text": "the sea", "position": 99}, "position"),
        ({"text": "the sea", "layer": 9}, "layer"),
        ({"ids": [10**6]}, "prompt"),
        ({"ids": [1], "continue_ids": [10**6]}, "continue_ids"),
        ({"ids": [1] * 600}, "ids"),
    ],
)
def test_requests_that_cannot_be_answered(client: Client, body: dict[str, Any], param: str) -> None:
    answer = client.post("/inspect", json={"model": "llama", **body})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_an_answer_has_a_largest_size(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect, "MOST_VALUES", 40)
    body = {"model": "llama", "ids": [1] * 10}
    assert client.post("/inspect", json=body).json()["error"]["param"] == "layer"
    assert client.post("/inspect", json={**body, "layer": 0}).status_code == 200
    monkeypatch.setattr(inspect, "MOST_SCORES", 10)
    assert client.post("/inspect", json=body).status_code == 400
