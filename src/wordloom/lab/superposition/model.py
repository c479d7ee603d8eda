"""Toy models of equal shape as one batched tensor program, and their losses."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from wordloom.errors import ConfigError
from wordloom.lab.superposition.inputs import Inputs


class ToyModels(nn.Module):
    """I toy models of n features in m dimensions, x' = ReLU(W^T W x + b).

    Args:
        weight: W of each model [I, m, n].
        bias: b of each model [I, n].
        relu: False leaves out the ReLU, which gives the paper's linear model.

    Raises ConfigError for shapes that do not fit.
    """

    def __init__(self, weight: Tensor, bias: Tensor, *, relu: bool = True) -> None:
        super().__init__()
        if weight.dim() != 3 or bias.shape != (weight.shape[0], weight.shape[2]) or not weight.numel():
            raise ConfigError(
                f"toy models take weights [I, m, n] and biases [I, n] with sizes of 1 or more, not "
                f"{list(weight.shape)} and {list(bias.shape)}"
            )
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(bias)
        self.relu = relu

    @property
    def features(self) -> int:
        return self.weight.shape[2]

    @property
    def dims(self) -> int:
        return self.weight.shape[1]

    def forward(self, x: Tensor) -> Tensor:
        """Return the reconstructions: x [B, n], shared by all models, or [I, B, n] -> [I, B, n]."""
        models, _, n = self.weight.shape
        if x.dim() == 2:  # one product for all models, through W^T W
            gram = (self.weight.transpose(1, 2) @ self.weight).transpose(0, 1)  # [n, I, n]
            product = x @ gram.reshape(n, models * n)  # [B, I n]
            out = product.view(len(x), models, n).transpose(0, 1) + self.bias[:, None]  # [I, B, n]
        else:
            hidden = x @ self.weight.transpose(1, 2)  # [I, B, m]
            out = torch.baddbmm(self.bias[:, None], hidden, self.weight)  # [I, B, n]
        return out.relu() if self.relu else out


def new_models(
    models: int, features: int, dims: int, *, generator: torch.Generator, relu: bool = True
) -> ToyModels:
    """Return ``models`` toy models with random weights (Glorot's normal distribution) and biases of 0.

    Raises ConfigError for sizes below 1.
    """
    if min(models, features, dims) < 1:
        raise ConfigError(
            f"models, features and dimensions must be 1 or more, not {models}, {features} and {dims}"
        )
    deviation = math.sqrt(2 / (features + dims))
    weight = deviation * torch.randn(models, dims, features, generator=generator)  # [I, m, n]
    return ToyModels(weight, torch.zeros(models, features), relu=relu)


def losses(models: ToyModels, inputs: Inputs, importance: Tensor) -> Tensor:
    """Return the expected loss of each model [I], the weighted mean over the rows of ``inputs``.

    ``importance`` is [n], shared by all models, or [I, n].
    """
    error = models(inputs.x) - inputs.x  # [I, B, n]
    by_row = (error.square() * importance.unsqueeze(-2)).sum(-1)  # [I, B]
    return (by_row * inputs.weights).sum(-1)
