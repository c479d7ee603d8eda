"""A history writes what a text read from the start would, and reads only what is new."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from wordloom.errors import GenerationError
from wordloom.generate import History, Sampling, steps
from wordloom.models import GPT2Config, LlamaConfig, RNNConfig, build
from wordloom.models.building.quantized import quantize_model

V = 23


def a_model(rng: random.Random, kind: str) -> Any:
    if kind == "lstm":
        return build(RNNConfig(vocab_size=V, dim=9, hidden_dim=7, n_layers=2, cell="lstm")).eval()
    heads = rng.choice([1, 3])
    shape: dict[str, Any] = {"vocab_size": V, "n_layers": 2, "n_heads": heads}
    if kind == "gpt2":
        return build(GPT2Config(**shape, dim=heads * rng.choice([5, 8]), max_seq_len=400)).eval()
    attention = {"ring": "band:7", "performer": "performer:8", "mixed": "sinks:2:9,full"}.get(kind, "full")
    dim = heads * rng.choice([4, 6, 16])
    model = build(LlamaConfig(**shape, dim=dim, max_seq_len=400, attention=attention)).eval()
    if kind == "int8":
        quantize_model(model)
    return model


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("kind", ["llama", "gpt2", "ring", "mixed", "performer", "lstm", "int8"])
def test_turns_and_edits_are_continued_as_if_read_from_the_start(kind: str, fast: bool) -> None:
    rng = random.Random()
    model = a_model(rng, kind)
    history = History(model, fast=fast)
    text: list[int] = []
    for turn in range(7):
        edited = turn > 1 and rng.random() < 0.4
        if edited:
            text = text[: rng.randrange(1, len(text))]
        new = [rng.randrange(V) for _ in range(rng.choice([1, 2, 9]))]
        text += new
        sampling = Sampling(
            temperature=rng.choice([0, 1.0]), seed=rng.randrange(99), max_new_tokens=rng.choice([1, 2, 11])
        )
        known = len(history.ids)
        ends = [rng.randrange(V)]
        made = list(history.continued(text, sampling, eos_ids=ends))
        expected = list(steps(model, [text], sampling, eos_ids=ends, fast=fast))
        assert [step.id for step in made] == [step.id for step in expected]
        assert made[-1].finish_reason == expected[-1].finish_reason
        torch.testing.assert_close(
            [step.logprob for step in made], [step.logprob for step in expected], rtol=1e-3, atol=1e-3
        )
        if turn and not edited:
            assert history.n_read == len(text) - known
            assert history.n_read <= len(new) + 1  # the last token of an answer was drawn and not read
        if edited and kind in ("llama", "gpt2", "int8"):
            assert history.n_read <= len(new) + 1
        text += [step.id for step in made]
        assert history.ids == text[:-1]


@pytest.mark.parametrize("kind", ["llama", "ring", "lstm"])
def test_an_answer_that_is_stopped_early_counts_up_to_there(kind: str) -> None:
    rng = random.Random()
    model = a_model(rng, kind)
    history, text = History(model), [1, 2, 3]
    sampling = Sampling(temperature=0, max_new_tokens=20)
    pieces = history.continued(text, sampling)
    seen = [next(pieces).id for _ in range(rng.randrange(1, 6))]
    pieces.close()
    text += [*seen, 4, 5]
    made = [step.id for step in history.continued(text, sampling)]
    assert made == [step.id for step in steps(model, [text], sampling)]
    assert history.n_read <= 3
    history.forget()
    list(history.continued(text, sampling))
    assert history.n_read == len(text)


@pytest.mark.parametrize("rebound", [True, False])
@pytest.mark.parametrize("kind", ["llama", "ring", "lstm"])
def test_the_next_text_closes_an_open_iterator(kind: str, rebound: bool) -> None:
    model = a_model(random.Random(), kind)
    history, text = History(model), [1, 2, 3]
    sampling = Sampling(temperature=0, max_new_tokens=20)
    pieces = older = history.continued(text, sampling)
    text += [next(pieces).id, next(pieces).id, 4, 5]
    if rebound:
        del older  # the variable below then holds the only reference
    pieces = history.continued(text, sampling)
    assert history.n_read <= 3  # the first tokens of the older iterator are in the cache
    made = [next(pieces).id]
    if not rebound:
        assert list(older) == []
    made += [step.id for step in pieces]
    assert made == [step.id for step in steps(model, [text], sampling)]


def test_forgetting_closes_an_open_iterator() -> None:
    history, sampling = History(a_model(random.Random(), "llama")), Sampling(temperature=0, max_new_tokens=9)
    pieces = history.continued([1, 2, 3], sampling)
    next(pieces)
    history.forget()
    assert list(pieces) == []
    history.continued([1, 2, 3], sampling)
    assert history.n_read == 3


def test_a_text_that_slides_out_of_its_window_is_read_again() -> None:
    model = build(GPT2Config(vocab_size=V, dim=8, n_heads=2, n_layers=1, max_seq_len=12)).eval()
    history, text = History(model), [1, 2, 3, 4]
    sampling = Sampling(temperature=0, max_new_tokens=6, past="slide")
    for _ in range(4):
        made = [step.id for step in history.continued(text, sampling)]
        assert made == [step.id for step in steps(model, [text], sampling)]
        assert history.n_read <= 12
        text += [*made, 5]


def test_a_text_beyond_the_window_is_read_as_a_whole_window() -> None:
    model = build(GPT2Config(vocab_size=V, dim=8, n_heads=2, n_layers=1, max_seq_len=12)).eval()
    history, text = History(model), [1, 2, 3, 4, 5, 6]
    sampling = Sampling(temperature=0, max_new_tokens=3, past="slide")
    list(history.continued(text, sampling))
    assert (history.n_read, len(history.ids)) == (6, 8)
    list(history.continued([*text, *[7] * 9], sampling))
    assert history.n_read == 12


def test_a_text_that_was_never_continued_is_no_obstacle() -> None:
    model = a_model(random.Random(), "llama")
    history, sampling = History(model), Sampling(temperature=0, max_new_tokens=4)
    history.continued([1, 2, 3], sampling)  # no token is taken
    expected = [step.id for step in steps(model, [[4, 5]], sampling)]
    assert [step.id for step in history.continued([4, 5], sampling)] == expected
    with pytest.raises(GenerationError, match="max_seq_len 400"):
        history.continued([4, 5, *[1] * 500], sampling)
    assert [step.id for step in history.continued([4, 5], sampling)] == expected
    assert history.n_read == 1


def test_one_row_only() -> None:
    model = a_model(random.Random(), "llama")
    with pytest.raises(GenerationError, match=r"a history has one row, not 2"):
        History(model).continued([1], Sampling(samples=2))
    with pytest.raises(GenerationError, match="prompt 0 has no tokens"):
        History(model).continued([])
