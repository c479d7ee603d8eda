"""Feed-forward layers: activations from their formulas, the gated family, bias as a keyword."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from wordloom.errors import ConfigError
from wordloom.nn import ACTIVATIONS, FeedForward, GatedFeedForward, Swish


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + (-x).exp())


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.tensor([math.erf(v / math.sqrt(2)) for v in x.flatten().tolist()]).view_as(x))


def gelu_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


FORMULAS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda x: x * (x > 0),
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": lambda x: x * sigmoid(x),
    "sigmoid": sigmoid,
    "identity": lambda x: x,
    "swish_learnt": lambda x: x * sigmoid(x),  # as initialised, beta is 1
}


def test_every_activation_is_checked() -> None:
    assert set(FORMULAS) == set(ACTIVATIONS)


@pytest.mark.parametrize("name", FORMULAS)
@torch.no_grad()
def test_plain_and_gated_layers_compute_their_formula(name: str) -> None:
    """GLU (sigmoid), bilinear (identity), ReGLU, GEGLU and SwiGLU: Shazeer 2020, eq. 5 and 6."""
    x = torch.randn(2, 3, 4)
    plain = FeedForward(dim=4, hidden_dim=6, activation=name)
    inner = FORMULAS[name](x @ plain.up_proj.weight.t() + plain.up_proj.bias)
    right = inner @ plain.down_proj.weight.t() + plain.down_proj.bias
    torch.testing.assert_close(plain(x), right, rtol=1e-5, atol=1e-6)
    gated = GatedFeedForward(dim=4, hidden_dim=6, activation=name)
    inner = FORMULAS[name](x @ gated.gate_proj.weight.t()) * (x @ gated.up_proj.weight.t())
    torch.testing.assert_close(gated(x), inner @ gated.down_proj.weight.t(), rtol=1e-5, atol=1e-6)


def test_exact_and_tanh_gelu_differ() -> None:
    x = torch.linspace(-4, 4, 100)
    difference = (ACTIVATIONS["gelu"]()(x) - ACTIVATIONS["gelu_tanh"]()(x)).abs().max()
    assert 1e-4 < difference < 1e-3


def test_swish_with_beta_fixed_or_learnt() -> None:
    x = torch.randn(50)
    fixed = Swish(beta=1.702)
    torch.testing.assert_close(fixed(x), x * sigmoid(1.702 * x))
    assert list(fixed.parameters()) == []
    layer = GatedFeedForward(dim=4, hidden_dim=6, activation=Swish(beta=1.5, learnt=True))
    assert "activation.beta" in layer.state_dict()
    layer(torch.randn(3, 4)).sum().backward()
    assert layer.activation.beta.grad.abs() > 0
    torch.nn.init.constant_(layer.activation.beta, 9.0)
    layer.activation.reset_parameters()
    assert layer.activation.beta.item() == 1.5


@pytest.mark.parametrize("kind", [FeedForward, GatedFeedForward])
@pytest.mark.parametrize("bias", [True, False])
def test_bias_is_a_keyword(kind: type, bias: bool) -> None:
    names = set(dict(kind(dim=4, hidden_dim=6, bias=bias).named_parameters()))
    weights = {"up_proj.weight", "down_proj.weight"} | (
        {"gate_proj.weight"} if kind is GatedFeedForward else set()
    )
    assert names == weights | ({name.replace("weight", "bias") for name in weights} if bias else set())


def test_an_unknown_activation_is_refused_with_what_exists() -> None:
    with pytest.raises(ConfigError, match="unknown activation 'gleu'; did you mean 'gelu'"):
        FeedForward(dim=4, hidden_dim=6, activation="gleu")
