"""The compiled program of recurrent models against the modules it stands in for."""

from __future__ import annotations

from typing import Any

import psutil
import pytest
import torch

from wordloom.errors import ConfigError
from wordloom.generate import Sampling, generate, steps
from wordloom.generate.fast import accelerate, causal
from wordloom.generate.fast.recurrent import FastRNN
from wordloom.generate.fast.threads import Threads
from wordloom.models import RNN, RNNConfig, build
from wordloom.nn.recurrent import CELLS

VARIANTS: dict[str, dict[str, Any]] = {
    **{cell: {"cell": cell} for cell in CELLS},
    "lstm, peephole": {"peephole": True},
    "lstm_1997, peephole": {"cell": "lstm_1997", "peephole": True},
    "lstm, projection": {"projection": 12},
    "lstm, tied": {"tie_embeddings": True, "output_bias": False},
    "gru, no bias": {"cell": "gru", "bias": False},
    "gru_reset_after, no bias": {"cell": "gru_reset_after", "bias": False},
}
PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9], [12, 13]]


def made(name: str) -> RNN:
    config = RNNConfig(vocab_size=61, dim=18, hidden_dim=22, n_layers=2, **VARIANTS[name])
    model = build(config, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.empty_like(parameter).normal_(0, 0.2, generator=generator))
    return model.eval()


@pytest.fixture(params=[1, 2, 3], ids=lambda n: f"threads-{n}")
def n_threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(causal, "threads_for", lambda _weights: Threads(request.param))
    return int(request.param)


@torch.no_grad()
def logits_of(model: Any) -> torch.Tensor:
    """[6, 3, V]: after a prompt and each of some given tokens; a row leaves halfway and two change places."""
    cache, made = model.new_cache(3, 9), []
    hidden = model.hidden(torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]]), cache=cache)
    made.append(model.lm_head(hidden[:, -1]).float().clone())
    for step in range(5):
        tokens = torch.tensor([[step], [step + 30], [2 * step]])
        if step == 3:
            cache.select(torch.tensor([2, 0]))
        logits = model.lm_head(model.hidden(tokens[:2] if step >= 3 else tokens, cache=cache)[:, -1])
        whole = torch.zeros_like(made[0])
        whole[: len(logits)] = logits.float()
        made.append(whole)
    assert cache.lengths.eq(8).all()
    return torch.stack(made)


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_are_the_modules(name: str, n_threads: int) -> None:
    model = made(name)
    program = accelerate(model)
    assert isinstance(program, FastRNN)
    torch.testing.assert_close(logits_of(program), logits_of(model), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", VARIANTS)
def test_in_bfloat16_they_stay_near(name: str) -> None:
    model = made(name).bfloat16()
    ours, theirs = logits_of(accelerate(model)), logits_of(model)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0.03 * theirs.abs().max().item())


@pytest.mark.parametrize("name", ["lstm", "gru", "lstm, projection"])
def test_the_same_tokens_are_drawn(name: str) -> None:
    model = made(name)
    for sampling in (
        Sampling(max_new_tokens=30, temperature=0.0),
        Sampling(max_new_tokens=30, seed=5, samples=2),
    ):
        ours = generate(model, PROMPTS, sampling)
        plain = generate(model, PROMPTS, sampling, fast=False)
        recomputed = generate(model, PROMPTS, sampling, use_cache=False)
        assert [one.ids for one in ours] == [one.ids for one in plain] == [one.ids for one in recomputed]


@torch.no_grad()
@pytest.mark.parametrize("name", ["lstm", "gru", "gru_reset_after", "rnn_tanh", "lstm, projection"])
def test_caches_stepped_in_turns_do_not_disturb_each_other(name: str) -> None:
    model = made(name)
    program = accelerate(model)
    caches, plain = [program.new_cache(2, 9) for _ in range(2)], [model.new_cache(2, 9) for _ in range(2)]
    for step in range(6):
        for turn in (0, 1):
            tokens = torch.tensor([[step + 10 * turn], [step + 30]])
            ours = program.hidden(tokens, cache=caches[turn])
            torch.testing.assert_close(ours, model.hidden(tokens, cache=plain[turn]), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_state_that_was_kept_stays_what_it_was() -> None:
    program = accelerate(made("lstm"))
    cache = program.new_cache(1, 9)
    first = program.hidden(torch.tensor([[1]]), cache=cache)
    kept = [layer.state for layer in cache.layers]
    second = program.hidden(torch.tensor([[2]]), cache=cache)
    expected = second.clone()
    for layer, state in zip(cache.layers, kept, strict=True):
        layer.state = state
    assert torch.equal(program.hidden(torch.tensor([[2]]), cache=cache), expected)
    assert torch.equal(second, expected)
    assert not torch.equal(first, second)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["lstm", "gru", "gru_reset_after", "rnn_relu"])
def test_several_tokens_follow_single_ones(name: str, dtype: torch.dtype) -> None:
    model = made(name).to(dtype)
    program = accelerate(model)
    ours, plain = program.new_cache(1, 9), model.new_cache(1, 9)
    for tokens in ([[1]], [[2, 3]], [[4]]):
        found = program.hidden(torch.tensor(tokens), cache=ours).float()
        expected = model.hidden(torch.tensor(tokens), cache=plain).float()
        tolerance = 1e-5 if dtype == torch.float32 else 0.03 * float(expected.abs().max())
        torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


@torch.no_grad()
def test_rows_that_the_cache_lacks_are_an_error() -> None:
    program = accelerate(made("lstm"))
    cache = program.new_cache(1, 9)
    program.hidden(torch.tensor([[1]]), cache=cache)
    with pytest.raises(ConfigError, match="does not fit 2 rows"):
        program.hidden(torch.tensor([[1], [2]]), cache=cache)


def test_a_changed_layer_runs_the_modules() -> None:
    for name, value in (("recorded", []), ("kernel", "steps")):
        model = made("lstm")
        setattr(model.blocks[1], name, value)
        assert accelerate(model) is model


def test_a_model_in_training_is_sampled_as_it_is() -> None:
    model = made("lstm")
    before = generate(model, [[1]], Sampling(max_new_tokens=8, temperature=0.0))
    with torch.no_grad():
        model.lm_head.weight.neg_()
    after = generate(model, [[1]], Sampling(max_new_tokens=8, temperature=0.0))
    assert before[0].ids != after[0].ids
    assert (
        after[0].ids == generate(model, [[1]], Sampling(max_new_tokens=8, temperature=0.0), fast=False)[0].ids
    )


def test_memory_stays_flat_however_much_is_written() -> None:
    model, process = made("lstm"), psutil.Process()
    drawn = iter(steps(model, [[1]], Sampling(max_new_tokens=11_000, seed=1)))
    for _ in range(2_000):
        next(drawn)
    before = process.memory_info().rss
    assert sum(1 for _ in drawn) == 9_000
    assert process.memory_info().rss - before < 8 << 20
