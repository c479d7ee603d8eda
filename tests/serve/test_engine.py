"""The engine: every request gets the tokens that it gets alone, whatever else happens."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.generate.random_models import FAMILIES, LONGEST, model_of
from tests.serve.servers import wait_until

from wordloom.errors import GenerationError, TokenizerError
from wordloom.generate import Sampling
from wordloom.generate import exact_rows as exact_rows_module
from wordloom.models import LlamaConfig, build
from wordloom.serve.engine import Engine, Failure, QueueFullError, Request, Stream, Token
from wordloom.serve.engine import engine as engine_module
from wordloom.serve.engine import slots as slots_module
from wordloom.text import Tokenizer
from wordloom.text.streaming import StreamDecoder

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
    monkeypatch.setattr(slots_module, "PIECE", 4)
    monkeypatch.setattr(slots_module, "EVERY", 2)
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


@pytest.mark.parametrize("another_waits", [False, True])
def test_a_client_that_takes_nothing_costs_nothing_and_ends_in_time(
    another_waits: bool,
) -> None:
    config = LlamaConfig(vocab_size=8, dim=16, n_layers=1, n_heads=1, max_seq_len=400)
    model, tokenizer = build(config).eval(), tokenizer_of(8)
    engine = Engine(model, room=400, slots=1, name="m")
    steps = 0

    def counted(step: Any = engine.step) -> None:
        nonlocal steps
        steps += 1
        step()

    engine.step = counted  # type: ignore[method-assign]
    engine.start()
    try:
        resting = Request(
            prompt=[1], sampling=Sampling(seed=1, max_new_tokens=300), tokenizer=tokenizer,
            deadline=time.monotonic() + 1.0,
        )  # fmt: skip
        client, stream = ask(engine, resting)
        wait_until(lambda: stream.resting)
        if another_waits:
            short = Sampling(seed=2, max_new_tokens=3)
            behind, _ = ask(engine, replace(resting, sampling=short, deadline=None))
        before = steps
        time.sleep(0.4)
        assert steps - before < 20
        assert not client.ended.is_set()
        assert client.ended.wait(timeout=5)
        assert client.events[-1] == Failure("timeout", "the time for this request is over")
        assert not another_waits or behind.ended.wait(timeout=5)
    finally:
        engine.stop()
    text = engine.metrics.text().decode()
    assert 'wordloom_failed_requests_total{model="m"} 1.0' in text


def test_counts_of_requests_that_leave_and_fail() -> None:
    config = LlamaConfig(vocab_size=8, dim=16, n_layers=1, n_heads=1, max_seq_len=40)
    engine = Engine(build(config).eval(), room=40, slots=2, queue=1, name="m")
    request = Request(prompt=[1], sampling=Sampling(seed=1), tokenizer=tokenizer_of(8))
    streams = [ask(engine, request)[1] for _ in range(3)]
    with pytest.raises(QueueFullError, match="wait already; ask again later"):
        ask(engine, request)
    engine.step()
    for stream in streams:
        stream.cancel()
    engine.step()
    assert engine.n_live == engine.n_waiting == 0
    text = engine.metrics.text().decode()
    assert 'wordloom_cancelled_requests_total{model="m"} 3.0' in text
    assert 'wordloom_rejected_requests_total{model="m"} 1.0' in text


@pytest.mark.parametrize("samples", [1, 2])
def test_ids_that_the_tokenizer_lacks_end_one_request_alone(
    samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vocabulary may have gaps, and a prompt ids beyond it."""
    config = LlamaConfig(vocab_size=8, dim=16, n_layers=1, n_heads=1, max_seq_len=40)
    engine = Engine(build(config).eval(), room=40, slots=8)
    real = StreamDecoder.push

    def push(self: StreamDecoder, token_id: int) -> str:
        if token_id == 3:
            raise TokenizerError("id 3 is not in the vocabulary")
        return real(self, token_id)

    monkeypatch.setattr(StreamDecoder, "push", push)
    sampling = Sampling(seed=1, samples=samples, max_new_tokens=6, logit_bias=((3, -100.0),))
    good = Request(prompt=[1], sampling=sampling, tokenizer=tokenizer_of(8))
    gap = replace(good, sampling=replace(sampling, logit_bias=((3, 100.0),), max_new_tokens=1))
    clients = [ask(engine, each)[0] for each in (good, gap, replace(good, prompt=[7]), good)]
    while engine.n_live or engine.n_waiting:
        engine.step()
    assert clients[1].events == [Failure("damaged", "id 3 is not in the vocabulary")]
    (refused,) = clients[2].events
    assert refused.kind == "invalid"
    assert refused.message.startswith("id 7 is not in the vocabulary")
    for client in (clients[0], clients[3]):
        lengths = {choice: len(tokens) for choice, tokens in client.choices().items()}
        assert lengths == dict.fromkeys(range(samples), 6)


def test_a_row_that_fails_takes_the_rows_of_its_request_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that would be complete in the same step, and no other."""
    config = LlamaConfig(vocab_size=5, dim=16, n_layers=1, n_heads=1, max_seq_len=40)
    engine = Engine(build(config).eval(), room=40, slots=8)
    real = engine_module.drawn_tokens

    def failing(request: Request, logits: Any, texts: list[list[int]], *rest: Any) -> Any:
        if any(text[0] == 2 for text in texts):
            raise GenerationError("no token can be drawn")
        return real(request, logits, texts, *rest)

    monkeypatch.setattr(engine_module, "drawn_tokens", failing)
    sampling = Sampling(seed=1, samples=3, max_new_tokens=1)
    good = Request(prompt=[1], sampling=sampling, tokenizer=tokenizer_of(5))
    clients = [ask(engine, each)[0] for each in (replace(good, prompt=[2]), good)]
    while engine.n_live or engine.n_waiting:
        engine.step()
    assert clients[0].events == [Failure("invalid", "no token can be drawn")]
    assert len(clients[1].choices()) == 3


@pytest.mark.parametrize(("changes", "says"), [
    ({"prompt": []}, "the prompt has no tokens"),
    ({"prompt": [1] * 40}, "the prompt has 40 tokens, and the context holds 40"),
    ({"prompt": [1] * 30, "sampling": Sampling(seed=1, max_new_tokens=11)},
     "the prompt has 30 tokens and 11 more are asked for; the context holds 40"),
    ({"sampling": Sampling(seed=1, samples=3)}, "3 choices are asked for, and the server has 2 slots"),
    ({"adapter": "none"}, "there is no adapter 'none'"),
])  # fmt: skip
def test_requests_that_cannot_be_answered_are_refused(changes: dict[str, Any], says: str) -> None:
    config = LlamaConfig(vocab_size=8, dim=16, n_layers=1, n_heads=1, max_seq_len=40)
    engine = Engine(build(config).eval(), room=40, slots=2)
    request = Request(prompt=[1], sampling=Sampling(seed=1), tokenizer=tokenizer_of(8))
    with pytest.raises(GenerationError, match=says):
        engine.submit(replace(request, **changes), Client())
