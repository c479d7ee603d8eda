"""Tokens with alternatives, and answers that begin with given ids."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from httpx import Client
from tests.serve.tiny import save_tiny, serving

QUESTION = [{"role": "user", "content": "how is the weather?"}]
CHAT = {"model": "chat", "messages": QUESTION, "alternatives": 5, "seed": 4, "max_tokens": 12}
TEXT = {"model": "base", "prompt": "the sea", "alternatives": 5, "seed": 4, "max_tokens": 12}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    place = tmp_path_factory.mktemp("models")
    folders = {"chat": save_tiny(place / "chat"), "base": save_tiny(place / "base", template=None)}
    with serving(folders) as client:
        yield client


def post(client: Client, kind: str, **body: Any) -> dict[str, Any]:
    path = "/v1/chat/completions" if kind == "chat" else "/v1/completions"
    answer = client.post(path, json={**(CHAT if kind == "chat" else TEXT), **body})
    assert answer.status_code == 200, answer.text
    if not body.get("stream"):
        return answer.json()["choices"][0]
    chunks = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    return {"tokens": [token for chunk in chunks for token in chunk["choices"][0].get("tokens", [])]}


def text_of(choice: dict[str, Any]) -> str:
    return choice["message"]["content"] if "message" in choice else choice["text"]


@pytest.mark.parametrize("kind", ["chat", "base"])
def test_every_token_has_alternatives_before_and_after_the_settings(client: Client, kind: str) -> None:
    choice = post(client, kind, top_k=3)
    tokens = choice["tokens"]
    assert len(tokens) == 12
    assert "".join(token["text"] for token in tokens).lstrip() == text_of(choice).lstrip()
    for token in tokens:
        logprobs = [each["logprob"] for each in token["alternatives"]]
        kept = [each["kept"] for each in token["alternatives"]]
        assert len(logprobs) == 5
        assert logprobs == sorted(logprobs, reverse=True)
        assert kept[3:] == [0, 0]  # top_k is 3
        assert math.isclose(sum(kept), 1, abs_tol=1e-5)
        assert token["id"] in [each["id"] for each in token["alternatives"][:3]]


@pytest.mark.parametrize("kind", ["chat", "base"])
def test_a_stream_has_the_tokens_of_the_whole_answer(client: Client, kind: str) -> None:
    assert post(client, kind, stream=True)["tokens"] == post(client, kind)["tokens"]


@pytest.mark.parametrize("kind", ["chat", "base"])
def test_an_answer_continues_given_ids(client: Client, kind: str) -> None:
    whole = post(client, kind, temperature=0)
    ids = [token["id"] for token in whole["tokens"]]
    for n in (1, 5, 11):
        later = post(client, kind, temperature=0, continue_ids=ids[:n], max_tokens=12 - n)
        assert [token["id"] for token in later["tokens"]] == ids[n:]
        began = client.post("/detokenize", json={"model": kind, "ids": ids[:n]}).json()["text"]
        assert (began + text_of(later)).lstrip(" \t\r\n") == text_of(whole).lstrip(" \t\r\n")


def test_alternatives_and_logprobs_do_not_disturb_each_other(client: Client) -> None:
    choice = post(client, "chat", logprobs=True, top_logprobs=2)
    assert len(choice["logprobs"]["content"][0]["top_logprobs"]) == 2
    assert len(choice["tokens"][0]["alternatives"]) == 5
    assert "tokens" not in post(client, "base", alternatives=0, logprobs=3)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("chat", {"continue_ids": [10**6]}),
        ("chat", {"continue_ids": [-1]}),
        ("chat", {"continue_ids": []}),
        ("base", {"continue_ids": [10**6]}),
        ("base", {"prompt": ["a", "b"], "continue_ids": [1]}),
    ],
)
def test_ids_that_cannot_be_continued_are_refused(client: Client, kind: str, body: dict[str, Any]) -> None:
    path = "/v1/chat/completions" if kind == "chat" else "/v1/completions"
    answer = client.post(path, json={**(CHAT if kind == "chat" else TEXT), **body})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("continue_ids")
