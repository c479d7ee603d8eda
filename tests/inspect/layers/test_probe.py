"""Probes: scikit-learn's accuracy on the same vectors, and the majority for labels without a meaning."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from tests.inspect.causes.test_attribution import drawn

from wordloom.errors import ConfigError, DataError
from wordloom.inspect import probe
from wordloom.inspect.layers.probe import text_vectors
from wordloom.inspect.layers.states import layer_states


@pytest.mark.parametrize("family", ["gpt", "gpt2", "llama", "bert", "rnn"])
def test_vectors_of_texts(family: str, rng: random.Random) -> None:
    model, _, _ = drawn(family, rng)
    V = model.config.vocab_size
    rows = [[rng.randrange(V) for _ in range(rng.randint(1, 12))] for _ in range(5)]
    with torch.no_grad():
        states: list[Any] = [[x[0] for x in layer_states(model, torch.tensor([ids]))] for ids in rows]
    for pooling, pool in (
        ("mean", lambda x: x.mean(0)), ("last", lambda x: x[-1]), ("first", lambda x: x[0]),
    ):  # fmt: skip
        found = text_vectors(model, rows, pooling)  # type: ignore[arg-type]
        for layer, values in enumerate(found):
            wanted = torch.stack([pool(each[layer]) for each in states])
            torch.testing.assert_close(torch.from_numpy(values), wanted, rtol=1e-5, atol=1e-5)


def test_a_label_that_is_a_token_is_read_and_a_random_one_is_not(rng: random.Random) -> None:
    """The label is the last token; the control is random, so that nothing beyond its frequency is known."""
    model, _, _ = drawn("llama", rng)
    rows = [[rng.randrange(5, 13), rng.randrange(2)] for _ in range(300)]
    seen = probe(model, rows, [str(row[-1]) for row in rows], pooling="last", seed=rng.randrange(100))
    assert seen.accuracy[0] == 1.0  # the embedding of the last token
    assert (seen.train_texts, seen.test_texts) == (225, 75)
    assert max(seen.control) < 0.75
    assert 0.3 < seen.majority < 0.7


def test_accuracies_are_those_of_scikit_learn(rng: random.Random) -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    model, _, _ = drawn("gpt2", rng)
    rows = [[rng.randrange(model.config.vocab_size) for _ in range(6)] for _ in range(80)]
    labels = [str(sum(row) % 3) for row in rows]
    seed = rng.randrange(1000)
    seen = probe(model, rows, labels, seed=seed, test_share=0.3)
    draw = np.random.default_rng(seed)
    order = draw.permutation(80)
    test, train = order[:24], order[24:]
    targets = np.array([int(label) for label in labels])
    shuffled = draw.permutation(targets)
    for layer, x in enumerate(text_vectors(model, rows, "mean")):
        scaler = StandardScaler().fit(x[train])
        fitted = LogisticRegression(max_iter=1000).fit(scaler.transform(x[train]), targets[train])
        assert seen.accuracy[layer] == fitted.score(scaler.transform(x[test]), targets[test])
        control = LogisticRegression(max_iter=1000).fit(scaler.transform(x[train]), shuffled[train])
        assert seen.control[layer] == control.score(scaler.transform(x[test]), shuffled[test])


def test_mistakes_get_one_line(rng: random.Random) -> None:
    model, _, _ = drawn("llama", rng)
    with pytest.raises(DataError, match="all texts have one label"):
        probe(model, [[1], [2]], ["a", "a"])
    with pytest.raises(DataError, match="2 texts are too few"):
        probe(model, [[1], [2]], ["a", "b"])
    with pytest.raises(ConfigError, match="unknown pooling 'max'"):
        probe(model, [[1], [2]], ["a", "b"], pooling="max")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="a share between 0 and 1"):
        probe(model, [[1], [2]], ["a", "b"], test_share=1.0)
