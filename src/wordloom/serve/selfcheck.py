"""Check on a user's own model that a request gets the same tokens alone and beside others.

Each request holds a canary, tokens of its own, and some go on from the answers to others.  All are answered
alone, with nothing kept of earlier texts, and then together in random orders, while others join, leave and
share beginnings.  Equal means the same tokens with the same log-probabilities, bit by bit.
"""

from __future__ import annotations

import queue
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from wordloom.errors import WordloomError
from wordloom.generate.sampling import Sampling
from wordloom.serve.engine import Engine, Failure, Request, Stream, Token
from wordloom.serve.limits import Limits
from wordloom.serve.metrics import Metrics
from wordloom.serve.models import Source, load_served

ROUNDS = 3

Answer = list[list[tuple[int, float]]]  # the id and the log-probability of each token, by choice


def check_all(
    sources: Mapping[str, Source], limits: Limits, *, device: str, dtype: str, say: Callable[[str], Any]
) -> None:
    """Check every model that writes text, and print what was found.

    Raises WordloomError if a request has other tokens beside others.
    """
    for name, source in sources.items():
        served = load_served(name, source, limits, Metrics(), device=device, dtype=dtype)
        try:
            if served.engine is None:
                say(f"{name}: writes no text, so it has nothing to check")
                continue
            if served.model.tokenizer is None:
                raise WordloomError(f"{name} has no tokenizer, so it cannot be served")
            say(check(served.engine, served.model.tokenizer, name))
        finally:
            served.close(0.0)


def check(engine: Engine, tokenizer: Any, name: str, *, seed: int = 0) -> str:
    """Return a line about the requests that were compared; raises WordloomError for the first difference."""
    rng = random.Random(seed)
    words = [rng.randrange(tokenizer.vocab_size) for _ in range(14)]
    requests = [_request(rng, engine, tokenizer, words, number) for number in range(min(engine.n_slots, 32))]
    began, n = time.perf_counter(), len(requests)
    alone: list[Answer | None] = []
    for number in range(2 * n):
        if number >= n:  # the second turns
            begun = alone[number - n]
            assert begun is not None
            before = [*requests[number - n].prompt, *(token for token, _ in begun[0])]
            requests.append(_request(rng, engine, tokenizer, words, number, before))
        engine.forget()
        alone += _answers(engine, [requests[number]], rng, cancel=False)
    compared = 0
    for number in range(ROUNDS):
        engine.forget()
        order = [*rng.sample(range(n), n), *rng.sample(range(n, 2 * n), n)]
        together = _answers(engine, [requests[i] for i in order], rng, cancel=number > 0)
        for place, found in zip(order, together, strict=True):
            if found is None:
                continue
            compared += 1
            if found != alone[place]:
                raise WordloomError(
                    f"{name}: request {place} has another answer beside others than alone; please report "
                    "this, with the processor and the model's config.json"
                )
    tokens = sum(len(ids) for answer in alone if answer is not None for ids in answer)
    seconds = time.perf_counter() - began
    return (
        f"{name}: {compared} answers to {len(requests)} requests of up to {engine.n_slots} at once equal "
        f"those alone ({tokens:,} tokens, {seconds:.0f} s)"
    )


def _request(
    rng: random.Random, engine: Engine, tokenizer: Any, words: list[int], number: int,
    before: Sequence[int] = (),
) -> Request:  # fmt: skip
    """Return a request of random ``words`` and a canary, perhaps behind a text ``before`` them."""
    shared = rng.choice([0, 5, 40])  # words at the beginning that are those of other requests
    ids = [*before, *(words * 3)[:shared], *rng.choices(words, k=rng.choice([1, 8, 60, 200]))]
    ids += [rng.randrange(tokenizer.vocab_size) for _ in range(4)]
    most = max(1, engine.room // 2)
    sampling = Sampling(
        temperature=rng.choice([0, 0.7, 1.2]), top_k=rng.choice([None, 20]), top_p=rng.choice([None, 0.9]),
        seed=number, samples=rng.choice([1, 1, 2]), max_new_tokens=min(rng.choice([1, 8, 24]), most),
    )  # fmt: skip
    if sampling.samples > engine.n_slots:
        sampling = replace(sampling, samples=1)
    return Request(prompt=ids[:most], sampling=sampling, tokenizer=tokenizer)


def _answers(
    engine: Engine, requests: list[Request], rng: random.Random, *, cancel: bool
) -> list[Answer | None]:
    """Return the answer to each request; None for a request that was cancelled."""
    events: queue.Queue[tuple[int, list[Token | Failure]]] = queue.Queue()
    found: list[Answer | None] = [[[] for _ in range(request.sampling.samples)] for request in requests]
    left: dict[int, int] = {}
    streams: dict[int, Stream] = {}

    def deliver_to(number: int) -> Callable[[list[Token | Failure]], None]:
        return lambda some: events.put((number, some))

    waiting = list(range(len(requests)))
    while waiting or left:
        while waiting and not engine.is_full:
            number = waiting.pop(0)
            left[number] = requests[number].sampling.samples
            streams[number] = engine.submit(requests[number], deliver_to(number))
            if rng.random() < 0.3:
                break
        number, some = events.get(timeout=300)
        for event in some:
            if isinstance(event, Failure):
                raise WordloomError(f"the engine could not answer: {event.message}")
            answer = found[number]
            if answer is None:
                continue
            answer[event.choice].append((event.id, event.logprob))
            left[number] -= event.finish_reason is not None
        streams[number].sent(len(some))
        if left.get(number) == 0:
            del left[number]
        elif cancel and rng.random() < 0.05 and number in left:
            streams[number].cancel()
            found[number] = None
            del left[number]
    return found
