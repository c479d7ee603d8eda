"""The assertions of llama.cpp's server tests, on the same weights (stories260K)."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.serve.servers import Running, running, wait_until

import wordloom
from wordloom.serve.limits import Limits
from wordloom.text import Tokenizer
from wordloom.text.chat import shipped_source
from wordloom.weights import load_model, save_model

STORY = "I believe the meaning of life is"


@pytest.fixture(scope="module")
def folders(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    stories = data / "weights" / "stories260K" / "hf"
    chat = tmp_path_factory.mktemp("stories") / "chat"
    tokenizer = Tokenizer.from_pretrained(stories).with_chat_template(shipped_source("plain"))
    save_model(load_model(stories), chat, tokenizer=tokenizer)
    return {"stories": stories, "chat": chat}


@pytest.fixture(scope="module")
def server(folders: dict[str, Path]) -> Iterator[Running]:
    with running(dict(folders), Limits(slots=2)) as found:
        yield found


@pytest.fixture(scope="module")
def client(server: Running) -> openai.OpenAI:
    return server.openai_client()


def test_a_story_is_continued_and_counted(client: openai.OpenAI, folders: dict[str, Path]) -> None:
    found = client.completions.create(model="stories", prompt=STORY, max_tokens=8, temperature=0)
    assert found.choices[0].finish_reason == "length"
    assert found.usage is not None
    assert found.usage.completion_tokens == 8
    assert found.choices[0].text == wordloom.load(folders["stories"]).generate(
        STORY, temperature=0.0, max_new_tokens=8
    )


def test_the_first_delta_has_the_role_and_no_content(client: openai.OpenAI) -> None:
    messages: Any = [
        {"role": "system", "content": "Book"},
        {"role": "user", "content": "What is the best book"},
    ]
    chunks = list(
        client.chat.completions.create(
            model="chat", messages=messages, max_tokens=8, seed=42, stream=True,
            stream_options={"include_usage": True},
        )
    )  # fmt: skip
    first = chunks[0].choices[0].delta
    assert (first.role, first.content) == ("assistant", None)
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.choices[0].delta.role is None for chunk in chunks[1:] if chunk.choices)
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 8


@pytest.mark.parametrize("stream", [False, True])
def test_the_tokens_of_logprobs_make_the_text(client: openai.OpenAI, stream: bool) -> None:
    settings: Any = {
        "model": "chat", "messages": [{"role": "user", "content": "Once upon a time"}], "max_tokens": 20,
        "temperature": 0, "logprobs": True, "top_logprobs": 10,
    }  # fmt: skip
    if stream:
        chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**settings, stream=True)]
        text = "".join(chunk.delta.content or "" for chunk in chunks)
        tokens = [token for chunk in chunks if chunk.logprobs for token in chunk.logprobs.content or []]
    else:
        choice = client.chat.completions.create(**settings).choices[0]
        assert choice.logprobs is not None
        text, tokens = choice.message.content or "", choice.logprobs.content or []
    assert "".join(token.token for token in tokens) == text
    assert b"".join(bytes(token.bytes or []) for token in tokens).decode() == text
    for token in tokens:
        assert token.logprob <= 0
        assert len(token.top_logprobs) == 10
        assert token.top_logprobs[0].logprob == max(each.logprob for each in token.top_logprobs)


def test_a_bias_decides_the_token(client: openai.OpenAI, folders: dict[str, Path]) -> None:
    (token,) = Tokenizer.from_pretrained(folders["stories"]).encode_ids("x")[-1:]
    found = client.completions.create(
        model="stories", prompt=STORY, max_tokens=4, temperature=0, logit_bias={str(token): 100}
    )
    assert found.choices[0].text == "xxxx"


def test_several_choices(client: openai.OpenAI) -> None:
    found = client.completions.create(model="stories", prompt=STORY, max_tokens=8, n=2, seed=1)
    assert [choice.index for choice in found.choices] == [0, 1]
    assert found.choices[0].text != found.choices[1].text
    assert found.usage is not None
    assert found.usage.completion_tokens == 16


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(server: Running) -> None:
    found = server.post("/v1/completions", {"model": "stories", "prompt": "a " * 3000})
    assert found.status_code == 400
    error = found.json()["error"]
    assert error["type"] == "exceed_context_size_error"
    assert error["n_prompt_tokens"] > error["n_ctx"] > 0


def test_embeddings_in_base64_are_those_of_floats(client: openai.OpenAI) -> None:
    texts = ["I believe the meaning of life is", "Write a joke about AI"]
    floats = client.embeddings.create(model="stories", input=texts, encoding_format="float").data
    packed = client.embeddings.create(model="stories", input=texts, encoding_format="base64").data
    for one, other in zip(floats, packed, strict=True):
        raw = base64.b64decode(str(other.embedding))
        assert list(struct.unpack(f"<{len(raw) // 4}f", raw)) == pytest.approx(one.embedding, rel=1e-6)


def test_a_cache_changes_no_token(client: openai.OpenAI, server: Running) -> None:
    """Their own test of this is marked as failing on Linux."""
    settings: Any = {
        "model": "stories",
        "prompt": STORY * 6,
        "max_tokens": 30,
        "temperature": 0,
        "logprobs": 3,
    }
    server.engine("stories").forget()
    cold = client.completions.create(**settings)
    warm = client.completions.create(**settings)
    longer = client.completions.create(**{**settings, "prompt": STORY * 6 + cold.choices[0].text[:9]})
    assert warm.choices == cold.choices
    for found in (warm, longer):
        assert found.usage is not None
        assert found.usage.prompt_tokens_details is not None
        assert found.usage.prompt_tokens_details.cached_tokens
    server.engine("stories").forget()
    again = client.completions.create(**{**settings, "prompt": STORY * 6 + cold.choices[0].text[:9]})
    assert again.choices == longer.choices


def test_a_slot_is_free_when_its_client_has_left(client: openai.OpenAI, server: Running) -> None:
    engine = server.engine("stories")
    with client.completions.create(model="stories", prompt=STORY, max_tokens=400, stream=True) as stream:
        next(iter(stream))
    wait_until(lambda: engine.n_live == 0)
    found = client.completions.create(model="stories", prompt=STORY, max_tokens=2)
    assert found.choices[0].finish_reason == "length"
