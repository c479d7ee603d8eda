"""The pure functions against the reference library's, the draws against their distribution."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from wordloom.errors import GenerationError
from wordloom.generate.decoder import next_logits
from wordloom.generate.engine import generate
from wordloom.generate.sampling import (
    Sampling,
    draw,
    filter_logits,
    forbid_repeated_ngrams,
    greedy,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    next_ids,
    penalise_repetition,
    row_generator,
    weighed,
)
from wordloom.models import LlamaConfig, build


def random_logits(B: int = 5, V: int = 200, seed: int = 0) -> torch.Tensor:
    return torch.randn(B, V, generator=torch.Generator().manual_seed(seed)) * 4


def test_penalties_of_what_was_written_and_biases() -> None:
    """OpenAI's formula: logit - count * frequency_penalty - (count > 0) * presence_penalty."""
    logits, sampling = random_logits(2, 7), Sampling(presence_penalty=0.5, frequency_penalty=-1.25)
    texts = [[1, 2, 3, 3, 6], [0, 0, 4]]
    found = weighed(logits, texts, sampling, [2, 3])
    expected = logits.clone()
    expected[0, 3] -= 0.5 - 1.25 * 2
    expected[0, 6] -= 0.5 - 1.25
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    biased = weighed(logits, texts, Sampling(logit_bias=((5, -100.0), (99, 3.0), (0, 2.0))), [0, 0])
    assert torch.equal(biased[:, [5, 0]], logits[:, [5, 0]] + torch.tensor([-100.0, 2.0]))
    assert torch.equal(biased[:, [1, 2, 3, 4, 6]], logits[:, [1, 2, 3, 4, 6]])
    for wrong in (
        {"presence_penalty": math.nan},
        {"presence_penalty": -1e39},
        {"frequency_penalty": 10**400},
        {"logit_bias": ((-1, 1.0),)},
        {"logit_bias": ((1, math.inf),)},
        {"logit_bias": ((3, 1e39),)},
        {"logit_bias": (3, 1.0)},
        {"logit_bias": ((3, 1.0, 2.0),)},
        {"logit_bias": 3},
    ):
        with pytest.raises(GenerationError, match=f"{next(iter(wrong))} (is|takes) a|an id of") as error:
            Sampling(**wrong)
        assert "\n" not in str(error.value)


def test_biases_are_a_dict_or_pairs() -> None:
    pairs = Sampling(logit_bias=((3, 1.0), (4, 2.0)))
    for biases in ({3: 1.0, 4: 2.0}, [[3, 1.0], [4, 2.0]], iter([(3, 1.0), (4, 2.0)])):
        sampling = Sampling(logit_bias=biases)  # type: ignore[arg-type]
        assert (sampling, hash(sampling)) == (pairs, hash(pairs))
    assert Sampling(logit_bias=None) == Sampling()  # type: ignore[arg-type]


@pytest.mark.parametrize("penalty", [1e-40, 1.0, 1e40])
@pytest.mark.parametrize("temperature", [0.0, 1e-40, 1.0])
def test_the_largest_biases_and_penalties_draw_a_token(penalty: float, temperature: float) -> None:
    sampling = Sampling(
        logit_bias={3: 1e30, 4: -1e30}, presence_penalty=-1e30, frequency_penalty=-1e30,  # type: ignore[arg-type]
        repetition_penalty=penalty, temperature=temperature,
    )  # fmt: skip
    for text in ([3], [3, 3, 5], [6, 4]):
        drawn = int(next_ids(random_logits(1, 7), [text], sampling, [row_generator(0, 0)], [1]))
        assert 0 <= drawn < 7


@pytest.mark.parametrize("k", [1, 3, 50, 200, 1000])
def test_top_k_is_the_reference_librarys(k: int) -> None:
    logits = random_logits()
    theirs = TopKLogitsWarper(top_k=k)(None, logits)
    torch.testing.assert_close(keep_top_k(logits, k), theirs, rtol=0, atol=0)


@pytest.mark.parametrize("p", [0.01, 0.3, 0.9, 0.999])
def test_top_p_is_the_reference_librarys(p: float) -> None:
    logits = random_logits()
    theirs = TopPLogitsWarper(top_p=p)(None, logits)
    torch.testing.assert_close(keep_top_p(logits, p), theirs, rtol=0, atol=0)


@pytest.mark.parametrize("share", [0.01, 0.2, 1.0])
def test_min_p_is_the_reference_librarys(share: float) -> None:
    logits = random_logits()
    theirs = MinPLogitsWarper(min_p=share)(None, logits)
    torch.testing.assert_close(keep_min_p(logits, share), theirs, rtol=0, atol=0)


@pytest.mark.parametrize("penalty", [0.7, 1.0, 1.3])
def test_repetition_penalty_is_the_reference_librarys(penalty: float) -> None:
    logits = random_logits()
    history = torch.randint(0, 200, (5, 30), generator=torch.Generator().manual_seed(1))
    theirs = RepetitionPenaltyLogitsProcessor(penalty)(history, logits.clone())
    ours = penalise_repetition(logits, history.tolist(), penalty)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_no_repeat_ngram_is_the_reference_librarys(size: int) -> None:
    logits = random_logits(V=12)
    for length in (1, 2, 4, 40):
        history = torch.randint(0, 3, (5, length), generator=torch.Generator().manual_seed(length))
        theirs = NoRepeatNGramLogitsProcessor(size)(history, logits.clone())
        ours = forbid_repeated_ngrams(logits, history.tolist(), size)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_no_repeat_ngram_that_leaves_nothing_is_an_error() -> None:
    with pytest.raises(GenerationError, match="no_repeat_ngram 1 forbids every token"):
        forbid_repeated_ngrams(torch.zeros(1, 3), [[0, 1, 2]], 1)


def test_filters_work_in_the_reference_librarys_order() -> None:
    logits = random_logits(V=500)
    ours = filter_logits(logits, Sampling(temperature=1.7, top_k=40, top_p=0.9, min_p=0.02))
    theirs = logits
    for warper in (
        TemperatureLogitsWarper(1.7),
        TopKLogitsWarper(40),
        TopPLogitsWarper(0.9),
        MinPLogitsWarper(0.02),
    ):
        theirs = warper(None, theirs)
    assert torch.equal(ours == -torch.inf, theirs == -torch.inf)
    torch.testing.assert_close(ours.softmax(-1), theirs.softmax(-1), rtol=1e-6, atol=1e-7)


def test_a_tiny_temperature_is_greedy_and_not_nan() -> None:
    logits = random_logits()
    probabilities = filter_logits(logits, Sampling(temperature=1e-38, top_k=None)).softmax(-1)
    assert torch.equal(probabilities.argmax(-1), greedy(logits))
    assert torch.equal(probabilities.sum(-1), torch.ones(5))


above_0 = st.floats(0, exclude_min=True, allow_infinity=False) | st.floats(-323, 308).map(lambda x: 10.0**x)
eighths = st.lists(st.integers(-240, 240).map(lambda n: n / 8), min_size=2, max_size=20)


@settings(max_examples=100, deadline=None)
@given(row=eighths, temperature=above_0, banned=st.booleans())
def test_every_temperature_draws_from_its_distribution(
    row: list[float], temperature: float, banned: bool
) -> None:
    """Against float64, which holds every temperature; -inf stands for what another filter took."""
    logits = torch.tensor([[*row, -torch.inf] if banned else row])
    ours = filter_logits(logits, Sampling(temperature=temperature, top_k=None)).softmax(-1)
    weights = [math.exp((x - max(row)) / temperature) for x in row]
    expected = [w / sum(weights) for w in weights] + [0.0] * banned
    assert ours[0].tolist() == pytest.approx(expected, abs=1e-5)


@settings(max_examples=100, deadline=None)
@given(row=eighths, penalty=above_0.filter(lambda p: not 1e-30 < p < 1e30), seen=st.sets(st.integers(0, 19)))
def test_every_penalty_orders_logits_as_exact_numbers_do(
    row: list[float], penalty: float, seen: set[int]
) -> None:
    p = Fraction(penalty)
    exact = [
        Fraction(x) if i not in seen else Fraction(x) * p if x < 0 else Fraction(x) / p
        for i, x in enumerate(row)
    ]
    sampling = Sampling(temperature=0, repetition_penalty=penalty)
    assert int(next_ids(torch.tensor([row]), [sorted(seen)], sampling, [], [0])) == exact.index(max(exact))


@settings(max_examples=100, deadline=None)
@given(
    row=eighths,
    temperature=above_0,
    penalty=above_0,
    ngram=st.integers(0, 2),
    history=st.lists(st.just(0), max_size=3),
)
def test_every_accepted_setting_draws_a_token(
    row: list[float], temperature: float, penalty: float, ngram: int, history: list[int]
) -> None:
    sampling = Sampling(temperature=temperature, repetition_penalty=penalty, no_repeat_ngram=ngram)
    drawn = int(next_ids(torch.tensor([row]), [history], sampling, [row_generator(0, 0)], [0]))
    assert 0 <= drawn < len(row)
    assert not (drawn == 0 and 0 < ngram <= len(history))


def test_ties_at_temperature_0_take_the_lowest_id() -> None:
    logits = torch.zeros(3, 5000)
    logits[1, [17, 4000]] = 1.0
    logits[2, [4999, 4998]] = 2.0
    assert greedy(logits).tolist() == [0, 17, 4998]


def test_a_token_without_probability_is_never_drawn() -> None:
    class Edge:
        def __init__(self, value: float) -> None:
            self.value = value

        def random(self) -> float:
            return self.value

    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]])
    below_one = np.nextafter(1.0, 0.0)
    drawn = [int(draw(logits, [Edge(u)])) for u in (0.0, 0.4999, 0.5, below_one)]  # type: ignore[list-item]
    assert drawn == [1, 1, 3, 3]


def test_rows_draw_from_streams_of_their_own() -> None:
    first = [row_generator(1, row).random() for row in range(4)]
    assert first == [row_generator(1, row).random() for row in range(4)]
    assert len({*first, *(row_generator(2, row).random() for row in range(4))}) == 8


def chi_square_p(counts: torch.Tensor, expected: torch.Tensor) -> float:
    """The chance of counts this far from ``expected`` (probabilities); rare tokens are pooled."""
    n = counts.sum()
    rare = expected * n < 5
    pooled_counts = torch.cat([counts[~rare], counts[rare].sum()[None]]).double()
    pooled = torch.cat([expected[~rare], expected[rare].sum()[None]]).double() * n
    keep = pooled > 0
    statistic = ((pooled_counts - pooled)[keep] ** 2 / pooled[keep]).sum()
    freedom = torch.tensor((int(keep.sum()) - 1) / 2.0, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2))


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1.0},
        {"temperature": 0.5},
        {"temperature": 1.5},
        {"temperature": 0.9, "top_k": 7},
        {"temperature": 0.9, "top_p": 0.7},
        {"temperature": 0.9, "min_p": 0.3},
        {"temperature": 1.2, "top_k": 20, "top_p": 0.9, "min_p": 0.05},
    ],
    ids=str,
)
def test_sampled_frequencies_match_the_distribution(settings: dict[str, float]) -> None:
    """4,000 rows of one step on a real model: chi-square against softmax(logits / T) after the filters."""
    model = build(
        LlamaConfig(vocab_size=30, max_seq_len=8, dim=16, n_layers=1, n_heads=2),
        generator=torch.Generator().manual_seed(0),
    )
    with torch.no_grad():
        model.lm_head.weight.mul_(15)
    prompt = [3, 1, 4]
    settings = {"top_k": 0, **settings}
    drawn = generate(model, [prompt], Sampling(max_new_tokens=1, samples=4000, seed=7, **settings))  # type: ignore[arg-type]
    counts = torch.bincount(torch.tensor([g.ids[0] for g in drawn]), minlength=30)

    with torch.no_grad():
        scores = next_logits(model, [prompt], device=torch.device("cpu"))
    scores = TemperatureLogitsWarper(settings["temperature"])(None, scores)
    if settings["top_k"]:
        scores = TopKLogitsWarper(int(settings["top_k"]))(None, scores)
    if "top_p" in settings:
        scores = TopPLogitsWarper(settings["top_p"])(None, scores)
    if "min_p" in settings:
        scores = MinPLogitsWarper(settings["min_p"])(None, scores)
    expected = scores.softmax(-1)[0]
    assert counts[expected == 0].sum() == 0
    assert chi_square_p(counts, expected) > 1e-3
    # the same counts reject a temperature a third off: the test can tell
    wrong = (scores * 1.35).softmax(-1)[0]
    assert chi_square_p(counts, wrong) < 1e-6


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"temperature": -1.0}, "temperature is a number from 0"),
        ({"temperature": float("nan")}, "temperature is a number"),
        ({"top_k": -1}, "top_k is a whole number of at least 0, not -1"),
        ({"top_p": 0.0}, "top_p is a number above 0"),
        ({"top_p": 1.5}, "top_p is a number above 0 and up to 1"),
        ({"min_p": 2.0}, "min_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is a number above 0"),
        ({"no_repeat_ngram": -2}, "no_repeat_ngram"),
        ({"max_new_tokens": 0}, "max_new_tokens is a whole number of at least 1, not 0"),
        ({"samples": 0}, "samples"),
        ({"seed": -1}, "seed"),
        ({"stop": ("",)}, "stop takes strings of at least one character"),
        ({"stop": 1.5}, "stop takes a string or a list of strings, not 1.5"),
        ({"stop_ids": (-1,)}, "stop_ids"),
        ({"past": "slied"}, "did you mean 'slide'"),
    ],
    ids=str,
)
def test_a_value_out_of_range_is_one_clear_line(given: dict[str, object], said: str) -> None:
    with pytest.raises(GenerationError, match=said) as error:
        Sampling(**given)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


def test_one_stop_string_or_a_list_is_taken() -> None:
    assert Sampling(stop="end").stop == ("end",)  # type: ignore[arg-type]
    assert Sampling(stop=["a", "b"], stop_ids=[3]).stop == ("a", "b")  # type: ignore[arg-type]
    assert Sampling(stop=None, stop_ids=None) == Sampling()  # type: ignore[arg-type]
