"""The engine: every request gets the tokens that it gets alone, whatever else happens."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.generate.random_models import FAMILIES, LONGEST, model_of

from wordloom.generate import Sampling
from wordloom.generate import exact_rows as exact_rows_module
from wordloom.serve.engine import Engine, Failure, Request, Stream, Token
from wordloom.serve.engine import engine as engine_module
from wordloom.text import Tokenizer

CAUSAL = [name for name in FAMILIES if name not in ("seq2seq", "transformer", "bert_generation")]


def tokenizer_of(size: int) -> Tokenizer:
    """A tokenizer of six tokens at most."""
    return Tokenizer.train(["abcd" * 9], kind="char", special_tokens=["<eos>"][: size > 5])


class Client:
    """Collects the events of one request."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.ended = threading.Event()
        self.left = 0

    def __call__(self, events: list[Any]) -> None:
        for event in events:
            self.events.append(event)
            if isinstance(event, Failure):
                self.ended.set()
            elif event.finish_reason is not None:
                self.left -= 1
                if self.left == 0:
                    self.ended.set()

    def choices(self) -> dict[int, list[tuple[int, str, str | None]]]:
        """The ids, texts and finish reasons of each choice."""
        found: dict[int, list[tuple[int, str, str | None]]] = {}
        for event in self.events:
            assert isinstance(event, Token), event
            found.setdefault(event.choice, []).append((event.id, event.text, event.finish_reason))
        return found


def ask(engine: Engine, request: Request) -> tuple[Client, Stream]:
    client = Client()
    client.left = request.sampling.samples
    return client, engine.submit(request, client)


def alone(model: Any, request: Request, fast: bool) -> dict[int, list[tuple[int, str, str | None]]]:
    engine = Engine(model, room=LONGEST, slots=8, prefix_bytes=0, fast=fast)
    client, stream = ask(engine, request)
    while not client.ended.is_set():
        engine.step()
        stream.sent(stream.unsent)
    return client.choices()


def a_request(rng: random.Random, model: Any, tokenizer: Tokenizer, texts: list[list[int]]) -> Request:
    """A request that often continues an earlier text, with random settings."""
    V = tokenizer.vocab_size
    before = rng.choice(texts) if texts and rng.random() < 0.6 else []
    before = before[: rng.choice([len(before), rng.randint(0, len(before))])]
    prompt = (before + [rng.randrange(V) for _ in range(rng.randint(1, 6))])[: LONGEST - 5]
    sampling = Sampling(
        temperature=rng.choice([0, 0.7, 1.5]),
        top_k=rng.choice([None, 3]),
        top_p=rng.choice([None, 0.8]),
        seed=rng.randrange(100),
        samples=rng.choice([1, 1, 2, 3]),
        max_new_tokens=rng.choice([None, 1, 3, 5]),
        repetition_penalty=rng.choice([1.0, 1.3]),
        presence_penalty=rng.choice([0.0, 0.5]),
        logit_bias=rng.choice([(), ((1, 2.0),)]),
        stop=rng.choice([(), ("ab",), ("c",)]),
    )
    return Request(
        prompt=prompt, sampling=sampling, tokenizer=tokenizer, eos_ids=rng.choice([(), (0,)]),
        alternatives=rng.choice([0, 0, 2]),
    )  # fmt: skip


@pytest.mark.parametrize("fast", [True, False], ids=["programs", "modules"])
@pytest.mark.parametrize("family", CAUSAL)
def test_a_request_gets_the_tokens_that_it_gets_alone(
    family: str, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With others that join, are cancelled, rest, share a beginning, or push texts out of the cache."""
    monkeypatch.setattr(exact_rows_module, "PIECE", 4)
    monkeypatch.setattr(engine_module, "PIECE", 4)
    monkeypatch.setattr(engine_module, "EVERY", 2)
    hits = 0

    @settings(max_examples=8, deadline=None)
    @given(data=st.data())
    def hold(data: st.DataObject) -> None:
        nonlocal hits
        seed = data.draw(st.integers(0, 2**31))
        model, rng = model_of(data.draw(FAMILIES[family]), seed), random.Random(seed)
        tokenizer = tokenizer_of(model.config.vocab_size)
        assume(tokenizer.vocab_size <= model.config.vocab_size)
        engine = Engine(
            model, room=LONGEST, slots=rng.randint(3, 7), prefix_bytes=rng.choice([0, 3000, 10**7]), fast=fast
        )
        monkeypatch.setattr(engine_module, "READING_SECONDS", rng.choice([0.0, 1.0]))
        asked: list[tuple[Request, Client, Stream]] = []
        texts: list[list[int]] = []
        for _ in range(60):
            if len(asked) < 14 and rng.random() < 0.5:
                request = a_request(rng, model, tokenizer, texts)
                asked.append((request, *ask(engine, request)))
            if asked and rng.random() < 0.1:
                rng.choice(asked)[2].cancel()
            engine.step()
            for request, client, stream in asked:
                if rng.random() < 0.7:
                    stream.sent(stream.unsent)
                if client.ended.is_set() and not stream.cancelled:
                    texts += [list(request.prompt) + [t[0] for t in ids] for ids in client.choices().values()]
        while engine.n_live or engine.n_waiting:
            engine.step()
            for _, _, stream in asked:
                stream.sent(stream.unsent)
        for request, client, stream in asked:
            hits += stream.n_cached > 0
            expected = alone(model, request, fast)
            if stream.cancelled:
                for choice, tokens in client.choices().items():
                    assert tokens == expected[choice][: len(tokens)]
            else:
                assert client.choices() == expected, (request, stream)

    hold()
    assert hits
