"""Knowledge capacity: the facts and their entropy, bits against models that are known exactly, and runs."""

from __future__ import annotations

import math
import random
from collections import Counter

import numpy as np
import pytest
import torch

from wordloom.errors import ConfigError
from wordloom.lab.capacity.bits import BIOGRAPHIES, KnowledgeSpace, Nats
from wordloom.lab.capacity.facts import END, Exposures, Facts


def some_facts(rng: random.Random) -> Facts:
    return Facts(
        people=rng.randint(1, 30),
        seed=rng.randrange(2**32),
        name_tokens=rng.randint(6, 12),
        attributes=rng.randint(1, 8),
        values=rng.randint(2, 40),
    )


# -- the facts


def test_each_exposure_shows_all_people_once_with_all_their_facts(rng: random.Random) -> None:
    facts = some_facts(rng)
    exposures, N, K = Exposures(facts), facts.people, facts.attributes
    first_marker = 1 + facts.name_tokens
    known = {tuple(name): list(row) for name, row in zip(facts.names, facts.value_tokens, strict=True)}
    assert len(known) == N
    for exposure in (0, rng.randrange(10**9)):
        batch = exposures.batch(exposure * N, N)
        assert batch.tokens.shape == batch.targets.shape == (N, 2 * K + 3)
        assert torch.equal(batch.tokens[:, 1:], batch.targets[:, :-1])
        assert {tuple(row[1:3].tolist()) for row in batch.tokens} == set(known)
        for row in torch.cat([batch.tokens, batch.targets[:, -1:]], dim=1).tolist():
            assert row[0] == row[-1] == END
            shown = dict(zip(row[3:-1:2], row[4:-1:2], strict=True))
            assert [shown[first_marker + k] for k in range(K)] == known[tuple(row[1:3])]


def test_rows_depend_on_the_seed_and_their_number_alone(rng: random.Random) -> None:
    facts = some_facts(rng)
    start, count = rng.randrange(5 * facts.people), rng.randint(2, 3 * facts.people + 2)
    together = Exposures(facts).batch(start, count)
    fresh = Exposures(Facts(**{name: getattr(facts, name) for name in facts.__dataclass_fields__}))
    order = list(range(count))
    rng.shuffle(order)
    for i in order:
        alone = fresh.batch(start + i, 1)
        assert torch.equal(alone.tokens[0], together.tokens[i])
        assert torch.equal(alone.targets[0], together.targets[i])


def test_other_seeds_and_streams_give_other_rows() -> None:
    facts = Facts(people=50)
    rows = Exposures(facts).batch(0, 50).tokens
    assert not torch.equal(rows, Exposures(facts).batch(50, 50).tokens)
    assert not torch.equal(rows, Exposures(facts, measuring=True).batch(0, 50).tokens)
    assert not torch.equal(rows, Exposures(Facts(people=50, seed=1)).batch(0, 50).tokens)


def test_names_values_and_orders_are_uniform() -> None:
    """Empirical entropies are at most a few thousandths of a bit below those of uniform draws."""
    facts = Facts(people=40_000)
    for tokens, choices in ((facts.names, 256), (facts.value_tokens, 512)):
        for column in tokens.T:
            share = np.bincount(column - column.min(), minlength=choices) / len(column)
            entropy = -(share[share > 0] * np.log2(share[share > 0])).sum()
            assert math.log2(choices) - 0.02 < entropy <= math.log2(choices)
    rows = Exposures(Facts(people=6_000, attributes=3)).batch(0, 6_000).tokens
    orders = Counter(tuple(row) for row in rows[:, 3::2].tolist())
    assert len(orders) == 6
    assert all(abs(count - 1_000) < 150 for count in orders.values())  # five standard deviations
    assert Exposures(facts).batch(0, 1).tokens.shape[1] == 19


def test_memory_does_not_grow_with_exposures() -> None:
    exposures = Exposures(Facts(people=3))
    for exposure in range(100):
        exposures.batch(3 * exposure, 3)
    assert exposures._exposure.cache_info().currsize == 2


def test_impossible_facts_are_errors() -> None:
    with pytest.raises(ConfigError, match="too few for 10 people"):
        Facts(people=10, name_tokens=3)
    for name in ("people", "values"):
        with pytest.raises(ConfigError, match=f"{name} must be 1 or more"):
            Facts(**{"people": 5, name: 0})
    with pytest.raises(ConfigError, match="seed must be 0 or more"):
        Facts(people=5, seed=-1)


# -- the formulas


def test_the_uniform_predictor_stores_nothing_and_a_table_stores_all(rng: random.Random) -> None:
    facts = some_facts(rng)
    space, N = facts.space, facts.people
    uniform = Nats(2 * math.log(facts.name_tokens), facts.attributes * math.log(facts.values))
    assert space.stored(N, uniform).total == pytest.approx(0, abs=1e-8)
    table = space.stored(N, Nats(math.log(N), 0.0))
    assert table == pytest.approx(space.most(N))
    expected = N * (math.log2(facts.name_tokens**2 / N) + facts.attributes * math.log2(facts.values))
    assert table.total == pytest.approx(expected)


def test_bits_follow_the_formula_as_it_is_printed(rng: random.Random) -> None:
    names, N = rng.randint(1_000, 10**6), rng.randint(1, 1_000)
    D, K = rng.randint(2, 500), rng.randint(1, 9)
    p1, each = rng.uniform(0, 12), rng.uniform(0, 6)
    stored = KnowledgeSpace(names, K * math.log2(D)).stored(N, Nats(p1, K * each))
    assert stored.names == pytest.approx(N * math.log2(names / math.exp(p1)), rel=1e-9, abs=1e-6)
    assert stored.values == pytest.approx(N * K * math.log2(D / math.exp(each)), rel=1e-9, abs=1e-6)


def test_the_numbers_of_the_paper() -> None:
    assert pytest.approx(47.59, abs=0.005) == BIOGRAPHIES.value_bits
    assert BIOGRAPHIES.names == 1.6e8
    facts = Facts(people=2_000)
    assert facts.space.most(2_000).total == pytest.approx(2_000 * (math.log2(65_536 / 2_000) + 72))
    with pytest.raises(ConfigError, match="people must be from 1"):
        facts.space.most(65_537)
