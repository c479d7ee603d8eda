"""Speculation: ids and log-probabilities are those without it, whatever the drafts are."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tests.generate.random_models import model_of

from wordloom.generate import Sampling, steps
from wordloom.generate.engine import Engine
from wordloom.generate.fast import accelerate
from wordloom.generate.speculation import CorpusNgrams, DraftLength, Lookup
from wordloom.models import GPT2Config, GPTConfig, LlamaConfig, RNNConfig, build

VOCABULARY, LONGEST = 19, 160


class Noise:
    """Expects random tokens, as many as it may or fewer."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def draft(self, ids: Sequence[int], most: int) -> list[int]:
        return [self.rng.randrange(VOCABULARY) for _ in range(self.rng.randint(0, most))]


class Oracle:
    """Expects what was written before, now and then with a mistake."""

    def __init__(self, texts: list[list[int]], rng: random.Random) -> None:
        self.texts, self.rng = texts, rng

    def draft(self, ids: Sequence[int], most: int) -> list[int]:
        text = next((text for text in self.texts if text[: len(ids)] == list(ids)), [])
        drafted = text[len(ids) : len(ids) + most]
        if drafted and self.rng.random() < 0.3:
            drafted[self.rng.randrange(len(drafted))] = self.rng.randrange(VOCABULARY)
        return drafted


def a_model(rng: random.Random, attention: str, *, wide: bool = False) -> Any:
    heads = 3 if wide else rng.choice([1, 2, 3])
    head_dim = rng.choice([8, 18] if wide else [2, 6, 8, 18])
    shape: dict[str, Any] = {
        "vocab_size": VOCABULARY, "max_seq_len": LONGEST, "dim": heads * head_dim,
        "n_heads": heads, "n_layers": rng.choice([1, 2]), "attention": attention,
    }  # fmt: skip
    config = rng.choice([GPTConfig, GPT2Config, LlamaConfig])(**shape)
    return model_of(config, rng.randrange(2**31)).to(rng.choice([torch.float32, torch.bfloat16]))


def by_row(found: Any) -> dict[int, list[Any]]:
    rows: dict[int, list[Any]] = {}
    for step in found:
        rows.setdefault(step.row, []).append(step)
    return rows


@pytest.mark.parametrize("attention", ["full", "band:5", "band:3+global:2", "dilated:4:3,full", "block:7"])
def test_ids_and_logprobs_are_those_without_drafts(attention: str, rng: random.Random) -> None:
    for _ in range(3):
        model = a_model(rng, attention)
        lengths = [
            rng.choice([rng.randint(1, 20), rng.randint(30, 70)]) for _ in range(rng.choice([1, 2, 5]))
        ]
        prompts = [[rng.randrange(VOCABULARY) for _ in range(n)] for n in lengths]
        sampling = Sampling(
            temperature=rng.choice([0, 0.3, 1.0]), max_new_tokens=rng.choice([1, 2, 40, 80]),
            samples=rng.choice([1, 2]), seed=rng.randrange(99), top_k=rng.choice([0, 5]),
            repetition_penalty=rng.choice([1.0, 1.3]), stop_ids=rng.choice([(), (7,)]),
        )  # fmt: skip
        options: dict[str, Any] = {"eos_ids": rng.choice([(), (3,)]), "forbidden_ids": (1,)}
        stops = rng.choice([None, lambda row, token: token == 11])
        options |= {} if stops is None else {"stopped": stops}
        wanted = by_row(steps(model, prompts, sampling, **options))
        copies = [list(prompt) for prompt in prompts for _ in range(sampling.samples)]
        texts = [copies[row] + [step.id for step in made] for row, made in wanted.items()]
        for new_drafter in (lambda: Noise(rng), lambda t=texts: Oracle(t, rng), Lookup):
            found = by_row(steps(model, prompts, sampling, speculate=new_drafter, **options))
            assert found == wanted


def test_a_window_that_slides(rng: random.Random) -> None:
    config = GPT2Config(vocab_size=VOCABULARY, max_seq_len=32, dim=24, n_heads=2, n_layers=2)
    model = model_of(config, rng.randrange(2**31))
    for rows in (1, 3):
        prompts = [[rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 20))] for _ in range(rows)]
        sampling = Sampling(temperature=0.5, max_new_tokens=50, past="slide", seed=3)
        wanted = by_row(steps(model, prompts, sampling))
        assert by_row(steps(model, prompts, sampling, speculate=Lookup)) == wanted


def test_right_drafts_take_few_steps(rng: random.Random) -> None:
    model = a_model(rng, "full", wide=True)
    prompt = [rng.randrange(VOCABULARY) for _ in range(5)]
    greedy = Sampling(temperature=0, max_new_tokens=100)
    ids = [step.id for step in steps(model, [prompt], greedy)]
    engine, passes = Engine(model, speculate=lambda: Perfect(prompt + ids)), 0
    engine.admit([prompt], greedy)
    found: list[int] = []
    while engine.live:
        found += [step.id for step in engine.step()]
        passes += 1
    assert found == ids
    assert passes <= 12


class Perfect:
    def __init__(self, text: list[int]) -> None:
        self.text = text

    def draft(self, ids: Sequence[int], most: int) -> list[int]:
        return self.text[len(ids) : len(ids) + most]


def test_rows_join_and_leave_while_others_speculate(rng: random.Random) -> None:
    model = a_model(rng, rng.choice(["full", "band:4"]))
    prompts = [[rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 20))] for _ in range(6)]
    settings = [
        Sampling(temperature=t, max_new_tokens=n, seed=5) for t, n in ((0, 50), (1, 30), (0, 9), (1, 60))
    ]
    wanted = {}
    for row, prompt in enumerate(prompts):
        found = steps(model, [prompt], settings[row % 4], first_row=row)
        wanted[row] = [(step.id, step.logprob) for step in found]
    engine, waiting, made = Engine(model, speculate=Lookup), list(range(6)), {row: [] for row in range(6)}
    while engine.live or waiting:
        if waiting and (not engine.live or rng.random() < 0.2):
            row = waiting.pop(0)
            engine.admit([prompts[row]], settings[row % 4], first_row=row)
        for step in engine.step():
            made[step.row].append((step.id, step.logprob))
    for row in range(6):  # prompts that are read together may have other last bits than alone
        assert [token for token, _ in made[row]] == [token for token, _ in wanted[row]]


def test_models_without_a_program_ignore_drafts(rng: random.Random) -> None:
    for config in (
        RNNConfig(vocab_size=VOCABULARY, dim=8),
        LlamaConfig(vocab_size=VOCABULARY, dim=8, n_heads=1, n_layers=1, attention="performer:4"),
    ):
        model, settings = build(config).eval(), Sampling(max_new_tokens=20, seed=1)
        plain = list(steps(model, [[1, 2]], settings))
        assert list(steps(model, [[1, 2]], settings, speculate=lambda: Noise(rng))) == plain
    model = a_model(rng, "full")
    assert accelerate(model) is not model
    slow = list(steps(model, [[1, 2]], settings, fast=False))
    assert list(steps(model, [[1, 2]], settings, fast=False, speculate=lambda: Noise(rng))) == slow


def test_lookup_expects_what_followed_last() -> None:
    lookup = Lookup()
    assert lookup.draft([1, 2, 3, 9, 1, 2], 3) == [3, 9, 1]
    assert lookup.draft([1, 2, 3, 9, 1, 2, 4, 1, 2], 5) == [4, 1, 2]
    assert lookup.draft([1, 2, 3, 9, 1, 2, 4, 1, 2, 5, 9, 1, 2], 2) == [4, 1]  # three tokens before two
    assert Lookup().draft([1], 4) == []
    assert Lookup().draft([1, 2], 4) == []
    assert Lookup().draft([6, 6, 6], 4) == [6]


def test_a_corpus_expects_the_most_frequent(rng: random.Random) -> None:
    tokens = np.array([1, 2, 3, 4, 9, 1, 2, 3, 4, 9, 1, 2, 3, 5, 0, 0], dtype=np.uint16)
    corpus = CorpusNgrams.count(tokens, 10)
    assert corpus().draft([7, 1, 2, 3], 3) == [4, 9, 1]
    assert CorpusNgrams.from_arrays(corpus.arrays()).draft([1, 2, 3], 3) == [4, 9, 1]
    assert corpus.draft([8, 1, 2], 1) == [3]  # by two tokens
    assert corpus.draft([8, 8], 4) == corpus.draft([1], 4) == corpus.draft([], 4) == []
    assert corpus.draft([2, 3, 5], 4) == []  # occurs once
    tokens = np.random.default_rng(rng.randrange(99)).integers(0, 7, 3000)
    corpus = CorpusNgrams.count(tokens, 7)
    for _ in range(50):
        context = [rng.randrange(7) for _ in range(3)]
        places = [i for i in range(len(tokens) - 3) if tokens[i : i + 3].tolist() == context]
        counts = np.bincount([tokens[i + 3] for i in places], minlength=7)
        if len(places) > 1:
            assert corpus.draft(context, 1) == [int(counts.argmax())]
    assert CorpusNgrams.count(np.array([1, 2]), 5).draft([1, 2], 3) == []
    assert CorpusNgrams.count(np.arange(100), 1 << 30).draft([1, 2, 3], 3) == []


def test_drafts_grow_while_they_are_right() -> None:
    length = DraftLength()
    assert length.length == 4
    length.update(4, 4)
    assert length.length == 8
    length.update(5, 8)
    assert length.length == 8
    length.update(0, 8)
    assert length.length == 4
