"""Attributions: exact sums of integrated gradients, and the plain computation of each method."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tests.inspect.layers.random_models import random_model

from wordloom.errors import ConfigError, NonFiniteError
from wordloom.inspect import attribution
from wordloom.models import RNNConfig, build


def drawn(family: str, rng: random.Random) -> tuple[Any, list[int], Any]:
    if family == "rnn":
        config = RNNConfig(vocab_size=31, dim=rng.randint(1, 9), n_layers=2, cell=rng.choice(["gru", "lstm"]))
        model = build(config, generator=torch.Generator().manual_seed(rng.randrange(2**31))).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(4)
    else:
        # After a chain of norms, or a norm of two numbers, the score is a step, and its gradient is zero.
        heads = rng.choice([1, 2, 3, 5])
        shape = {"n_heads": heads, "dim": heads * 2 * rng.randint(2, 4), "n_layers": rng.randint(1, 2)}
        model = random_model(family, rng, **shape)
    ids = [rng.randrange(model.config.vocab_size) for _ in range(rng.randint(1, 15))]
    goal = rng.randrange(model.config.vocab_size)

    def score(tokens: torch.Tensor) -> torch.Tensor:
        hidden = model.hidden(tokens)[:, -1]
        return model.lm_head(model.mlm_hidden(hidden) if family == "bert" else hidden)[:, goal]

    return model, ids, score


FAMILIES = ["gpt", "gpt2", "llama", "bert", "rnn"]


@pytest.mark.parametrize("family", FAMILIES)
def test_integrated_gradients_sum_to_the_difference(family: str, rng: random.Random) -> None:
    model, ids, score = drawn(family, rng)
    seen = attribution(model, ids, score)
    with torch.no_grad():
        assert seen.score == pytest.approx(float(score(torch.tensor([ids]))[0]), rel=1e-5, abs=1e-5)
    difference = seen.score - seen.baseline
    assert seen.residual == pytest.approx(sum(seen.values) - difference, abs=1e-9)
    assert abs(seen.residual) <= 0.011 * abs(difference) + 1e-4
    assert len(seen.notes()) == 1


def test_a_score_of_steps_says_so(rng: random.Random) -> None:
    """A step from -1 to 1 as the text grows from zero: its gradient is zero."""
    model, ids, _ = drawn("llama", rng)

    def score(tokens: torch.Tensor) -> torch.Tensor:
        size = model.token_embedding(tokens).abs().sum((1, 2))
        return (size > 1e-3).float() * 2 - 1 + 0 * size

    seen = attribution(model, ids, score)
    assert set(seen.values) == {0.0}
    assert seen.residual == -2
    assert "trust --method occlusion" in seen.notes()[1]


@pytest.mark.parametrize("family", FAMILIES)
def test_each_method_is_its_definition(family: str, rng: random.Random) -> None:
    """With the embeddings written into the table of a copy, one row for each token of the text."""
    model, ids, score = drawn(family, rng)
    T = len(ids)
    embedding = model.token_embedding
    own = embedding.weight.detach()[ids]  # [T, D]

    def f(e: torch.Tensor) -> torch.Tensor:
        hook = embedding.register_forward_hook(lambda *_: e[None])
        try:
            return score(torch.tensor([ids]))[0]
        finally:
            hook.remove()

    leaf = own.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(f(leaf), leaf)
    seen = attribution(model, ids, score, method="gradient")
    torch.testing.assert_close(
        torch.tensor(seen.values), (gradient * own).sum(1).double(), rtol=1e-3, atol=1e-4, check_dtype=False
    )
    assert seen.residual is None
    with torch.no_grad():
        whole, zero = f(own), f(torch.zeros_like(own))
        without = [f(own * (1 - torch.eye(T)[t])[:, None]) for t in range(T)]
    seen = attribution(model, ids, score, method="occlusion")
    assert seen.values == pytest.approx([float(whole - each) for each in without], rel=1e-3, abs=1e-4)
    assert (seen.score, seen.baseline) == pytest.approx((float(whole), float(zero)), rel=1e-4, abs=1e-4)


def test_a_linear_score_has_its_weights(rng: random.Random) -> None:
    """The sum of the embeddings, whose gradient is constant: all methods agree, in one step."""
    model, ids, _ = drawn("llama", rng)
    vector = torch.randn(model.config.dim)

    def score(tokens: torch.Tensor) -> torch.Tensor:
        return (model.token_embedding(tokens) @ vector).sum(1)

    wanted = (model.token_embedding.weight.detach()[ids] @ vector).tolist()
    for method in ("integrated-gradients", "gradient", "occlusion"):
        seen = attribution(model, ids, score, method=method, most_steps=32)  # type: ignore[arg-type]
        assert seen.values == pytest.approx(wanted, rel=1e-3, abs=1e-4)


def test_the_model_is_left_as_it_was(rng: random.Random) -> None:
    model, ids, score = drawn("gpt2", rng)
    model.train()
    attribution(model, ids, score)
    assert model.training
    assert not model.token_embedding._forward_hooks
    assert all(parameter.grad is None for parameter in model.parameters())


def test_mistakes_get_one_line(rng: random.Random) -> None:
    model, ids, score = drawn("llama", rng)
    with pytest.raises(ConfigError, match="unknown method 'shap'"):
        attribution(model, ids, score, method="shap")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="most_steps must be 32 or more, not 0"):
        attribution(model, ids, score, most_steps=0)
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)
    with pytest.raises(NonFiniteError, match="the score is nan"):
        attribution(model, ids, score)


def recurrent(cell: str) -> Any:
    config = RNNConfig(vocab_size=31, dim=9, n_layers=2, cell=cell)
    return build(config, generator=torch.Generator().manual_seed(0)).eval()


def test_gradients_do_without_cudnn_which_has_none_in_evaluation_mode() -> None:
    model, enabled = recurrent("lstm"), list[bool]()

    def score(tokens: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            enabled.append(torch.backends.cudnn.enabled)
        return model(tokens)[:, -1, 0]

    before = torch.backends.cudnn.enabled
    attribution(model, [1, 2, 3], score, method="gradient")
    assert enabled == [False]
    assert torch.backends.cudnn.enabled == before


@pytest.mark.gpu
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn_tanh", "gru_reset_after"])
def test_recurrent_models_have_gradients_on_a_gpu(cell: str) -> None:
    model = recurrent(cell)

    def values() -> tuple[float, ...]:
        return attribution(model, [1, 2, 3], lambda tokens: model(tokens)[:, -1, 0], method="gradient").values

    on_cpu = values()
    model.cuda()
    assert values() == pytest.approx(on_cpu, rel=1e-3, abs=1e-5)
