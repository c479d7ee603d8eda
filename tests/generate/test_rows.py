"""A row computes what it would alone, whichever rows join, leave, change places or are truncated.

Every generative family is tested by its modules and, where it has one, by its compiled program.  Sizes are
drawn anew on each run; Hypothesis prints a failing case, which reproduces it.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.generate.random_models import FAMILIES, LONGEST, memory_of, model_of
from tests.generate.tiny_models import tiny_model
from torch import Tensor

from wordloom.errors import GenerationError
from wordloom.generate import Conditioned, Decoder, Engine, Sampling, beam_search, generate
from wordloom.generate.sampling import filter_logits, penalise_repetition, row_generator
from wordloom.models import LlamaConfig, Memory, context_limit, translates

EVERY = pytest.mark.parametrize(
    ("family", "fast"),
    [
        *((family, False) for family in FAMILIES),
        *((family, True) for family in FAMILIES if family != "seq2seq"),
    ],
    ids=lambda value: {True: "programs", False: "modules"}.get(value, value),
)
SEEDS = st.integers(0, 2**31)


def drawn(data: st.DataObject, family: str) -> tuple[Any, torch.Generator]:
    """A model, and a generator of token ids."""
    seed = data.draw(SEEDS)
    return model_of(data.draw(FAMILIES[family]), seed), torch.Generator().manual_seed(seed)


def ids_of(model: Any, n: int, draw: torch.Generator) -> list[int]:
    return torch.randint(model.config.vocab_size, (n,), generator=draw).tolist()


@torch.inference_mode()
def alone(model: Any, ids: list[int], memory: Memory | None = None) -> Tensor:
    """Logits [V] after these ids, by the modules and without a cache."""
    tokens = torch.tensor([ids])
    hidden = model.hidden(tokens) if memory is None else model.hidden(tokens, memory)
    return model.lm_head(hidden)[0, -1].float()


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * max(1.0, float(expected.abs().max())))


@EVERY
def test_rows_that_join_and_leave_compute_what_they_do_alone(family: str, fast: bool) -> None:
    @settings(max_examples=20, deadline=None)
    @given(data=st.data())
    def hold(data: st.DataObject) -> None:
        model, draw = drawn(data, family)
        conditioned = translates(model.config)
        sources: list[Memory | None] = []
        first = Conditioned(model, memory_of(model, 1, draw)) if conditioned else model
        decoder = Decoder(first, fast=fast)
        for number in range(data.draw(st.integers(1, 7))):
            if not decoder.rows or data.draw(st.booleans()):
                n, copies = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 2))
                length = data.draw(st.integers(1, 9))
                lengths = [length if conditioned else data.draw(st.integers(1, 9)) for _ in range(n)]
                memory = memory_of(model, n, draw) if conditioned else None
                prompts = [ids_of(model, length, draw) for length in lengths]
                room = data.draw(st.integers(0, 8))
                decoder.admit(prompts, new_tokens=room, copies=copies, memory=memory)
                for prompt in range(n):
                    source = None if memory is None else memory.select(torch.tensor([prompt]))
                    sources += [source] * copies
            logits = decoder.step()
            for row, source, found in zip(decoder.rows, sources, logits, strict=True):
                close(found, alone(model, row, source))
            decoder.append(ids_of(model, len(decoder.rows), draw))
            left = data.draw(st.sampled_from(["none", "some", "order"]))
            if left == "some" or max(map(len, decoder.rows)) == LONGEST:
                gone = data.draw(st.sets(st.integers(0, len(decoder.rows) - 1)))
                decoder.evict(gone)
                sources = [source for place, source in enumerate(sources) if place not in gone]
            elif left == "order":
                places = data.draw(st.lists(st.integers(0, len(decoder.rows) - 1), min_size=1, max_size=9))
                decoder.select(places)
                sources = [sources[place] for place in places]
            if number and decoder.rows and max(map(len, decoder.rows)) >= LONGEST:
                break

    hold()


@EVERY
def test_requests_that_join_late_get_the_tokens_they_get_alone(family: str, fast: bool) -> None:
    @settings(max_examples=12, deadline=None)
    @given(data=st.data())
    def hold(data: st.DataObject) -> None:
        model, draw = drawn(data, family)
        conditioned = translates(model.config)
        engine = Engine(Conditioned(model, memory_of(model, 1, draw)) if conditioned else model, fast=fast)
        waiting, requests = data.draw(st.integers(1, 4)), []
        texts: dict[int, list[int]] = {}
        while waiting or engine.live:
            if waiting and (not engine.live or data.draw(st.booleans())):
                waiting -= 1
                prompt = ids_of(model, data.draw(st.integers(1, 9)), draw)
                sampling = data.draw(
                    st.sampled_from([
                        Sampling(temperature=0, max_new_tokens=7),
                        Sampling(temperature=1.0, seed=3, max_new_tokens=5, samples=2),
                        Sampling(temperature=0.7, top_k=4, seed=8, max_new_tokens=9, repetition_penalty=1.3),
                    ])
                )  # fmt: skip
                memory = memory_of(model, 1, draw) if conditioned else None
                rows = engine.admit([prompt], sampling, memory=memory)
                requests.append((prompt, sampling, memory, rows))
                texts.update((row, []) for row in rows)
            for step in engine.step():
                texts[step.row].append(step.id)
        for prompt, sampling, memory, rows in requests:
            reader = model if memory is None else Conditioned(model, memory)
            expected = generate(reader, [prompt], sampling, first_row=rows[0], fast=False)
            for row, one in zip(rows, expected, strict=True):
                assert_same_or_close(model, prompt, texts[row], one.ids, memory, sampling, row)

    hold()


def assert_same_or_close(
    model: Any,
    prompt: list[int],
    found: list[int],
    expected: list[int],
    memory: Memory | None,
    sampling: Sampling,
    row: int,
) -> None:
    """Equal ids, but for a choice that rounding may turn: the modules round by the number of rows.

    That is a greedy choice between two logits that are equal up to rounding, a random number that lies on
    the boundary between two tokens, or a k-th and next logit that are equal up to rounding.
    """
    assert len(found) == len(expected)
    if found == expected:
        return
    at = next(i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b)
    text = prompt + expected[:at]
    logits = alone(model, text, memory)
    near = 1e-3 * max(1.0, float(logits.abs().max()))
    if sampling.temperature == 0:
        assert abs(logits[found[at]] - logits[expected[at]]) < near
        return
    logits = penalise_repetition(logits[None], [text], sampling.repetition_penalty)
    point = row_generator(sampling.seed or 0, row).random(at + 1)[-1]  # a token takes one random number
    cumulative = filter_logits(logits, sampling).double().softmax(dim=-1).cumsum(dim=-1)[0]
    first, last = sorted([found[at], expected[at]])
    on_boundary = bool(((cumulative[first:last] - point).abs() < 1e-4).all())
    ordered, k = logits[0].sort(descending=True).values, sampling.top_k or len(logits[0])
    tied = k < len(ordered) and bool(ordered[k - 1] - ordered[k] < 1e-4)
    assert on_boundary or tied, f"draws differ at token {at}"


def test_a_draw_on_a_boundary_may_turn_with_the_number_of_rows() -> None:
    """A case that Hypothesis found: 2e-7 from a boundary, which rounding crosses on some processors."""
    config = LlamaConfig(
        vocab_size=50, max_seq_len=LONGEST, dim=22, n_layers=2, n_heads=2, n_kv_heads=1, head_dim=18,
        hidden_dim=64, activation="relu", norm_eps=1e-2,
    )  # fmt: skip
    model, draw = model_of(config, 239926), torch.Generator().manual_seed(239926)
    prompt, sampling = ids_of(model, 6, draw), Sampling(temperature=1.0, seed=3, max_new_tokens=5, samples=2)
    expected = generate(model, [prompt], sampling, fast=False)[1].ids
    turned = [*expected[:4], 20 + 21 - expected[4]]  # the random number lies between tokens 20 and 21
    assert_same_or_close(model, prompt, turned, expected, None, sampling, row=1)
    with pytest.raises(AssertionError, match="draws differ at token 4"):
        assert_same_or_close(model, prompt, [*expected[:4], 22], expected, None, sampling, row=1)


@EVERY
def test_beams_of_a_batch_are_those_of_each_prompt_alone(family: str, fast: bool) -> None:
    @settings(max_examples=10, deadline=None)
    @given(data=st.data())
    def hold(data: st.DataObject) -> None:
        model, draw = drawn(data, family)
        n, V = data.draw(st.integers(1, 4)), model.config.vocab_size
        conditioned = translates(model.config)
        lengths = [3 if conditioned else data.draw(st.integers(1, 9)) for _ in range(n)]
        prompts = [ids_of(model, length, draw) for length in lengths]
        memory = memory_of(model, n, draw) if conditioned else None
        rules: dict[str, Any] = {
            "beams": data.draw(st.integers(1, 4)), "max_new_tokens": 6, "eos_ids": [V - 1], "fast": fast,
            "length_penalty": data.draw(st.sampled_from([0.0, 1.0, 2.0])),
        }  # fmt: skip
        together = beam_search(model if memory is None else Conditioned(model, memory), prompts, **rules)
        for number, found in enumerate(together):
            reader = model
            if memory is not None:
                reader = Conditioned(model, memory.select(torch.tensor([number])))
            (expected,) = beam_search(reader, [prompts[number]], **rules)
            if [one.ids for one in found] != [one.ids for one in expected]:  # two equal up to rounding
                for one, other in zip(found, expected, strict=True):
                    assert one.score == pytest.approx(other.score, abs=1e-3, rel=1e-3)

    hold()


@pytest.mark.parametrize("fast", [False, True], ids=["modules", "programs"])
@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in ("rnn", "seq2seq")])
def test_truncated_rows_continue_as_if_they_had_never_gone_further(family: str, fast: bool) -> None:
    @settings(max_examples=12, deadline=None)
    @given(data=st.data())
    def hold(data: st.DataObject) -> None:
        model, draw = drawn(data, family)
        conditioned, n = translates(model.config), data.draw(st.integers(1, 4))
        memory = memory_of(model, n, draw) if conditioned else None
        decoder = Decoder(model if memory is None else Conditioned(model, memory), fast=fast)
        length = data.draw(st.integers(1, 6))
        lengths = [length if conditioned else data.draw(st.integers(1, 6)) for _ in range(n)]
        decoder.admit([ids_of(model, length, draw) for length in lengths], new_tokens=4)
        for _ in range(data.draw(st.integers(1, 5))):
            decoder.step()
            decoder.append(ids_of(model, n, draw))
        # the last id of a row has not passed through the model yet
        kept = [data.draw(st.integers(0, len(row) - 1)) for row in decoder.rows]
        decoder.cache.truncate(torch.tensor(kept))
        decoder.rows = [row[:stop] for row, stop in zip(decoder.rows, kept, strict=True)]
        for _ in range(3):
            decoder.append(ids_of(model, n, draw))
            logits = decoder.step()
            for place, row in enumerate(decoder.rows):
                source = None if memory is None else memory.select(torch.tensor([place]))
                close(logits[place], alone(model, row, source))

    hold()


@pytest.mark.parametrize(("family", "fast"), [("rnn", False), ("rnn", True), ("seq2seq", False)])
def test_a_state_goes_back_to_a_snapshot(family: str, fast: bool) -> None:
    @settings(max_examples=12, deadline=None)
    @given(data=st.data())
    def hold(data: st.DataObject) -> None:
        model, draw = drawn(data, family)
        n = data.draw(st.integers(1, 4))
        memory = memory_of(model, n, draw) if family == "seq2seq" else None
        decoder = Decoder(model if memory is None else Conditioned(model, memory), fast=fast)
        decoder.admit([ids_of(model, 3, draw) for _ in range(n)], new_tokens=4)
        decoder.step()
        saved, rows = decoder.cache.snapshot(), [list(row) for row in decoder.rows]
        for _ in range(data.draw(st.integers(1, 3))):
            decoder.append(ids_of(model, n, draw))
            decoder.step()
        with pytest.raises(GenerationError, match="cannot be truncated"):
            decoder.cache.truncate(1)
        decoder.cache.restore(saved)
        decoder.rows = rows
        for _ in range(2):
            decoder.append(ids_of(model, n, draw))
            logits = decoder.step()
            for place, row in enumerate(decoder.rows):
                source = None if memory is None else memory.select(torch.tensor([place]))
                close(logits[place], alone(model, row, source))

    hold()


@pytest.mark.parametrize("family", ["gpt", "gpt2", "llama"])
def test_rows_join_a_batch_of_which_some_are_past_the_window(family: str) -> None:
    @settings(max_examples=8, deadline=None)
    @given(data=st.data())
    def hold(data: st.DataObject) -> None:
        model, draw = drawn(data, family)
        window = context_limit(model.config)
        assert window is not None
        decoder = Decoder(model)
        decoder.admit([ids_of(model, window - 1, draw), ids_of(model, 2, draw)], new_tokens=8)
        for number in range(6):
            logits = decoder.step()
            for row, found in zip(decoder.rows, logits, strict=True):
                close(found, alone(model, row[-window:]))
            decoder.append(ids_of(model, len(decoder.rows), draw))
            if number == 2:
                decoder.admit([ids_of(model, 5, draw)], new_tokens=8)
            if number == 3:
                decoder.evict([0])

    hold()


def test_a_row_is_evicted_before_it_ends() -> None:
    model = tiny_model("llama")
    engine = Engine(model)
    engine.admit([[0], [1]], Sampling(seed=1, max_new_tokens=6))
    engine.step()
    engine.evict([0])
    assert engine.live == [1]
    assert engine.admit([[1, 0]], Sampling(seed=1, max_new_tokens=2)) == [2]
    assert [step.row for step in engine.step()] == [1, 2]


def test_a_memory_belongs_to_a_model_that_writes_from_it() -> None:
    model = tiny_model("llama")
    with pytest.raises(GenerationError, match="needs a model that reads sources"):
        Decoder(model).admit([[0]], new_tokens=1, memory=Memory(torch.zeros(1, 1, 1)))
