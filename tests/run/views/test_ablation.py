"""Ablation: a head at zero is its columns of o_proj at zero, and bits are those of the evaluation."""

from __future__ import annotations

import copy
import math
import random

import pytest
import torch
from tests.inspect.layers.random_models import random_model

from wordloom.errors import ConfigError, EvaluationError, WordloomError
from wordloom.evaluate import perplexity
from wordloom.models import RNNConfig, build
from wordloom.run.views.ablation import ablation, n_parts
from wordloom.text import Tokenizer

TEXTS = ["the mole dug a hole. ", "a dog", "über", "x" * 61]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(TEXTS, kind="byte")


@pytest.mark.parametrize("family", ["gpt", "gpt2", "llama"])
def test_zero_is_a_head_without_its_columns(family: str, tokenizer: Tokenizer, rng: random.Random) -> None:
    model = random_model(family, rng, vocab_size=tokenizer.vocab_size)
    calls: list[int] = []
    window = rng.randint(2, 23)
    seen = ablation(model, tokenizer, TEXTS, window=window, progress=calls.append)
    settings = {"window": window, "stride": window}

    def bits(other: object) -> float:
        scores = perplexity(other, tokenizer, TEXTS, **settings).scores
        return next(score.value for score in scores if score.name == "bits_per_byte")

    assert seen.unit == "byte"
    assert seen.bits == pytest.approx(bits(model), rel=1e-4)
    assert len(calls) == n_parts(model) == seen.heads.numel() + len(seen.feed_forwards)
    layer, head = rng.randrange(model.config.n_layers), rng.randrange(model.config.n_heads)
    other = copy.deepcopy(model)
    attention = other.blocks[layer].attention
    with torch.no_grad():
        attention.o_proj.weight[:, head * attention.head_dim : (head + 1) * attention.head_dim] = 0.0
    assert float(seen.heads[layer, head]) == pytest.approx(bits(other) - seen.bits, abs=1e-3)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.blocks[layer].feed_forward.down_proj.weight.zero_()
    assert float(seen.feed_forwards[layer]) == pytest.approx(bits(other) - seen.bits, abs=1e-3)


def test_the_mean_of_a_constant_head_changes_nothing(tokenizer: Tokenizer, rng: random.Random) -> None:
    """Its values do not depend on the text: a bias of v_proj alone."""
    model = random_model("gpt2", rng, vocab_size=tokenizer.vocab_size)
    attention = model.blocks[0].attention
    with torch.no_grad():
        attention.v_proj.weight.zero_()
        attention.v_proj.bias.normal_()
    mean = ablation(model, tokenizer, TEXTS, value="mean")
    zero = ablation(model, tokenizer, TEXTS, value="zero")
    assert float(mean.heads[0].abs().max()) < 1e-4
    assert float(zero.heads[0].abs().max()) > 1e-4


def test_it_reads_as_many_tokens_as_asked(tokenizer: Tokenizer, rng: random.Random) -> None:
    model = random_model("llama", rng, vocab_size=tokenizer.vocab_size)
    seen = ablation(model, tokenizer, iter(TEXTS), tokens=7)
    assert seen.tokens == 7
    ids = tokenizer.encode(TEXTS[0]).ids
    start = [tokenizer.eos_id] if tokenizer.eos_id is not None else []
    row = torch.tensor([[*start, *ids][:8]])
    with torch.no_grad():
        shares = model(row[:, :-1]).log_softmax(-1)[0]
    nats = -float(shares[range(7), row[0, 1:]].sum())
    assert seen.bits == pytest.approx(nats / math.log(2) / 7, rel=1e-4)  # 7 tokens are 7 bytes


def test_mistakes_get_one_line(tokenizer: Tokenizer, rng: random.Random) -> None:
    model = random_model("llama", rng, vocab_size=tokenizer.vocab_size)
    with pytest.raises(ConfigError, match="unknown value 'noise'"):
        ablation(model, tokenizer, TEXTS, value="noise")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="window 24 does not fit the model; allowed: 1 to 23"):
        ablation(model, tokenizer, TEXTS, window=24)
    with pytest.raises(EvaluationError, match="no token to predict"):
        ablation(model, tokenizer, [""])
    rnn = build(RNNConfig(vocab_size=tokenizer.vocab_size, dim=4), generator=torch.Generator().manual_seed(0))
    with pytest.raises(WordloomError, match="not for type RNN"):
        ablation(rnn, tokenizer, TEXTS)
