"""The order-free predictor beside its definition: a mean over each bag, computed token by token."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from wordloom.errors import ConfigError
from wordloom.models import CBOW, CBOWConfig, build


def random_model(rng: random.Random) -> CBOW:
    config = CBOWConfig(
        vocab_size=rng.randint(3, 31),
        dim=rng.choice([1, 2, 7, 13, 16]),
        n_layers=rng.randint(0, 3) or 1,
        hidden_dim=rng.choice([None, 1, 5, 12]),
        window=rng.randint(1, 20),
        tie_embeddings=rng.random() < 0.5,
    )
    model = build(config, generator=torch.Generator().manual_seed(rng.randrange(2**31)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.3)
    return model.eval()


def slow_row(model: CBOW, tokens: Tensor, texts: list[int]) -> list[Tensor]:
    """Return the logits after each token of one row; ``texts`` has the number of each token's text."""
    found = []
    for t in range(len(tokens)):
        bag = [s for s in range(t + 1) if texts[s] == texts[t]][-model.config.window :]
        x = torch.stack([model.token_embedding.weight[tokens[s]] for s in bag]).mean(0)
        for block in model.blocks:
            x = x + block.feed_forward(block.ffn_norm(x))
        found.append(model.lm_head(model.final_norm(x)))
    return found


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("attempt", range(12))
@torch.no_grad()
def test_each_bag_is_a_mean_over_the_last_tokens_of_its_text(attempt: int, rng: random.Random) -> None:
    model = random_model(rng)
    B, T = rng.choice([(1, 1), (1, 23), (3, 17), (5, 2)])
    tokens = torch.randint(0, model.config.vocab_size, (B, T))
    texts = (torch.rand(B, T) < 0.2).long().cumsum(1)
    positions = torch.tensor([[row[:t].count(row[t]) for t in range(T)] for row in texts.tolist()])
    expected = torch.stack(
        [torch.stack(slow_row(model, row, of.tolist())) for row, of in zip(tokens, texts, strict=True)]
    )
    close(model(tokens, documents=texts), expected)
    close(model(tokens, documents=texts, positions=positions), expected)


@pytest.mark.parametrize("attempt", range(12))
@torch.no_grad()
def test_padding_anywhere_and_any_pieces_through_a_cache(attempt: int, rng: random.Random) -> None:
    model, B = random_model(rng), rng.randint(1, 4)
    read: list[list[int]] = [[] for _ in range(B)]
    cache = model.new_cache(B, 1)
    for _ in range(rng.randint(1, 6)):
        T = rng.randint(1, 9)
        new = torch.randint(0, model.config.vocab_size, (B, T))
        attend = None if rng.random() < 0.4 else torch.rand(B, T) < 0.6
        logits = model(new, attend=attend, cache=cache)
        for row in range(B):
            for t in range(T):
                if attend is None or attend[row, t]:
                    read[row].append(int(new[row, t]))
                    expected = slow_row(model, torch.tensor(read[row]), [0] * len(read[row]))[-1]
                    close(logits[row, t], expected)
    assert cache.lengths.tolist() == [len(row) for row in read]


@torch.no_grad()
def test_the_order_of_a_bag_changes_nothing_and_older_tokens_are_not_seen(rng: random.Random) -> None:
    model = random_model(rng)
    window, V = model.config.window, model.config.vocab_size
    tokens = torch.randint(0, V, (1, window + 5))
    last = model(tokens)[0, -1]
    bag = tokens[0, -window:][torch.randperm(window)]
    close(model(torch.cat([torch.randint(0, V, (5,)), bag])[None])[0, -1], last)


def test_gradients_are_those_of_the_definition(rng: random.Random) -> None:
    model = random_model(rng)
    tokens = torch.randint(0, model.config.vocab_size, (2, 9))
    weights = torch.randn(2, 9, model.config.vocab_size)
    found = torch.autograd.grad((model(tokens) * weights).sum(), list(model.parameters()))
    slow = torch.stack([torch.stack(slow_row(model, row, [0] * 9)) for row in tokens])
    for a, b in zip(
        found, torch.autograd.grad((slow * weights).sum(), list(model.parameters())), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


def test_the_number_of_parameters_and_a_bag_without_tokens() -> None:
    config = CBOWConfig(vocab_size=31, dim=6, n_layers=3, hidden_dim=5, window=4)
    assert sum(p.numel() for p in build(config).parameters()) == 31 * 6 + 3 * (2 * 6 * 5 + 6) + 6
    with pytest.raises(ConfigError, match="window"):
        CBOWConfig(window=0)


def test_its_parameters_are_printed() -> None:
    from io import StringIO

    from rich.console import Console

    from wordloom.cli.inspect.parameters import print_parameters
    from wordloom.inspect.parameters import parameter_table

    config, console = CBOWConfig(window=5), Console(width=80, record=True, file=StringIO())
    print_parameters(console, "mine", config, parameter_table(config))
    assert "2 layers, dim 256, bags of 5 tokens" in console.export_text()
