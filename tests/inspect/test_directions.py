"""Cosines of all pairs beside their plain computation, and bounds that hold."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from tests.inspect.layers.random_models import random_model

from wordloom.errors import ConfigError, NonFiniteError, WordloomError
from wordloom.inspect import directions as module
from wordloom.inspect import geometry
from wordloom.inspect.directions import directions, directions_that_fit, neuron_directions
from wordloom.models.building.quantized import quantize_model


def test_statistics_are_those_of_all_pairs(rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK", rng.choice([1, 50, 1 << 22]))
    N, D = rng.randint(2, 60), rng.randint(1, 30)
    x = torch.randn(N, D) + torch.randn(D) * rng.random()
    found = directions("x", torch.cat([x, torch.zeros(3, D)]), None)
    units = torch.nn.functional.normalize(x.double(), dim=1)
    pairs = (units @ units.T)[tuple(torch.triu_indices(N, N, 1))].numpy()
    assert (found.N, found.D, found.random) == (N, D, None)
    assert found.mean == pytest.approx(pairs.mean(), abs=1e-5)
    assert found.deviation == pytest.approx(pairs.std(), abs=1e-3)
    assert found.largest == pytest.approx(np.abs(pairs).max(), abs=1e-5)
    exact = np.sort(np.abs(pairs))[math.ceil(0.999 * len(pairs)) - 1]
    assert found.quantile == pytest.approx(exact, abs=2e-5)
    assert found.histogram.sum() == len(pairs)
    edges = np.histogram(pairs.astype(np.float32).clip(-1, 1), module.BINS)[0]
    assert np.abs(np.cumsum(found.histogram) - np.cumsum(edges)).max() <= 2  # rounding at the edges of bins
    for values, dimension in ((x, found.effective_dimension), (x - x.mean(0), found.centred_dimension)):
        eigenvalues = torch.linalg.eigvalsh(values.double().T @ values.double())
        wanted = float(eigenvalues.sum() ** 2 / eigenvalues.square().sum())
        assert dimension == pytest.approx(wanted, rel=1e-4)


def test_known_directions() -> None:
    basis = directions("basis", torch.eye(7), None)
    assert (basis.largest, basis.mean, basis.welch_bound) == (0, 0, 0)
    assert basis.effective_dimension == pytest.approx(7)
    one = directions("one", torch.ones(5, 3), None)
    assert one.mean == pytest.approx(1)
    assert one.effective_dimension == pytest.approx(1)
    # the corners of a simplex reach Welch's bound: N = D + 1
    simplex = torch.eye(5) - 1 / 5
    inside = simplex @ torch.linalg.svd(simplex)[2][:4].T  # in the 4 dimensions that they span
    corners = directions("simplex", inside, None)
    assert corners.largest == pytest.approx(corners.welch_bound, abs=1e-5)


def test_bounds_hold(rng: random.Random) -> None:
    N, D = rng.randint(10, 400), rng.randint(20, 60)
    found = directions("x", torch.randn(N, D), torch.Generator().manual_seed(rng.randrange(2**31)))
    assert found.largest >= found.welch_bound
    assert found.random is not None
    assert found.random.largest <= found.random_bound  # but for one in a hundred runs, as a loose bound fewer
    # as many directions as fit at an epsilon have that bound
    epsilon = 0.2 + 0.5 * rng.random()
    fit = directions_that_fit(D, epsilon)
    assert math.sqrt(4 * math.log(fit / math.sqrt(module.FAILURE)) / D) == pytest.approx(epsilon)


def test_groups_of_a_model(rng: random.Random) -> None:
    for family in ("gpt", "gpt2", "llama", "bert"):
        model = random_model(family, rng)
        view = geometry(model)
        assert model.config.vocab_size >= view.groups[0].N
        assert all(model.config.dim == group.D for group in view.groups)
        for block in model.blocks:
            values = neuron_directions(block.feed_forward)
            torch.testing.assert_close(values, block.feed_forward.down_proj.weight.T, rtol=1e-4, atol=1e-5)


def test_models_in_8_bits_and_with_one_neuron_have_directions(rng: random.Random) -> None:
    model = random_model("llama", rng, hidden_dim=rng.randint(2, 19))
    exact = [neuron_directions(block.feed_forward) for block in model.blocks]
    quantize_model(model)
    for block, wanted in zip(model.blocks, exact, strict=True):
        found = neuron_directions(block.feed_forward)
        torch.testing.assert_close(found, wanted, rtol=0.02, atol=0.02 * float(wanted.detach().abs().max()))
    assert len(geometry(random_model("gpt2", rng, hidden_dim=1)).groups) == 1


def test_mistakes_get_one_line() -> None:
    with pytest.raises(ConfigError, match="x: 1 vectors have no pair"):
        directions("x", torch.tensor([[1.0, 2.0], [0.0, 0.0]]), None)
    with pytest.raises(WordloomError, match="type Linear has none"):
        geometry(torch.nn.Linear(2, 2))
    with pytest.raises(NonFiniteError, match="x: a vector is not finite"):
        directions("x", torch.tensor([[1.0, 2.0], [math.inf, 0.0]]), None)
