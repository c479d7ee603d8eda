"""Scores of heads: 1 for a model built to follow a pattern, and the plain mean for any model."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tests.inspect.layers.random_models import random_model

from wordloom.errors import ConfigError, WordloomError
from wordloom.inspect import attention_map, head_scores
from wordloom.models import GPT2Config, RNNConfig, build


def induction_model(V: int, L: int) -> Any:
    """Build two layers that find the token after the earlier occurrence (Elhage et al. 2021).

    The vector of a token has four parts: itself, its position, the token before it, and nothing.  The head
    of layer 0 attends to the position before and copies the token into the third part.  The head of layer 1
    compares its own token with the third part of each key, except the first, which has no token before it.
    """
    n = 2 * L
    dim = 2 * (V + n)
    config = GPT2Config(vocab_size=V, max_seq_len=n, dim=dim, n_layers=2, n_heads=1, hidden_dim=1)
    model = build(config, generator=torch.Generator().manual_seed(0)).eval()
    token, place, before = slice(0, V), slice(V, V + n), slice(V + n, 2 * V + n)
    strong = 300.0
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for block in model.blocks:
            block.attention_norm.weight.fill_(1.0)
            block.ffn_norm.weight.fill_(1.0)
        model.final_norm.weight.fill_(1.0)
        model.token_embedding.weight[:, token] = torch.eye(V)
        model.position_embedding.weight[:, place] = torch.eye(n)
        previous, same = (block.attention for block in model.blocks)
        shift = torch.zeros(n, n)
        shift[torch.arange(n - 1), torch.arange(1, n)] = 1.0  # the query at t asks for position t - 1
        previous.q_proj.weight[place, place] = strong * shift
        previous.k_proj.weight[place, place] = torch.eye(n)
        previous.v_proj.weight[token, token] = torch.eye(V)
        previous.o_proj.weight[before, token] = torch.eye(V)
        same.q_proj.weight[token, token] = strong * torch.eye(V)
        same.k_proj.weight[token, before] = torch.eye(V)
        same.q_proj.bias[V] = strong
        same.k_proj.weight[V, V] = -1.0  # of position 0
    return model


def test_an_induction_model_scores_1() -> None:
    """With tokens that do not repeat in a half; a repeated one has several earlier occurrences."""
    L = 7
    model = induction_model(400, L)
    for seed in range(50):
        half = torch.randint(400, (1, L), generator=torch.Generator().manual_seed(seed))
        if len(set(half[0].tolist())) == L:
            break
    scores = head_scores(model, length=L, rows=1, seed=seed).scores
    assert float(scores["previous"][0, 0]) == pytest.approx(1, abs=1e-3)
    assert float(scores["induction"][1, 0]) == pytest.approx(1, abs=1e-3)
    assert float(scores["induction"][0, 0]) < 0.01
    assert float(scores["duplicate"][1, 0]) < 0.01


def test_uniform_attention_scores_the_mean_of_one_over_the_number_of_keys(rng: random.Random) -> None:
    model = random_model(rng.choice(["gpt", "gpt2", "llama"]), rng)
    with torch.no_grad():
        for block in model.blocks:
            block.attention.q_proj.weight.zero_()
            if block.attention.q_proj.bias is not None:
                block.attention.q_proj.bias.zero_()
    L = rng.randint(2, 11)
    scores = head_scores(model, length=L, rows=rng.randint(1, 3)).scores
    every = sum(1 / (t + 1) for t in range(1, 2 * L)) / (2 * L - 1)
    second = sum(1 / (t + 1) for t in range(L, 2 * L)) / L
    for name, wanted in (
        ("previous", every), ("first", every), ("itself", every),
        ("induction", second), ("duplicate", second),
    ):  # fmt: skip
        torch.testing.assert_close(scores[name], torch.full_like(scores[name], wanted), rtol=1e-4, atol=1e-5)


def test_scores_are_means_of_the_attention_map(rng: random.Random) -> None:
    model = random_model(rng.choice(["gpt", "gpt2", "llama"]), rng)
    L, seed = rng.randint(2, 11), rng.randrange(1000)
    scores = head_scores(model, length=L, rows=1, seed=seed).scores
    draw = torch.Generator().manual_seed(seed)
    half = torch.randint(model.config.vocab_size, (1, L), generator=draw)[0].tolist()
    weights = attention_map(model, half + half).weights  # [layers, H, T, T]
    both = range(L, 2 * L)
    wanted = {
        "previous": [weights[:, :, t, t - 1] for t in range(1, 2 * L)],
        "induction": [weights[:, :, t, t - L + 1] for t in both],
        "duplicate": [weights[:, :, t, t - L] for t in both],
        "first": [weights[:, :, t, 0] for t in range(1, 2 * L)],
        "itself": [weights[:, :, t, t] for t in range(1, 2 * L)],
    }
    for name, parts in wanted.items():
        torch.testing.assert_close(scores[name], torch.stack(parts).mean(0), rtol=1e-4, atol=1e-5)


def test_encoders_have_scores_and_recurrent_models_none(rng: random.Random) -> None:
    model = random_model("bert", rng)
    assert head_scores(model, length=5).scores["itself"].shape == (len(model.blocks), model.config.n_heads)
    with pytest.raises(WordloomError, match="not for type RNN"):
        head_scores(build(RNNConfig(vocab_size=9, dim=4), generator=torch.Generator().manual_seed(0)))
    with pytest.raises(ConfigError, match="length 12 does not fit the model; allowed: 2 to 11"):
        head_scores(model, length=12)
