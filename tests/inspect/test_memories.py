"""Neurons: the contexts are those of a full sort, however the text is cut, stopped and resumed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.inspect.layers.random_models import random_model

from wordloom.errors import CheckpointError, ConfigError, EvaluationError, WordloomError
from wordloom.inspect.directions import neuron_directions
from wordloom.inspect.layers import windows as layout
from wordloom.inspect.memories import triggers as module
from wordloom.inspect.memories.memories import memories
from wordloom.inspect.memories.triggers import find_triggers


def drawn(rng: random.Random) -> tuple[Any, list[list[int]]]:
    model = random_model(rng.choice(["gpt", "gpt2", "llama"]), rng)
    V = model.config.vocab_size
    return model, [[rng.randrange(V) for _ in range(rng.randint(0, 24))] for _ in range(rng.randint(2, 20))]


def activations_of(model: Any, tokens: list[int]) -> list[torch.Tensor]:
    """The activations [T, F] of each layer, by the layers alone."""
    found: list[torch.Tensor] = []
    hooks = [
        block.feed_forward.register_forward_pre_hook(lambda _, args: found.append(args[0][0]))
        for block in model.blocks
    ]
    with torch.no_grad():
        model.hidden(torch.tensor([tokens]))
        for hook in hooks:
            hook.remove()
        layers = []
        for block, x in zip(model.blocks, found, strict=True):
            feed = block.feed_forward
            if hasattr(feed, "gate_proj"):
                layers.append(feed.activation(feed.gate_proj(x)) * feed.up_proj(x))
            else:
                layers.append(feed.activation(feed.up_proj(x)))
    return layers


def test_the_parts_of_a_layer_sum_to_its_output(rng: random.Random) -> None:
    model, _ = drawn(rng)
    for block in model.blocks:
        feed = block.feed_forward
        x = torch.randn(5, model.config.dim)
        seen: list[torch.Tensor] = []
        hook = feed.down_proj.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[0]))
        with torch.no_grad():
            output, values = feed(x), neuron_directions(feed)
            bias = feed.down_proj(torch.zeros(1, feed.down_proj.in_features))
        hook.remove()
        torch.testing.assert_close(seen[0] @ values + bias, output, rtol=1e-4, atol=1e-4)


def test_triggers_are_those_of_a_full_sort(rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "BATCH_TOKENS", rng.choice([1, 30, 100, 4096]))
    model, texts = drawn(rng)
    texts.append([1, 2, 3])
    k, C = rng.randint(1, 30), rng.randint(1, 5)
    found = find_triggers(model, iter(texts), top_k=k, context=C)
    usable = [text for text in texts if len(text) > 1]
    assert found.tokens == sum(len(text) - 1 for text in usable)
    every = [activations_of(model, text[:-1]) for text in usable]  # by window, by layer, [T, F]
    for layer in range(len(model.blocks)):
        places = [(w, t) for w, text in enumerate(usable) for t in range(len(text) - 1)]
        values = torch.cat([window[layer] for window in every])  # [N, F]
        for neuron in range(values.shape[1]):
            order = values[:, neuron].sort(descending=True).values[:k]
            kept = found.values[layer, neuron]
            torch.testing.assert_close(kept[: len(order)], order, rtol=1e-4, atol=1e-5)
            assert (kept[len(order) :] == -torch.inf).all()
            for at in range(len(order)):
                window = int(found.windows[layer, neuron, at])
                t = int(found.positions[layer, neuron, at])
                own = values[places.index((window, t)), neuron]
                assert float(own) == pytest.approx(float(kept[at]), rel=1e-4, abs=1e-5)
                before = usable[window][: t + 1][-C:]
                context = found.contexts[layer, neuron, at].tolist()
                assert context == [-1] * (C - len(before)) + before
                assert int(found.followers[layer, neuron, at]) == usable[window][t + 1]


def test_a_run_that_stops_goes_on(
    rng: random.Random, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "BATCH_TOKENS", 40)
    monkeypatch.setattr(module, "SAVE_TOKENS", 50)
    model, texts = drawn(rng)
    texts = texts * 6 + [[1, 2, 3]] * 40
    whole = find_triggers(model, texts)

    def stops(after: int) -> Any:
        for at, text in enumerate(texts):
            if at == after:
                raise KeyboardInterrupt
            yield text

    store = tmp_path / "contexts"
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            find_triggers(model, stops(rng.randint(0, len(texts) - 1)), store=store, weights="a")
    again = find_triggers(model, texts, store=store, weights="a")
    at_once = find_triggers(model, texts, store=store, weights="a")
    for one in (again, at_once):
        assert (one.tokens, one.read) == (whole.tokens, whole.read)
        for name in ("values", "windows", "positions", "contexts", "followers"):
            assert torch.equal(getattr(one, name), getattr(whole, name)), name
    for other, weights in ((texts, "b"), ([[5, 5], *texts], "a")):
        with pytest.raises(CheckpointError, match="another model, text or setting"):
            find_triggers(model, other, store=store, weights=weights)
    with pytest.raises(CheckpointError, match="another model, text or setting"):
        find_triggers(model, texts, store=store, weights="a", top_k=3)
    store.write_bytes(store.read_bytes()[:40])
    with pytest.raises(CheckpointError, match="holds no contexts of neurons"):
        find_triggers(model, texts, store=store, weights="a")


def test_promoted_words_and_agreement(rng: random.Random) -> None:
    model, texts = drawn(rng)
    texts.append([1, 2, 3])
    found = find_triggers(model, texts)
    layers, F, _ = found.values.shape
    chosen = [(rng.randrange(layers), rng.randrange(F)) for _ in range(3)]
    V = model.config.vocab_size
    view = memories(model, found, chosen=chosen, top_k=V)
    agree = [0] * layers
    for layer, block in enumerate(model.blocks):
        with torch.no_grad():
            weight = block.feed_forward.down_proj.weight.T  # [F, D]
            shares = (weight @ model.lm_head.weight.T).softmax(-1)  # [F, V]
        best = shares.argmax(-1)
        follower = found.followers[layer, :, 0]
        agree[layer] = int((best == follower).sum())
        pairs = sum(int(a == b) for a in best.tolist() for b in follower.tolist())
        assert view.shuffled[layer] == pytest.approx(pairs / F**2)
        for neuron in view.neurons:
            if neuron.layer == layer:
                own = shares[neuron.number]
                assert [share for _, share in neuron.promotes] == pytest.approx(
                    own.sort(descending=True).values.tolist(), rel=1e-3, abs=1e-6
                )
                assert neuron.agrees == bool(best[neuron.number] == follower[neuron.number])
                assert float(own[int(neuron.promotes[0][0])]) == pytest.approx(float(own.max()))
    assert view.agreement == pytest.approx([n / F for n in agree])
    assert view.chance == 1 / V
    assert [(neuron.layer, neuron.number) for neuron in view.neurons] == chosen
    assert len(memories(model, found, most=2).neurons) == min(2, layers * F)


def test_mistakes_get_one_line(rng: random.Random) -> None:
    model, texts = drawn(rng)
    with pytest.raises(WordloomError, match="not for type Bert"):
        find_triggers(random_model("bert", rng), texts)
    with pytest.raises(ConfigError, match="1 or more, not 0 and 16"):
        find_triggers(model, texts, top_k=0)
    with pytest.raises(EvaluationError, match="no token to read"):
        find_triggers(model, [[1]])
    found = find_triggers(model, [[1, 2]])
    with pytest.raises(ConfigError, match=r"neuron 9\.0 does not exist"):
        memories(model, found, chosen=[(9, 0)])
