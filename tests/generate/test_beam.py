"""Beam search: every hypothesis of a small vocabulary, ties, batches that shrink, mistakes."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.generate.tiny_models import FAMILIES, TinyPair, assert_same, read, tiny_model
from torch import Tensor, nn

from wordloom.errors import GenerationError
from wordloom.generate import Hypothesis, Sampling, beam, beam_search, generate
from wordloom.models import Memory
from wordloom.nn.cache import RecurrentCache

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11], [12, 13]]
SOURCES = [[7, 3, 9, 4], [2, 2], [11, 5, 8, 1, 6, 9, 3], [4]]
EARLY = [False, True, "never"]


@pytest.mark.parametrize("early_stopping", EARLY)
@pytest.mark.parametrize("family", FAMILIES)
def test_one_beam_is_greedy(family: str, early_stopping: Any) -> None:
    model = tiny_model(family)
    ends = [generate(model, PROMPTS, Sampling(temperature=0, max_new_tokens=9))[0].ids[5]]
    greedy = generate(model, PROMPTS, Sampling(temperature=0, max_new_tokens=20), eos_ids=ends)
    found = beam_search(
        model, PROMPTS, beams=1, early_stopping=early_stopping, max_new_tokens=20, eos_ids=ends
    )
    for row, (one,) in zip(greedy, found, strict=True):
        assert one.ids == row.ids
        assert one.logprob == pytest.approx(sum(row.logprobs), abs=1e-4)


@pytest.mark.parametrize("early_stopping", [False, "never"])
@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_with_beams_enough_every_hypothesis_is_found(early_stopping: Any, length_penalty: float) -> None:
    model = tiny_model("gpt2", vocab_size=4)
    expected = []
    for length in range(1, 5):
        for ids in itertools.product(range(4), repeat=length):
            if 3 in ids[:-1] or (length < 4 and ids[-1] != 3):
                continue
            with torch.no_grad():
                logits = model(torch.tensor([[1, 2, *ids[:-1]]]))[0, 1:]
            logprob = float(logits.log_softmax(dim=-1).gather(1, torch.tensor(ids)[:, None]).sum())
            expected.append(Hypothesis(list(ids), logprob / length**length_penalty, logprob))
    expected.sort(key=lambda found: -found.score)
    found = beam_search(
        model,
        [[1, 2]],
        beams=300,
        n_best=300,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        max_new_tokens=4,
        eos_ids=[3],
    )
    assert len(expected) == 1 + 3 + 9 + 27 * 4
    assert_same(found, [expected])


@pytest.mark.parametrize("fast", [False, True], ids=["modules", "programs"])
@pytest.mark.parametrize("early_stopping", EARLY)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_in_a_batch_finds_what_it_finds_alone(family: str, early_stopping: Any, fast: bool) -> None:
    model = tiny_model(family)
    given: dict[str, Any] = {
        "beams": 4, "n_best": 3, "early_stopping": early_stopping, "eos_ids": [3, 40, 41], "fast": fast,
    }  # fmt: skip
    together = beam_search(model, PROMPTS, **given)
    for prompt, found in zip(PROMPTS, together, strict=True):
        assert_same(beam_search(model, [prompt], **given), [found])
    assert len({len(row[0].ids) for row in together}) > 1


@pytest.mark.parametrize("early_stopping", EARLY)
def test_a_source_in_a_batch_finds_what_it_finds_alone(early_stopping: Any) -> None:
    for seed in range(4):
        model = TinyPair(seed=seed)
        given: dict[str, Any] = {"n_best": 4, "early_stopping": early_stopping, "eos_ids": [seed]}
        together = beam_search(read(model, SOURCES), [[0]] * 4, **given)
        for source, found in zip(SOURCES, together, strict=True):
            assert_same(beam_search(read(model, [source]), [[0]], **given), [found])


def test_prompts_that_are_done_leave_the_batch_and_its_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    model = TinyPair()
    rows: list[tuple[int, int]] = []
    write = model.hidden

    def watched(prefix: Tensor, memory: Memory, *, cache: RecurrentCache) -> Tensor:
        made = write(prefix, memory, cache=cache)
        rows.append((len(memory.values), len(cache.layer(0).state[0])))
        return made

    monkeypatch.setattr(model, "hidden", watched)
    found = beam_search(
        read(model, SOURCES),
        [[0]] * 4,
        beams=3,
        n_best=3,
        early_stopping=True,
        eos_ids=[5],
        max_new_tokens=30,
    )
    # a prompt is done when the last of its hypotheses ends
    lengths = [max(len(hypothesis.ids) for hypothesis in row) for row in found]
    live = [sum(length > step for length in lengths) for step in range(max(lengths))]
    assert rows == [(4, 4)] + [(3 * n, 3 * n) for n in live[1:]]
    assert len(set(live)) > 1


class Table(nn.Module):
    """A CausalLM whose logits depend on the last token alone: row ``token`` of a table [V, V]."""

    def __init__(self, logits: list[list[float]]) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.tensor(logits))
        self.config = SimpleNamespace(vocab_size=len(logits))

    def hidden(self, tokens: Tensor, *, attend: Tensor | None = None, cache: Any = None) -> Tensor:
        return self.rows[tokens]

    def lm_head(self, hidden: Tensor) -> Tensor:
        return hidden

    def new_cache(self, batch: int, length: int) -> RecurrentCache:
        return RecurrentCache(n_layers=0, batch=batch)


def test_among_equals_the_lowest_ids_come_first_and_what_ended_first() -> None:
    alike = Table([[0.0] * 6 for _ in range(6)])
    found = beam_search(alike, [[0]], beams=4, n_best=4, max_new_tokens=2)[0]
    assert [one.ids for one in found] == [[0, 0], [0, 1], [0, 2], [0, 3]]
    # of two beams that end with one score the lower goes first, and [2], which ended before them, before both
    found = beam_search(alike, [[0]], beams=3, n_best=3, max_new_tokens=2, eos_ids=[2])[0]
    assert [one.ids for one in found] == [[2], [0, 0], [0, 1]]


def test_no_hypothesis_is_found_twice_where_ids_are_few() -> None:
    table = Table([[0.0, 1.0], [0.5, 0.0]])
    found = beam_search(table, [[0]], beams=8, n_best=8, max_new_tokens=2)[0]
    assert sorted(one.ids for one in found) == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert beam_search(table, [[0]], beams=2, max_new_tokens=3, forbidden_ids=[0, 1]) == [[]]


def test_a_forced_end_takes_the_last_place_at_no_cost() -> None:
    table = Table([[0.0, 2.0, 1.0]] * 3)
    (free,) = beam_search(table, [[0]], max_new_tokens=2)[0]
    assert free.ids == [1, 1]
    for ends in ([], [0]):
        (one,) = beam_search(table, [[0]], max_new_tokens=3, eos_ids=ends, forced_eos_id=0)[0]
        assert one.ids == [1, 1, 0]
        assert one.logprob == pytest.approx(free.logprob, abs=1e-6)


def test_ids_past_the_tokenizers_vocabulary_are_not_found() -> None:
    found = beam_search(tiny_model("llama"), PROMPTS, n_best=5, vocab_size=9, max_new_tokens=8)
    assert max(token for row in found for one in row for token in one.ids) < 9


@settings(max_examples=100, deadline=None)
@given(
    rows=st.integers(1, 3),
    width=st.integers(1, 40) | st.integers(500, 8000),
    k=st.integers(1, 12),
    kinds=st.sampled_from([1, 3, 300, 10_000, 1_000_000]),
    seed=st.integers(0, 1000),
)
def test_the_largest_are_those_of_a_stable_sort(rows: int, width: int, k: int, kinds: int, seed: int) -> None:
    logits = torch.randint(kinds, (rows, width), generator=torch.Generator().manual_seed(seed)).float()
    logits[logits == 0] = -torch.inf
    values, ids = beam._top(logits, k)
    expected = logits.sort(dim=1, descending=True, stable=True).indices[:, :k].sort(dim=1).values
    assert torch.equal(values, logits.gather(1, ids))
    for row, got, wanted in zip(logits, ids.tolist(), expected.tolist(), strict=True):
        assert [i for i in got if row[i] > -torch.inf] == [i for i in wanted if row[i] > -torch.inf]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"beams": 0}, "beams is a whole number of at least 1, not 0"),
        ({"beams": 2.0}, "beams is a whole number of at least 1, not 2.0"),
        ({"n_best": 6}, "n_best 6 of 5 beams; ask for fewer, or search with more beams"),
        ({"max_new_tokens": True}, "max_new_tokens is a whole number of at least 1, not True"),
        ({"length_penalty": float("nan")}, "length_penalty is a number from -10 to 10"),
        ({"length_penalty": "long"}, "length_penalty is a number from -10 to 10"),
        ({"early_stopping": "always"}, "early_stopping is True, False or 'never', not 'always'"),
        ({"early_stopping": 1}, "early_stopping is True, False or 'never', not 1"),
        ({"forbidden_ids": [61]}, "forbidden_ids has id 61, but the model's vocabulary is 0 to 60"),
        ({"forced_eos_id": -1}, "forced_eos_id has id -1"),
        (
            {"max_new_tokens": 42},
            "length 7 and 42 new tokens: more than max_seq_len 48 holds; ask for at most 41",
        ),
        ({"prompts": [[1], []]}, "prompt 1 has no tokens"),
    ],
)
def test_mistakes_are_told_before_anything_is_computed(wrong: dict[str, Any], said: str) -> None:
    model = tiny_model("gpt2")
    model.hidden = lambda *_, **__: pytest.fail("computed")
    with pytest.raises(GenerationError, match=said):
        beam_search(model, **{"prompts": PROMPTS, **wrong})


def test_no_prompts_find_nothing() -> None:
    assert beam_search(tiny_model("gpt2"), []) == []


def test_dropout_is_off_and_the_mode_comes_back() -> None:
    model = tiny_model("llama", dropout=0.5)
    calm = beam_search(model, PROMPTS, max_new_tokens=6, fast=False)
    assert beam_search(model.train(), PROMPTS, max_new_tokens=6, fast=False) == calm
    assert model.training


def test_damaged_weights_are_an_error() -> None:
    model = tiny_model("gpt2")
    with torch.no_grad():
        model.lm_head.weight[3] = torch.nan
    with pytest.raises(GenerationError, match="NaN"):
        beam_search(model, PROMPTS)
