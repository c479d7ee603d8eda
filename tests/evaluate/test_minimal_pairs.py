"""Minimal pairs: against log-probabilities by hand, of causal models and of encoders."""

from __future__ import annotations

import math
import random
from itertools import product
from statistics import mean
from typing import Any

import pytest
import torch
from tests.evaluate.conftest import sharpened

from wordloom.data.rows.minimal_pairs import MinimalPair
from wordloom.errors import EvaluationError, NonFiniteError, TokenizerError
from wordloom.evaluate import acceptability
from wordloom.evaluate.score import share_interval
from wordloom.models import BertConfig, CBOWConfig, GPT2Config, GPTConfig, LlamaConfig, RNNConfig
from wordloom.text import Tokenizer

WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "cats",
    "dogs",
    "sit",
    "sits",
    "ran",
    "on",
    "mat",
    "mats",
    "and",
    "nobody",
    "who",
    "likes",
    "there",
]
CAUSAL = {
    "gpt": GPTConfig, "gpt2": GPT2Config, "llama": LlamaConfig,
    **{cell: lambda cell=cell, **shape: RNNConfig(
        vocab_size=shape["vocab_size"], dim=13, hidden_dim=11, n_layers=1, cell=cell
    ) for cell in ("rnn_tanh", "lstm", "gru")},
    "cbow": lambda **shape: CBOWConfig(vocab_size=shape["vocab_size"], dim=13, window=5),
}  # fmt: skip


def pairs_of(rng: random.Random, n: int, longest: int = 9) -> list[MinimalPair]:
    """Pairs whose sentences have one to ``longest`` words, of one to four paradigms in two phenomena."""

    def sentence() -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(1, longest)))

    return [
        MinimalPair(sentence(), sentence(), f"p{(k := rng.randrange(4))}", f"f{k % 2}", "pairs.jsonl", i)
        for i in range(1, n + 1)
    ]


def tokenizer_of(kind: str) -> Tokenizer:
    size = {"vocab_size": 280} if kind == "bpe" else {}
    return Tokenizer.train([" ".join(WORDS) + "."], kind=kind, **size)


@torch.no_grad()
def log_likelihood(model: Any, ids: list[int]) -> float:
    """Each token after the first, one at a time."""
    total = 0.0
    for i in range(1, len(ids)):
        total += float(model(torch.tensor([ids[:i]]))[0, -1].double().log_softmax(-1)[ids[i]])
    return total


@torch.no_grad()
def pseudo_log_likelihood(model: Any, ids: list[int], mask: int) -> float:
    total = 0.0
    for i in range(1, len(ids) - 1):
        masked = torch.tensor([[*ids[:i], mask, *ids[i + 1 :]]])
        state = model.hidden(masked)[0, i]
        total += float(model.lm_head(model.mlm_hidden(state[None]))[0].double().log_softmax(-1)[ids[i]])
    return total


def check(scores: Any, pairs: list[MinimalPair], right: list[bool]) -> None:
    of: dict[str, list[bool]] = {}
    for pair, is_right in zip(pairs, right, strict=True):
        of.setdefault(pair.paradigm, []).append(is_right)
    assert scores.counts["right"] == sum(right)
    for paradigm, answers in of.items():
        assert scores[paradigm].value == mean(answers)
        assert scores[paradigm].interval == share_interval(sum(answers), len(answers))
    assert scores["accuracy"].value == pytest.approx(mean(mean(each) for each in of.values()))
    for phenomenon in {pair.phenomenon for pair in pairs}:
        members = {pair.paradigm for pair in pairs if pair.phenomenon == phenomenon}
        assert scores[phenomenon].value == pytest.approx(mean(mean(of[each]) for each in members))


@pytest.mark.parametrize(("family", "kind"), [*product(CAUSAL, ("byte", "bpe"))])
def test_causal_models_by_hand(family: str, kind: str, rng: random.Random) -> None:
    tokenizer = tokenizer_of(kind)
    shape = {"vocab_size": tokenizer.vocab_size, "max_seq_len": 96, "dim": 20, "n_layers": 1, "n_heads": 2}
    model = sharpened(CAUSAL[family](**shape), seed=rng.randrange(1 << 20))
    pairs, seen = pairs_of(rng, 30), []
    scores = acceptability(model, tokenizer, pairs, batch_size=rng.choice([None, 1, 7]), progress=seen.append)
    right = []
    for pair in pairs:
        good, bad = (
            log_likelihood(model, [tokenizer.eos_id, *tokenizer.encode_ids(text)])
            for text in (pair.good, pair.bad)
        )
        right.append(good > bad if pair.good != pair.bad else False)
    assert seen == right
    check(scores, pairs, right)
    assert "|by:likelihood|start:eos|dtype:fp32|ci:30-pairs|" in scores["accuracy"].signature


def test_encoders_by_hand(rng: random.Random) -> None:
    tokenizer = Tokenizer.train([" ".join(WORDS)] * 3, kind="wordpiece", vocab_size=80)
    shape = {"max_seq_len": 40, "dim": 20, "n_layers": 1, "n_heads": 2, "hidden_dim": 24}
    config = BertConfig(vocab_size=tokenizer.vocab_size, masked_lm_head=True, **shape)
    model = sharpened(config, seed=rng.randrange(1 << 20))
    pairs = pairs_of(rng, 25, longest=5)
    scores = acceptability(model, tokenizer, pairs, batch_size=rng.choice([None, 1, 5]))
    marks = (tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]"))
    right = []
    for pair in pairs:
        good, bad = (
            pseudo_log_likelihood(
                model, [marks[0], *tokenizer.encode_batch([text])[0].tolist(), marks[1]], tokenizer.mask_id
            )
            for text in (pair.good, pair.bad)
        )
        right.append(good > bad if pair.good != pair.bad else False)
    check(scores, pairs, right)
    assert "|by:pseudo-likelihood|start:marks|" in scores["accuracy"].signature
    long = MinimalPair("dog " * 60, "cat", "", "", "pairs.jsonl", 3)
    with pytest.raises(
        EvaluationError, match=r"pairs\.jsonl:3: a sentence has \d+ tokens, and the model reads 38"
    ):
        acceptability(model, tokenizer, [long])


def test_a_sentence_longer_than_the_window_is_read_in_windows(rng: random.Random) -> None:
    """Each token has at least half a window before it."""
    tokenizer, window = tokenizer_of("byte"), 8
    config = LlamaConfig(
        vocab_size=tokenizer.vocab_size, max_seq_len=window, dim=20, n_layers=1, n_heads=2, hidden_dim=24
    )
    model, pairs = sharpened(config, seed=rng.randrange(1 << 20)), pairs_of(rng, 21)

    def total(text: str) -> float:
        ids = [tokenizer.eos_id, *tokenizer.encode_ids(text)]
        nats = 0.0
        for i in range(1, len(ids)):
            begin = 0 if i <= window else -(-(i - window) // 4) * 4
            with torch.no_grad():
                row = model(torch.tensor([ids[begin:i]]))[0, -1].double().log_softmax(-1)
            nats -= float(row[ids[i]])
        return nats

    seen: list[bool] = []
    acceptability(model, tokenizer, pairs, progress=seen.append)
    assert seen == [pair.good != pair.bad and total(pair.good) < total(pair.bad) for pair in pairs]


def test_equal_sentences_are_wrong_and_counted(llama, byte_tokenizer) -> None:
    pairs = [MinimalPair("the cat", "the cat", "", "", "pairs.jsonl", 1)]
    scores = acceptability(llama, byte_tokenizer, pairs)
    assert [score.name for score in scores.scores] == ["accuracy"]
    assert (scores["accuracy"].value, scores["accuracy"].interval, scores.counts["ties"]) == (0.0, None, 1)
    assert scores.notes == ("1 pair has two equally likely sentences, which counts as wrong",)


def test_the_interval_is_that_of_the_paradigms(llama, byte_tokenizer, rng: random.Random) -> None:
    """Two paradigms that are right and wrong for certain have a mean without doubt."""
    good, bad = "the cat sat", "zq"
    if acceptability(llama, byte_tokenizer, [MinimalPair(good, bad, "", "", "", 1)])["accuracy"].value == 0:
        good, bad = bad, good
    sure = [MinimalPair(good, bad, "sure", "", "", i) for i in range(20)]
    never = [MinimalPair(bad, good, "never", "", "", i) for i in range(20)]
    scores = acceptability(llama, byte_tokenizer, sure + never)
    assert scores["accuracy"].value == 0.5
    assert scores["accuracy"].interval == (0.5, 0.5)
    mixed = acceptability(
        llama, byte_tokenizer, sure[:10] + [each._replace(paradigm="sure") for each in never[:10]]
    )
    half = 1.959963984540054 * math.sqrt(0.25 / 19)
    assert mixed["accuracy"].interval == pytest.approx((0.5 - half, 0.5 + half))
    few = acceptability(llama, byte_tokenizer, sure[:12] + [each._replace(phenomenon="n") for each in never])
    assert few["never"].interval == share_interval(0, 20)  # of a share, also few pairs have one
    assert few["sure"].interval == share_interval(12, 12)
    assert few["n"].interval is not None
    other = [each._replace(phenomenon="few") for each in sure[:12]]
    assert acceptability(llama, byte_tokenizer, [*other, *never])["few"].interval is None


def test_refusals(llama, byte_tokenizer, char_tokenizer, char_model) -> None:
    with pytest.raises(EvaluationError, match="no pair given; BLiMP is the data set 'blimp'"):
        acceptability(llama, byte_tokenizer, [])
    with pytest.raises(EvaluationError, match="pairs:2: 't' has no token with another before it"):
        acceptability(char_model, char_tokenizer, [MinimalPair("the", "t", "", "", "pairs", 2)])
    with pytest.raises(TokenizerError, match="pairs:2: "):
        acceptability(char_model, char_tokenizer, [MinimalPair("the", "xyz!", "", "", "pairs", 2)])
    damaged = sharpened(llama.config)
    with torch.no_grad():
        damaged.lm_head.weight[3] = math.nan
    with pytest.raises(NonFiniteError):
        acceptability(damaged, byte_tokenizer, [MinimalPair("the", "cat", "", "", "pairs", 2)])
