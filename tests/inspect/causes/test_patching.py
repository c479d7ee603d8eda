"""Patching: a whole layer of the first text gives its answer, and no vector before the difference matters."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tests.inspect.causes.test_attribution import drawn

from wordloom.errors import GenerationError, WordloomError
from wordloom.inspect import patching
from wordloom.inspect.causes.patching import replaced_state
from wordloom.inspect.layers.states import layer_states

FAMILIES = ["gpt", "gpt2", "llama", "rnn"]


def two_texts(family: str, rng: random.Random) -> tuple[Any, list[int], list[int], int]:
    """Return a model, two texts with different answers, and the first place in which they differ."""
    while True:
        model, ids, _ = drawn(family, rng)
        first, V = rng.randrange(len(ids)), model.config.vocab_size
        steps = [0] * first + [1] + [rng.randrange(V) for _ in ids[first + 1 :]]
        other = [(i + step) % V for i, step in zip(ids, steps, strict=True)]
        with torch.no_grad():
            logits = model.lm_head(model.hidden(torch.tensor([ids, other]))[:, -1])  # [2, V]
        if (logits[0] - logits[1]).std() > 1e-3:  # a narrow model may not tell them apart
            return model, ids, other, first


@pytest.mark.parametrize("family", FAMILIES)
def test_each_effect_is_that_of_one_replaced_vector(family: str, rng: random.Random) -> None:
    model, clean, corrupt, first = two_texts(family, rng)
    target, foil = rng.sample(range(model.config.vocab_size), 2)
    seen = patching(model, clean, corrupt, target=target, foil=foil)
    assert seen.effects.shape == (len(model.blocks) + 1, len(clean))
    with torch.no_grad():
        states = layer_states(model, torch.tensor([clean]))

        def difference(layer: int, places: list[int]) -> float:
            def replaced(x: torch.Tensor) -> torch.Tensor:
                x = x.clone()
                x[0, places] = states[layer][0, places]
                return x

            with replaced_state(model, layer, replaced):
                logits = model(torch.tensor([corrupt]))[0, -1]
            return float(logits[target] - logits[foil])

        before = seen.clean_difference - seen.corrupt_difference
        tolerance = {"rel": 1e-3, "abs": 2e-4 / abs(before) + 1e-4}
        for layer in range(len(states)):
            # no vector: 0; all vectors: 1
            assert (difference(layer, []) - seen.corrupt_difference) / before == pytest.approx(0, **tolerance)
            whole = difference(layer, list(range(len(clean))))
            assert (whole - seen.corrupt_difference) / before == pytest.approx(1, **tolerance)
            for t in range(len(clean)):
                one = (difference(layer, [t]) - seen.corrupt_difference) / before
                assert float(seen.effects[layer, t]) == pytest.approx(one, **tolerance)
            if first:
                assert float(seen.effects[layer, :first].abs().max()) <= tolerance["abs"]


def test_the_last_layer_matters_at_the_last_token_only(rng: random.Random) -> None:
    model, clean, corrupt, _ = two_texts(rng.choice(["gpt", "gpt2", "llama"]), rng)
    target, foil = rng.sample(range(model.config.vocab_size), 2)
    effects = patching(model, clean, corrupt, target=target, foil=foil).effects
    assert float(effects[-1, -1]) == pytest.approx(1, abs=1e-2)
    if len(clean) > 1:
        assert float(effects[-1, :-1].abs().max()) <= 1e-2


def test_mistakes_get_one_line(rng: random.Random) -> None:
    model, clean, corrupt, _ = two_texts("llama", rng)
    with pytest.raises(GenerationError, match=r"tokens .* exchanged between texts of equal length only"):
        patching(model, clean, [*corrupt, 1])
    with pytest.raises(GenerationError, match="the target and the foil are the same token"):
        patching(model, clean, corrupt, target=1, foil=1)
    with pytest.raises(GenerationError, match="equal logits"):
        patching(model, clean, clean, target=1, foil=2)
    with pytest.raises(GenerationError, match="does not exist"):
        patching(model, clean, corrupt, target=99, foil=1)
    with pytest.raises(WordloomError, match="not for type Bert"):
        patching(two_texts("bert", rng)[0], clean, corrupt)
    assert not any(block._forward_hooks or block._forward_pre_hooks for block in model.blocks)
