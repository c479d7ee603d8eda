"""One engine for every model: batches, caches, windows, limits and ends."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.generate.tiny_models import FAMILIES, tiny_model

from wordloom.errors import GenerationError
from wordloom.generate import decoder
from wordloom.generate.decoder import next_logits
from wordloom.generate.engine import Engine, generate, steps
from wordloom.generate.sampling import Sampling
from wordloom.models import Memory

CPU = torch.device("cpu")
PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11], [12, 13]]
GREEDY = Sampling(temperature=0, max_new_tokens=20)
DRAWN = Sampling(temperature=1.0, seed=5, max_new_tokens=20)


@pytest.fixture(params=["modules", "programs"], autouse=True)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Everything holds on both paths."""
    if request.param == "modules":
        monkeypatch.setattr(decoder, "accelerate", lambda model: model)
    return str(request.param)


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest) -> Any:
    return tiny_model(request.param)


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_a_prompt_in_a_batch_gets_the_tokens_it_gets_alone(model: Any, sampling: Sampling) -> None:
    together = generate(model, PROMPTS, sampling)
    for row, prompt in enumerate(PROMPTS):
        assert generate(model, [prompt], sampling, first_row=row)[0].ids == together[row].ids
    assert len({tuple(g.ids) for g in together}) > 1


def test_logits_of_unequal_prompts_are_those_alone(model: Any) -> None:
    with torch.no_grad():
        reader = decoder.accelerate(model)
        together = next_logits(reader, PROMPTS, device=CPU, cache=reader.new_cache(len(PROMPTS), 20))
        for row, prompt in enumerate(PROMPTS):
            alone = model(torch.tensor([prompt]))[:, -1]
            torch.testing.assert_close(together[row : row + 1], alone, rtol=1e-5, atol=1e-5)


def test_logits_of_unequal_rows_stay_those_alone_while_decoding(model: Any) -> None:
    with torch.no_grad():
        reader = decoder.accelerate(model)
        cache = reader.new_cache(len(PROMPTS), 20)
        next_logits(reader, PROMPTS, device=CPU, cache=cache)
        rows = [list(prompt) for prompt in PROMPTS]
        for token in range(8):
            for row in rows:
                row.append((7 * token + len(row)) % 61)
            last = torch.tensor([row[-1:] for row in rows])
            together = reader.lm_head(reader.hidden(last, cache=cache)[:, -1])
            for place, row in enumerate(rows):
                alone = model(torch.tensor([row]))[0, -1]
                torch.testing.assert_close(together[place], alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_in_bf16_rows_part_only_where_the_best_two_lie_within_rounding(family: str) -> None:
    parted = 0
    for seed in range(4):
        model = tiny_model(family, seed=seed).to(torch.bfloat16)
        together = generate(model, PROMPTS, GREEDY)
        for row, prompt in enumerate(PROMPTS):
            alone = generate(model, [prompt], GREEDY, first_row=row)[0].ids
            batched = together[row].ids
            if alone == batched:
                continue
            parted += 1
            at = next(i for i, (a, b) in enumerate(zip(alone, batched, strict=True)) if a != b)
            logits = next_logits(model, [prompt + alone[:at]], device=CPU)[0].float()
            gap = abs(logits[alone[at]] - logits[batched[at]])
            # bfloat16 keeps 8 bits: a logit as large as the largest moves by 2^-8 of it in one rounding
            assert gap <= 2 * 2**-8 * logits.abs().max(), f"row {row} parted at {at} with a gap of {gap}"
    assert parted < 12  # of 16: most rows do not part at all


def test_rows_that_end_leave_without_disturbing_the_others(model: Any) -> None:
    free = generate(model, PROMPTS, DRAWN)
    ends = {free[0].ids[2], free[2].ids[7]}
    for row, ended in enumerate(generate(model, PROMPTS, DRAWN, eos_ids=ends)):
        expected = free[row].ids
        cut = next((i + 1 for i, token in enumerate(expected) if token in ends), len(expected))
        assert ended.ids == expected[:cut]
        assert ended.finish_reason == ("eos" if expected[cut - 1] in ends else "length")


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_cached_is_uncached(model: Any, sampling: Sampling) -> None:
    cached = generate(model, PROMPTS, sampling)
    uncached = generate(model, PROMPTS, sampling, use_cache=False)
    assert [g.ids for g in cached] == [g.ids for g in uncached]
    for a, b in zip(cached, uncached, strict=True):
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)


def test_logprobs_are_the_models_own(model: Any) -> None:
    made = generate(
        model, PROMPTS, Sampling(temperature=0.3, top_k=5, repetition_penalty=1.5, seed=1, max_new_tokens=9)
    )
    for prompt, row in zip(PROMPTS, made, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + row.ids]))[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1).gather(1, torch.tensor(row.ids)[:, None])[:, 0]
        assert row.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def test_samples_of_a_prompt_are_rows_of_their_own(model: Any) -> None:
    sampling = Sampling(temperature=1.0, seed=5, max_new_tokens=10, samples=3)
    made = generate(model, PROMPTS[:2], sampling)
    assert [g.row for g in made] == list(range(6))
    one = Sampling(temperature=1.0, seed=5, max_new_tokens=10)
    for g in made:
        assert generate(model, [PROMPTS[g.row // 3]], one, first_row=g.row)[0].ids == g.ids
    assert len({tuple(g.ids) for g in made[:3]}) == 3


def test_a_fresh_seed_is_reported_and_repeats(model: Any) -> None:
    fresh = Sampling(temperature=1.0, max_new_tokens=10)
    first, second = generate(model, [[1]], fresh)[0], generate(model, [[1]], fresh)[0]
    assert first.seed != second.seed
    again = generate(model, [[1]], Sampling(temperature=1.0, max_new_tokens=10, seed=first.seed))[0]
    assert again.ids == first.ids


@pytest.mark.parametrize("use_cache", [True, False], ids=["cached", "uncached"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_sliding_window_is_the_last_max_seq_len_tokens_from_position_0(
    family: str, use_cache: bool
) -> None:
    model = tiny_model(family, max_seq_len=12)
    prompts = [[3], [1, 2, 3, 4, 5, 6, 7, 8], [n % 61 for n in range(30)]]
    made = generate(
        model, prompts, Sampling(temperature=0, max_new_tokens=25, past="slide"), use_cache=use_cache
    )
    for prompt, row in zip(prompts, made, strict=True):
        ids = list(prompt)
        for _ in range(25):
            with torch.no_grad():
                ids.append(int(model(torch.tensor([ids[-12:]]))[0, -1].argmax()))
        assert row.ids == ids[len(prompt) :]


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_within_the_window_go_on_when_one_past_it_has_ended(family: str) -> None:
    model = tiny_model(family, max_seq_len=12)
    sampling = Sampling(temperature=1.0, seed=3, max_new_tokens=9, past="slide")
    ends = iter([False, False, True])  # after three tokens, two of them past the window
    prompts = [[3, 4], [n % 61 for n in range(11)], [7]]
    made: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for step in steps(model, prompts, sampling, stopped=lambda row, _: row == 1 and next(ends)):
        made[step.row].append(step.id)
    alone = [generate(model, [prompt], sampling, first_row=n)[0].ids for n, prompt in enumerate(prompts)]
    assert made == {0: alone[0], 1: alone[1][:3], 2: alone[2]}


def test_past_the_window_is_an_error_before_anything_runs(model: Any) -> None:
    with pytest.raises(
        GenerationError,
        match=r"length 7 and 42 new tokens: more than max_seq_len 48 holds; ask for at most 41",
    ):
        steps(model, PROMPTS, Sampling(max_new_tokens=42))
    assert len(generate(model, [PROMPTS[2]], Sampling(max_new_tokens=41))[0].ids) == 41
    with pytest.raises(
        GenerationError,
        match=r"length 48: more than max_seq_len 48 holds; shorten the prompt, or choose "
        r'past="slide" \(--past slide\)',
    ):
        steps(model, [[1] * 48], Sampling())


def test_a_number_that_may_be_lowered_fills_what_max_seq_len_leaves(model: Any) -> None:
    made = generate(model, PROMPTS, Sampling(seed=0, max_new_tokens=45), fit_new_tokens=True)
    assert [len(g.ids) for g in made] == [min(45, 48 - len(prompt)) for prompt in PROMPTS]
    with pytest.raises(GenerationError, match="length 48: more than max_seq_len 48 holds; shorten"):
        steps(model, [[1] * 48], Sampling(max_new_tokens=45), fit_new_tokens=True)


def test_without_a_number_a_row_fills_what_max_seq_len_leaves(model: Any) -> None:
    made = generate(model, PROMPTS, Sampling(seed=0))
    assert [len(g.ids) for g in made] == [48 - len(prompt) for prompt in PROMPTS]
    assert len(generate(model, [[1]], Sampling(seed=0, past="slide"))[0].ids) == 256


@pytest.mark.parametrize(
    ("prompts", "said"),
    [
        ([[1], []], "prompt 1 has no tokens"),
        ([[1, 61]], "prompt 0 has id 61, but the model's vocabulary is 0 to 60"),
        ([[-1]], "id -1"),
    ],
)
def test_ids_the_model_has_not_are_an_error(model: Any, prompts: list[list[int]], said: str) -> None:
    with pytest.raises(GenerationError, match=said):
        steps(model, prompts, GREEDY)


def test_no_prompts_make_no_rows(model: Any) -> None:
    assert generate(model, [], GREEDY) == []


def test_stop_ids_end_a_row(model: Any) -> None:
    free = generate(model, [[1]], GREEDY)[0].ids
    ended = generate(model, [[1]], Sampling(temperature=0, max_new_tokens=20, stop_ids=(free[4],)))[0]
    assert ended.ids == free[: free.index(free[4]) + 1]
    assert ended.finish_reason == "stop"


def test_ids_past_the_tokenizers_vocabulary_are_not_drawn(model: Any) -> None:
    made = generate(model, PROMPTS, DRAWN, vocab_size=9)
    assert max(token for g in made for token in g.ids) < 9


def test_a_long_prompt_passes_in_pieces(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = generate(model, PROMPTS, DRAWN, fast=False)
    lengths = []
    forward = model.hidden

    def watched(tokens: torch.Tensor, **where: Any) -> torch.Tensor:
        lengths.append(tokens.shape[1])
        return forward(tokens, **where)

    monkeypatch.setattr(model, "hidden", watched)
    monkeypatch.setattr(decoder, "PREFILL_TOKENS", 12)
    pieces = generate(model, PROMPTS, DRAWN, fast=False)
    assert lengths[:3] == [3, 3, 1]
    assert [g.ids for g in pieces] == [g.ids for g in whole]


def test_the_head_runs_on_one_position_per_row(model: Any) -> None:
    shapes = []
    model.lm_head.register_forward_hook(lambda _m, args, _out: shapes.append(tuple(args[0].shape)))
    generate(model, PROMPTS, Sampling(temperature=0, max_new_tokens=3))
    assert shapes == [(4, 32)] * 3


def test_keys_and_values_are_allocated_once(model: Any) -> None:
    made = steps(model, PROMPTS, GREEDY)
    caches: list[Any] = []
    new_cache = model.new_cache

    def watched(*args: Any) -> Any:
        caches.append(new_cache(*args))
        return caches[-1]

    model.new_cache = watched
    places = set()
    for _ in made:
        places.add(caches[0].layer(0).keys.data_ptr())
    assert len(caches) == len(places) == 1


def test_a_window_bounds_the_keys_and_values_that_are_allocated(model: Any) -> None:
    engine = Engine(model)
    engine.admit([[1] * 40], Sampling(temperature=0, max_new_tokens=20_000, past="slide"))
    engine.step()
    assert engine.decoder.cache.layer(0).keys.shape[2] == 48


def test_a_model_without_a_window_allocates_for_some_new_tokens(path: str) -> None:
    engine = Engine(tiny_model("llama", attention="band:7"))
    engine.admit([[1] * 40], Sampling(temperature=0, max_new_tokens=100_000))
    assert len(engine.step()) == 1
    allocated = engine.decoder.model.length if path == "programs" else engine.decoder.cache.capacity
    assert allocated == 40 + decoder.MOST_ALLOCATED


def test_a_memory_of_sources_for_a_causal_model_is_an_error(model: Any) -> None:
    engine = Engine(model)
    with pytest.raises(GenerationError, match="needs a model that reads sources"):
        engine.admit([[1]], memory=Memory(torch.zeros(1, 2, 32), None))
    assert engine.live == []


def test_dropout_is_off_and_the_mode_comes_back() -> None:
    model = tiny_model("llama", dropout=0.5)
    calm = generate(model, [[1, 2]], GREEDY)
    model.train()
    model.blocks[0].eval()
    assert generate(model, [[1, 2]], GREEDY)[0].ids == calm[0].ids
    assert model.training
    assert model.blocks[1].training
    assert not model.blocks[0].training


def test_damaged_weights_are_an_error(model: Any) -> None:
    with torch.no_grad():
        model.lm_head.weight[3] = torch.nan
    with pytest.raises(GenerationError, match="NaN"):
        generate(model, [[1]], GREEDY)


@pytest.mark.skipif("WORDLOOM_DATA" not in os.environ, reason="WORDLOOM_DATA is not set")
@pytest.mark.parametrize("use_cache", [True, False], ids=["cached", "uncached"])
def test_a_trained_llama_tells_its_story(use_cache: bool) -> None:
    from wordloom.generate import generate_text
    from wordloom.text import Tokenizer
    from wordloom.weights import load_model

    folder = Path(os.environ["WORDLOOM_DATA"]) / "weights" / "stories260K" / "hf"
    story = (
        "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One "
        "day, she saw a big, red ball. She wanted to play with it, but it was too high."
    )
    text = generate_text(
        load_model(folder),
        Tokenizer.from_pretrained(folder),
        "Once upon a time",
        Sampling(temperature=0, max_new_tokens=120),
        use_cache=use_cache,
    )
    assert ("Once upon a time" + text).startswith(story)
