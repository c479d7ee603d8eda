"""The engine serves a SequenceToSequence: sources read once, prefixes written by every setting."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.generate.tiny_models import TinyPair, assert_same, padded, read

from wordloom.errors import GenerationError
from wordloom.generate import Conditioned, Sampling, beam_search, generate, score_targets, steps, stream
from wordloom.models import Memory, Seq2SeqConfig, TransformerConfig, build
from wordloom.nn.cache import RecurrentCache

SOURCES = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11], [12, 13]]
START = [[0]] * len(SOURCES)
GREEDY = Sampling(temperature=0, max_new_tokens=15)
DRAWN = Sampling(temperature=1.0, seed=5, max_new_tokens=15)
SETTINGS = {
    "greedy": GREEDY,
    "drawn": DRAWN,
    "filtered": Sampling(
        temperature=0.7,
        top_k=8,
        top_p=0.9,
        repetition_penalty=1.3,
        no_repeat_ngram=3,
        seed=2,
        max_new_tokens=15,
    ),
}
EVERY = pytest.mark.parametrize("sampling", SETTINGS.values(), ids=SETTINGS)


@pytest.fixture
def model() -> TinyPair:
    return TinyPair()


def test_greedy_is_the_likeliest_id_of_everything_computed_anew(model: TinyPair) -> None:
    made = generate(read(model, SOURCES), START, GREEDY)
    for source, row in zip(SOURCES, made, strict=True):
        ids = [0]
        for _ in range(15):
            with torch.no_grad():
                ids.append(int(model(torch.tensor([source]), torch.tensor([ids]))[0, -1].argmax()))
        assert row.ids == ids[1:]
    assert len({tuple(row.ids) for row in made}) == len(SOURCES)


@EVERY
def test_cached_is_uncached_and_a_batch_is_its_rows(model: TinyPair, sampling: Sampling) -> None:
    together = generate(read(model, SOURCES), START, sampling)
    uncached = generate(read(model, SOURCES), START, sampling, use_cache=False)
    assert [row.ids for row in uncached] == [row.ids for row in together]
    for row, source in enumerate(SOURCES):
        alone = generate(read(model, [source]), [[0]], sampling, first_row=row)[0]
        assert alone.ids == together[row].ids
        assert alone.logprobs == pytest.approx(together[row].logprobs, abs=1e-4)


@pytest.mark.parametrize("use_cache", [True, False], ids=["cached", "uncached"])
def test_rows_that_end_leave_without_disturbing_the_others(model: TinyPair, use_cache: bool) -> None:
    free = generate(read(model, SOURCES), START, DRAWN)
    ends = {free[0].ids[2], free[2].ids[7]}
    ended = generate(read(model, SOURCES), START, DRAWN, eos_ids=ends, use_cache=use_cache)
    for row, before in zip(ended, free, strict=True):
        cut = next((i + 1 for i, token in enumerate(before.ids) if token in ends), len(before.ids))
        assert row.ids == before.ids[:cut]


def test_rows_that_end_leave_both_caches(model: TinyPair, monkeypatch: pytest.MonkeyPatch) -> None:
    free = generate(read(model, SOURCES), START, GREEDY)
    end = free[0].ids[2]
    seen: list[tuple[int, int]] = []
    write = model.hidden

    def watched(prefix: Any, memory: Memory, *, cache: RecurrentCache) -> Any:
        state = cache.layer(0).state
        seen.append((len(memory.values), len(prefix if state is None else state[0])))
        return write(prefix, memory, cache=cache)

    monkeypatch.setattr(model, "hidden", watched)
    made = generate(read(model, SOURCES), START, GREEDY, eos_ids=[end])
    live = [sum(len(row.ids) > step for row in made) for step in range(15)]
    assert seen == [(rows, rows) for rows in live]
    assert live[-1] < live[0]


def test_samples_of_a_source_share_its_reading(model: TinyPair) -> None:
    sampling = Sampling(temperature=1.0, seed=5, max_new_tokens=10, samples=3)
    made = generate(read(model, SOURCES[:2]), START[:2], sampling)
    assert model.encoded == [2]
    assert model.written == [2] + [6] * 9  # and the first token of both is predicted once
    one = Sampling(temperature=1.0, seed=5, max_new_tokens=10)
    for row in made:
        alone = generate(read(model, [SOURCES[row.row // 3]]), [[0]], one, first_row=row.row)[0]
        assert alone.ids == row.ids
    assert len({tuple(row.ids) for row in made[:3]}) == 3


def test_samples_are_the_same_without_a_cache(model: TinyPair) -> None:
    sampling = Sampling(temperature=1.0, seed=5, max_new_tokens=10, samples=3)
    cached = generate(read(model, SOURCES), START, sampling, eos_ids=[3])
    uncached = generate(read(model, SOURCES), START, sampling, eos_ids=[3], use_cache=False)
    assert [row.ids for row in cached] == [row.ids for row in uncached]


def test_tokens_stream_as_they_are_drawn(model: TinyPair) -> None:
    whole = generate(read(model, SOURCES), START, DRAWN)
    drawn = steps(read(model, SOURCES), START, DRAWN)
    model.written.clear()
    first = [next(drawn) for _ in SOURCES]
    assert [(step.row, step.id) for step in first] == [(row.row, row.ids[0]) for row in whole]
    assert model.written == [len(SOURCES)]  # no step ahead of what was asked for
    pieces = list(stream(read(model, SOURCES), None, START, DRAWN))
    for row in whole:
        assert [piece.id for piece in pieces if piece.row == row.row] == row.ids


def test_forced_beginnings_of_one_length_are_gone_on_from(model: TinyPair) -> None:
    prefixes = [[0, 5, 6], [0, 7, 8], [0, 1, 1], [0, 2, 9]]
    made = generate(read(model, SOURCES), prefixes, GREEDY)
    for source, prefix, row in zip(SOURCES, prefixes, made, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([source]), torch.tensor([prefix + row.ids[:-1]]))[0, 2:]
        assert row.ids == logits.argmax(dim=-1).tolist()


def test_without_a_number_the_limit_grows_with_the_source() -> None:
    made = generate(read(TinyPair(), SOURCES), START, Sampling(seed=0))
    assert [len(row.ids) for row in made] == [59, 53, 71, 56]
    made = generate(read(TinyPair(max_seq_len=57), SOURCES), START, Sampling(seed=0))
    assert [len(row.ids) for row in made] == [56, 53, 56, 56]
    source, _ = padded([SOURCES[0]])
    made = generate(Conditioned(model := TinyPair(), model.encode(source)), [[0]], Sampling(seed=0))
    assert len(made[0].ids) == 59


@pytest.mark.parametrize("use_cache", [True, False], ids=["cached", "uncached"])
def test_past_max_seq_len_the_window_slides_beside_the_source(use_cache: bool) -> None:
    model = TinyPair(max_seq_len=6)
    sampling = Sampling(temperature=0, max_new_tokens=15, past="slide", samples=2)
    made = generate(read(model, SOURCES), START, sampling, use_cache=use_cache)
    for row in made:
        ids = [0]
        for _ in range(15):
            with torch.no_grad():
                logits = model(torch.tensor([SOURCES[row.row // 2]]), torch.tensor([ids[-6:]]))
            ids.append(int(logits[0, -1].argmax()))
        assert row.ids == ids[1:]


def test_dropout_is_off_and_the_mode_comes_back(model: TinyPair) -> None:
    reader = read(model.train(), SOURCES)
    generate(reader, START, GREEDY)
    assert model.training


@pytest.mark.parametrize(
    ("prefixes", "said"),
    [
        ([[0]] * 3, "3 prefixes for 4 sources; give one for each"),
        ([[0], [0, 1], [0], [0]], "prefixes of 1 and of 2 tokens; prefixes of one batch have one length"),
        ([[0], [0], [23], [0]], "prompt 2 has id 23, but the model's vocabulary is 0 to 22"),
        ([[]] * 4, "prompt 0 has no tokens"),
    ],
)
def test_prefixes_that_do_not_fit_are_an_error(model: TinyPair, prefixes: list[list[int]], said: str) -> None:
    with pytest.raises(GenerationError, match=said):
        steps(read(model, SOURCES), prefixes, GREEDY)


def test_more_than_max_seq_len_is_an_error_before_anything_is_written() -> None:
    model = TinyPair(max_seq_len=12)
    with pytest.raises(GenerationError, match="length 1 and 15 new tokens: more than max_seq_len 12 holds"):
        steps(read(model, SOURCES), START, GREEDY)
    assert model.written == []


TARGETS = [[3, 4, 5, 1], [], [7], [2, 2, 2, 2, 2, 2]]


@pytest.mark.parametrize("tokens", [4096, 7], ids=["one batch", "several"])
def test_targets_get_the_log_probabilities_they_have_alone(
    model: TinyPair, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wordloom.generate.scoring.BATCH_TOKENS", tokens)
    scored = score_targets(model, read(model, SOURCES).memory, TARGETS, start_id=0)
    for source, target, (logprobs, likeliest) in zip(SOURCES, TARGETS, scored, strict=True):
        assert len(logprobs) == len(target)
        if not target:
            continue
        with torch.no_grad():
            logits = model(torch.tensor([source]), torch.tensor([[0, *target[:-1]]]))[0]
        expected = logits.log_softmax(dim=-1).gather(1, torch.tensor(target)[:, None])[:, 0]
        assert logprobs == pytest.approx(expected.tolist(), abs=1e-5)
        assert likeliest == (logits.argmax(dim=-1).tolist() == target)
    assert sum(model.written) == 2 * len(TARGETS) - 1  # each target once, beside the three above


def test_what_greedy_writes_is_scored_as_greedy(model: TinyPair) -> None:
    made = generate(read(model, SOURCES), START, GREEDY)
    scored = score_targets(model, read(model, SOURCES).memory, [row.ids for row in made], start_id=0)
    for row, (logprobs, likeliest) in zip(made, scored, strict=True):
        assert likeliest
        assert logprobs == pytest.approx(row.logprobs, abs=1e-4)


@pytest.mark.parametrize(
    ("targets", "start", "said"),
    [
        ([[1]], 0, "1 targets for 4 sources"),
        ([[1], [2], [3], [23]], 0, "target 3 has id 23"),
        ([[1]] * 4, 23, "start_id has id 23"),
        ([[1]] * 3 + [[1] * 13], 0, "target 3 has 13 tokens: more than max_seq_len 12 holds"),
    ],
)
def test_targets_that_cannot_be_scored_are_an_error(targets: list[list[int]], start: int, said: str) -> None:
    model = TinyPair(max_seq_len=12)
    with pytest.raises(GenerationError, match=said):
        score_targets(model, read(model, SOURCES).memory, targets, start_id=start)


def sentence_models() -> dict[str, Any]:
    shape: dict[str, Any] = {"vocab_size": 23, "source_vocab_size": 19, "dim": 16, "n_layers": 2}
    recurrent = {"attention": "additive", "input_feeding": True, "bidirectional": True}
    return {
        "transformer": TransformerConfig(**shape, n_heads=2, max_seq_len=30, share_embeddings=False),
        "seq2seq": Seq2SeqConfig(**shape),
        "seq2seq-attention": Seq2SeqConfig(**shape, **recurrent),
    }


@pytest.mark.parametrize("name", sentence_models())
def test_every_family_writes_and_searches_in_a_batch_as_alone(name: str) -> None:
    model = build(sentence_models()[name], generator=torch.Generator().manual_seed(1)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0 if parameter.dim() > 1 else 1.0)
    sampling = Sampling(temperature=1.0, seed=3, max_new_tokens=9, samples=2)
    written = generate(read(model, SOURCES), START, sampling, eos_ids=[5, 6])
    anew = generate(read(model, SOURCES), START, sampling, eos_ids=[5, 6], use_cache=False)
    assert [row.ids for row in written] == [row.ids for row in anew]
    assert len({len(row.ids) for row in written}) > 1
    given: dict[str, Any] = {"n_best": 3, "eos_ids": [5, 6], "max_new_tokens": 9, "beams": 4}
    found = beam_search(read(model, SOURCES), START, **given)
    scored = score_targets(model, read(model, SOURCES).memory, [row[0].ids for row in found], start_id=0)
    for source, row, (logprobs, _) in zip(SOURCES, found, scored, strict=True):
        assert_same(beam_search(read(model, [source]), [[0]], **given), [row])
        assert row[0].logprob == pytest.approx(sum(logprobs), abs=1e-4)
