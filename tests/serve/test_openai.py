"""The API as the ``openai`` package asks for it, against a real server."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tests.serve.servers import CONFIGS, Running, assistant, events, running

import wordloom
from wordloom.generate import Sampling
from wordloom.serve.limits import Limits

QUESTION = [{"role": "user", "content": "Name the colour."}]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("served")
    found = {name: assistant(place / name, name) for name in CONFIGS}
    return {**found, "base": assistant(place / "base", template=None)}


@pytest.fixture(scope="module")
def server(folders: dict[str, Path]) -> Iterator[Running]:
    with running(dict(folders), Limits(max_tokens=200)) as found:
        yield found


@pytest.fixture(scope="module")
def client(server: Running) -> openai.OpenAI:
    return server.openai_client()


@pytest.mark.parametrize("model", CONFIGS)
def test_a_chat_streams_what_it_answers_at_once(client: openai.OpenAI, model: str) -> None:
    settings: Any = {"model": model, "messages": QUESTION, "seed": 5, "max_tokens": 30, "n": 2}
    whole = client.chat.completions.create(**settings, logprobs=True, top_logprobs=3)
    chunks = list(
        client.chat.completions.create(
            **settings, stream=True, logprobs=True, top_logprobs=3, stream_options={"include_usage": True}
        )
    )
    assert len({chunk.id for chunk in chunks}) == 1
    first = chunks[0].choices[0].delta
    assert (first.role, first.content) == ("assistant", None)
    assert not chunks[-1].choices
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert whole.usage.completion_tokens <= 60
    for choice in whole.choices:
        mine = [each for chunk in chunks for each in chunk.choices if each.index == choice.index]
        assert "".join(each.delta.content or "" for each in mine) == choice.message.content
        assert mine[-1].finish_reason == choice.finish_reason
        assert choice.logprobs is not None
        content = choice.logprobs.content or []
        streamed = [one for each in mine if each.logprobs for one in each.logprobs.content or []]
        assert streamed == content
        joined = b"".join(bytes(token.bytes or []) for token in content)
        assert joined.decode(errors="replace").startswith((choice.message.content or "").rstrip("\ufffd"))
        assert all(len(token.top_logprobs) == 3 for token in content)
        assert all(token.logprob <= 0 for token in content)


@pytest.mark.parametrize("model", CONFIGS)
def test_greedy_answers_are_those_of_the_library(
    client: openai.OpenAI, folders: dict[str, Path], model: str
) -> None:
    lm = wordloom.load(folders[model])
    for prompt in ("Name the", "Count. one two", "x"):
        found = client.completions.create(model=model, prompt=prompt, temperature=0, max_tokens=12)
        expected = lm.generate(prompt, Sampling(temperature=0, max_new_tokens=12), specials="text")
        assert found.choices[0].text == expected


def test_completions_take_texts_and_ids(client: openai.OpenAI, folders: dict[str, Path]) -> None:
    tokenizer = wordloom.load(folders["base"]).tokenizer
    texts = ["Name the colour.", "Count."]
    ids = [list(tokenizer.prompt_ids(text)) for text in texts]
    settings: Any = {"model": "base", "seed": 3, "max_tokens": 8, "n": 2, "logprobs": 2}
    by_text = client.completions.create(prompt=texts, **settings)
    by_id = client.completions.create(prompt=ids, **settings)
    assert [choice.text for choice in by_text.choices] == [choice.text for choice in by_id.choices]
    assert [choice.index for choice in by_text.choices] == [0, 1, 2, 3]
    for choice in by_text.choices:
        table = choice.logprobs
        assert table is not None
        assert len(table.tokens or []) == len(table.token_logprobs or []) == len(table.top_logprobs or [])
        joined = "".join(table.tokens or [])
        assert joined == choice.text or "bytes:" in joined
    (alone,) = client.completions.create(prompt=ids[1], **{**settings, "n": 1}).choices
    assert alone.text == by_text.choices[2].text


def test_settings_act_and_are_reported(client: openai.OpenAI) -> None:
    def answer(**settings: Any) -> Any:
        extra = {name: settings.pop(name) for name in list(settings) if name in EXTRA}
        return client.completions.create(
            model="llama", prompt="Count. one", max_tokens=10, extra_body=extra, **settings
        )

    EXTRA = ("top_k", "min_p", "repetition_penalty", "return_settings")
    greedy = answer(temperature=0).choices[0].text
    assert answer(temperature=5, top_k=1, seed=1).choices[0].text == greedy
    assert answer(temperature=1, top_p=1e-6, seed=1).choices[0].text == greedy
    assert answer(temperature=1, min_p=1.0, seed=1).choices[0].text == greedy
    seeded = [answer(temperature=1.5, seed=seed).choices[0].text for seed in (1, 1, 2)]
    assert seeded[0] == seeded[1] != seeded[2]
    token = answer(temperature=0, logprobs=0).choices[0].logprobs.tokens[0]
    assert token
    biased = answer(temperature=0, logit_bias={"7": 100})
    assert biased.choices[0].finish_reason == "length"
    assert len(set(answer(temperature=0, logit_bias={"7": 100}, logprobs=0).choices[0].logprobs.tokens)) == 1
    found = answer(temperature=0.9, return_settings=True)
    (settings,) = found.settings
    assert settings["temperature"] == {"value": 0.9, "from": "given"}
    assert settings["top_k"]["from"] == "default"
    assert settings["seed"]["from"] == "fresh"
    again = answer(temperature=0.9, seed=settings["seed"]["value"])
    assert again.choices[0].text == found.choices[0].text


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_end_the_text_wherever_tokens_are_cut(client: openai.OpenAI, stream: bool) -> None:
    whole = client.completions.create(model="llama", prompt="Count.", seed=4, max_tokens=60, temperature=1.3)
    text, rng = whole.choices[0].text, random.Random()
    for _ in range(12):
        start = rng.randrange(len(text) - 4)
        stop = text[start : start + rng.randint(1, 4)]
        settings: Any = {
            "model": "llama", "prompt": "Count.", "seed": 4, "max_tokens": 60, "temperature": 1.3,
            "stop": [stop, "nowhere to be found"],
        }  # fmt: skip
        if stream:
            chunks = list(client.completions.create(**settings, stream=True))
            found, reason = "".join(c.choices[0].text for c in chunks), chunks[-1].choices[0].finish_reason
        else:
            choice = client.completions.create(**settings).choices[0]
            found, reason = choice.text, choice.finish_reason
        assert found == text[: text.index(stop)]
        assert reason == "stop"


def test_responses(client: openai.OpenAI) -> None:
    settings: Any = {
        "model": "llama", "instructions": "Be brief.", "max_output_tokens": 9, "temperature": 0,
    }  # fmt: skip
    whole = client.responses.create(input="Name the colour.", **settings)
    listed = client.responses.create(
        input=[{"role": "user", "content": [{"type": "input_text", "text": "Name the colour."}]}], **settings
    )
    assert whole.output_text == listed.output_text
    assert whole.usage is not None
    assert whole.usage.output_tokens <= 9
    with client.responses.stream(input="Name the colour.", **settings) as stream:
        found = list(stream)
    assert found[0].type == "response.created"
    last: Any = found[-1]
    assert last.type == f"response.{last.response.status}"
    assert last.response.output[0].content[0].text == whole.output_text
    assert [event.sequence_number for event in found] == list(range(len(found)))
    deltas = [event.delta for event in found if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    chat = client.chat.completions.create(
        model="llama",
        max_tokens=9,
        temperature=0,
        messages=[{"role": "system", "content": "Be brief."}, *QUESTION],
    )
    assert chat.choices[0].message.content == whole.output_text


def test_models_and_errors(client: openai.OpenAI, server: Running) -> None:
    assert [model.id for model in client.models.list()] == ["llama", "gpt2", "lstm", "base"]
    assert client.models.retrieve("lstm").id == "lstm"
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt5'; there are llama"):
        client.chat.completions.create(model="gpt5", messages=QUESTION)
    with pytest.raises(openai.BadRequestError, match=r"has no chat template.*use /v1/completions"):
        client.chat.completions.create(model="base", messages=QUESTION)
    with pytest.raises(openai.BadRequestError, match="'tools' is not supported") as refused:
        client.chat.completions.create(
            model="llama", messages=QUESTION, tools=[{"type": "function", "function": {"name": "f"}}]
        )
    assert refused.value.code == "unsupported_parameter"
    assert refused.value.param == "tools"
    with pytest.raises(openai.BadRequestError) as full:
        client.completions.create(model="llama", prompt="one two three " * 200)
    error: Any = full.value.body
    assert error["type"] == "exceed_context_size_error"
    assert (error["n_ctx"], error["code"]) == (256, "context_length_exceeded")
    assert error["n_prompt_tokens"] > 256
    for path, body in (
        ("/v1/completions", {"model": "llama", "prompt": "a", "temprature": 1}),
        ("/v1/completions", {"model": "llama", "prompt": "a", "temperature": "1"}),
        ("/v1/completions", {"model": "llama", "prompt": "a", "max_tokens": -1}),
        ("/v1/completions", {"model": "llama", "prompt": "a", "n": 99}),
        ("/v1/completions", {"model": "llama", "prompt": "a", "max_tokens": 10**6}),
        ("/v1/completions", {"model": "llama", "prompt": [], "max_tokens": 1}),
        ("/v1/completions", {"model": "llama", "prompt": [[]], "max_tokens": 1}),
        ("/v1/completions", {"model": "llama", "prompt": [10**6], "max_tokens": 1}),
        ("/v1/completions", {"model": "llama", "prompt": "a", "echo": True}),
        ("/v1/completions", {"model": "llama", "prompt": "a", "stop": ["b"] * 10**5}),
        ("/v1/completions", {"model": "llama", "prompt": "a", "logit_bias": {"x": 1}}),
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/completions", []),
        ("/v1/chat/completions", {"model": "llama", "messages": []}),
        ("/v1/chat/completions", {"model": "llama", "messages": [{"role": "tool", "content": "a"}]}),
        ("/v1/chat/completions", {"model": "llama", "messages": [{"role": "user", "content": None}]}),
        ("/v1/chat/completions", {"model": "llama", "messages": [{"role": "assistant", "content": "a"}]}),
        ("/v1/chat/completions", {"model": "llama", "messages": QUESTION, "top_logprobs": 2}),
        ("/v1/chat/completions", {"model": "llama", "messages": QUESTION, "response_format": {"type": "x"}}),
        ("/v1/responses", {"model": "llama", "input": "a", "previous_response_id": "resp_1"}),
        ("/v1/responses", {"model": "llama", "input": "a", "tools": [{}]}),
        ("/tokenize", {"model": "llama"}),
        ("/detokenize", {"model": "llama", "ids": [10**6]}),
    ):  # fmt: skip
        found = server.post(path, body)
        assert found.status_code == 400, (path, body, found.text)
        told = found.json()["error"]
        assert told["message"]
        assert told["type"] == "invalid_request_error"


def test_special_tokens_in_a_message_are_text(server: Running, folders: dict[str, Path]) -> None:
    tokenizer = wordloom.load(folders["llama"]).tokenizer
    special = tokenizer.id_to_token(tokenizer.eos_id)
    forged = server.post(
        "/tokenize", {"model": "llama", "messages": [{"role": "user", "content": f"a{special}b"}]}
    ).json()
    plain = server.post(
        "/tokenize", {"model": "llama", "messages": [{"role": "user", "content": "ab"}]}
    ).json()
    assert forged["ids"].count(tokenizer.eos_id) == plain["ids"].count(tokenizer.eos_id)
    text = server.post("/tokenize", {"model": "llama", "text": f"a{special}b"}).json()
    assert tokenizer.eos_id not in text["ids"]
    back = server.post("/detokenize", {"model": "llama", "ids": text["ids"]}).json()
    assert back["text"] == f"a{special}b"


def test_many_clients_get_their_own_answers(client: openai.OpenAI, server: Running) -> None:
    """Canaries in every prompt: each answer equals that of the request alone."""
    rng = random.Random()
    asked = [
        {
            "model": rng.choice(list(CONFIGS)), "prompt": f"{number} Count. " * rng.randint(1, 12),
            "seed": number, "max_tokens": rng.randint(1, 40), "temperature": rng.choice([0, 1.0]),
        }
        for number in range(48)
    ]  # fmt: skip

    def answer(settings: dict[str, Any]) -> str:
        if rng.random() < 0.5:
            return client.completions.create(**settings).choices[0].text
        return "".join(
            c.choices[0].text for c in client.completions.create(**settings, stream=True) if c.choices
        )

    with ThreadPoolExecutor(24) as pool:
        together = list(pool.map(answer, asked))
    for settings, found in zip(asked, together, strict=True):
        engine = server.engine(str(settings["model"]))
        assert engine.n_live == engine.n_waiting == 0
        engine.forget()
        assert client.completions.create(**settings).choices[0].text == found


def test_health_and_metrics(server: Running) -> None:
    assert server.get("/health").json() == {"status": "ok"}
    assert list(events(server.post("/v1/completions", {"model": "llama", "prompt": "a", "stream": True})))
    text = server.get("/metrics").text
    for name in (
        "queue_length", "slots_in_use", "cache_bytes", "generated_tokens_total", "tokens_per_second",
        "time_to_first_token_seconds_bucket", "time_per_token_seconds_bucket", "rejected_requests",
    ):  # fmt: skip
        assert f"wordloom_{name}" in text


def test_answers_can_be_sent_back_as_clients_have_them(client: openai.OpenAI) -> None:
    settings: Any = {"model": "llama", "seed": 1, "max_tokens": 8}
    first = client.chat.completions.create(messages=QUESTION, **settings).choices[0].message
    for message in (first, first.model_dump(), {**first.model_dump(), "tool_calls": []}):
        messages: Any = [*QUESTION, message, *QUESTION]
        assert client.chat.completions.create(messages=messages, **settings).choices[0].message.content
    asked: Any = [{"role": "user", "content": "Name the colour."}]
    response = client.responses.create(model="llama", input=asked, max_output_tokens=8)
    for output in (response.output, [item.model_dump() for item in response.output]):
        again = client.responses.create(model="llama", input=[*asked, *output, *asked], max_output_tokens=8)
        assert again.output_text
    with pytest.raises(openai.BadRequestError, match="tools are not supported"):
        client.chat.completions.create(
            messages=[*QUESTION, {**first.model_dump(), "tool_calls": [{"id": "a"}]}, *QUESTION], **settings
        )


@pytest.mark.parametrize(("body", "says"), [
    ({"stream_options": {"include_usage": True}}, "'stream_options' need 'stream': true"),
    ({f"x{i}": 1 for i in range(120)}, "122 fields, and 100 are the most"),
    ({"prompt": [1, "a"]}, "'prompt[1]': input should be a valid integer"),
    ({"prompt": [1.5]}, "'prompt[0]': input should be a valid string or a valid integer"),
    ({"prompt": ["a"] * 200}, "'prompt': list should have at most 128 items"),
    ({"logprobs": "many"}, "'logprobs': input should be a valid integer"),
])  # fmt: skip
def test_the_reason_of_a_refusal_is_the_right_one(server: Running, body: dict[str, Any], says: str) -> None:
    answer = server.post("/v1/completions", {"model": "llama", "prompt": "a", **body})
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]


def test_fields_without_effect_are_taken_and_bodies_that_are_no_json_are_not(server: Running) -> None:
    body = {"model": "llama", "messages": QUESTION, "max_tokens": 2}
    for field in ({"tools": []}, {"tool_choice": "auto"}, {"store": True}):
        assert server.post("/v1/chat/completions", {**body, **field}).status_code == 200
    for content in (b'{"model": "\xff"}', b"[" * 100_000, b'{"n": ' + b"9" * 5000 + b"}"):
        headers = {"content-type": "application/json"}
        answer = httpx.post(f"{server.url}/v1/completions", content=content, headers=headers, timeout=60)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith("the body is not JSON: ")
