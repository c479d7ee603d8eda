"""The token of ``empty_id``: its embedding stays zero in training, also in copies of the model."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from wordloom.models import BertConfig, RobertaConfig, build
from wordloom.nn.head import head_loss
from wordloom.weights import load_model, save_model
from wordloom.weights.pretrained import start_from


def a_model(kind: type[BertConfig], seed: int, **settings: Any) -> tuple[Any, int]:
    """Return a small model of random sizes and its ``empty_id``."""
    rng = random.Random(seed)
    V, heads = rng.randrange(7, 40), rng.choice([1, 3])
    empty = rng.randrange(V)
    config = kind(
        vocab_size=V, max_seq_len=9, dim=heads * 5, n_layers=1, n_heads=heads, pooler=False,
        masked_lm_head=True, dropout=0.0, **{"empty_id": empty, **settings},
    )  # fmt: skip
    return build(config, generator=torch.Generator().manual_seed(seed)), empty


def train_steps(model: Any, optimizer: torch.optim.Optimizer, *, fused: bool = True) -> None:
    """Take two steps in which every token is read and predicted."""
    tokens = torch.arange(model.config.vocab_size)[:, None]  # [V, 1]
    for _ in range(2):
        optimizer.zero_grad()
        hidden = model.mlm_hidden(model.hidden(tokens)).flatten(0, 1)  # [V, D]
        targets = tokens.flatten()
        if fused:
            head_loss(model.lm_head, hidden, targets).backward()
        else:
            nn.functional.cross_entropy(model.lm_head(hidden), targets).backward()
        optimizer.step()


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", [BertConfig, RobertaConfig])
def test_it_stays_zero(kind: type[BertConfig], fused: bool, copied: bool) -> None:
    seed = random.randrange(2**32)
    model, empty = a_model(kind, seed, activation="gelu")
    if copied:
        model = copy.deepcopy(model)
    before = model.token_embedding.weight.detach().clone()
    bias = model.lm_head.bias[empty].item()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    train_steps(model, optimizer, fused=fused)
    moved = (model.token_embedding.weight - before).abs().amax(dim=1)
    assert not model.token_embedding.weight[empty].any(), seed
    assert not model.token_embedding.weight.grad[empty].any(), seed
    assert moved.count_nonzero() == len(moved) - 1, seed
    assert model.lm_head.bias[empty].item() != bias, seed  # the head predicts the token by its bias


def test_other_gradients_are_those_without_it() -> None:
    seed = random.randrange(2**32)
    model, empty = a_model(BertConfig, seed)
    plain, _ = a_model(BertConfig, seed, empty_id=None)
    plain.load_state_dict(model.state_dict())
    for each in (model, plain):
        train_steps(each, torch.optim.SGD(each.parameters(), lr=0.0))
    wanted = {name: parameter.grad.clone() for name, parameter in plain.named_parameters()}
    assert wanted["token_embedding.weight"][empty].any()
    wanted["token_embedding.weight"][empty] = 0.0
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.grad, wanted[name]), (seed, name)


def test_a_head_of_its_own_is_trained_whole() -> None:
    model, empty = a_model(BertConfig, random.randrange(2**32), tie_embeddings=False)
    train_steps(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert model.lm_head.weight.grad[empty].any()
    assert not model.token_embedding.weight[empty].any()


def test_it_is_zero_after_a_start_from_a_checkpoint_that_trained_it(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    stored, _ = a_model(BertConfig, seed, empty_id=None)
    save_model(stored, tmp_path / "stored")
    model, empty = a_model(BertConfig, seed)
    start_from(model, tmp_path / "stored")
    assert not model.token_embedding.weight[empty].any()
    save_model(model, tmp_path / "model")
    weight = load_model(tmp_path / "model").token_embedding.weight
    assert torch.equal(weight, model.token_embedding.weight)
