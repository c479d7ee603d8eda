"""Modified linear layers, as adapters and parametrizations make them, and the matrix that each stands for."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize


class LowRank(nn.Module):
    """A low-rank adapter around a layer, which delegates unknown attributes to it, as wrappers often do."""

    def __init__(self, layer: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.layer = layer
        self.down = nn.Parameter(0.3 * torch.randn(rank, layer.in_features))
        self.up = nn.Parameter(0.3 * torch.randn(layer.out_features, rank))

    def __getattr__(self, name: str):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer"), name)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + F.linear(F.linear(x, self.down), self.up)

    @property
    def matrix(self) -> Tensor:
        return self.layer.weight + self.up @ self.down


class Scaled(nn.Module):
    """A parametrization: each row of the matrix times a number of its own."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(1.0 + 0.3 * torch.randn(rows, 1))

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.scale


class Doubled(nn.Parameter):
    """A weight whose products are twice those of its memory, as a quantized weight's are not its bytes."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            if func is F.linear:
                x, weight, *bias = args
                return F.linear(x, 2 * weight.as_subclass(Tensor), *bias)
            return func(*args, **(kwargs or {}))


def low_rank(parent: nn.Module, name: str) -> None:
    setattr(parent, name, LowRank(getattr(parent, name)))


def parametrized(parent: nn.Module, name: str) -> None:
    layer = getattr(parent, name)
    parametrize.register_parametrization(layer, "weight", Scaled(layer.out_features))


def doubled(parent: nn.Module, name: str) -> None:
    layer = getattr(parent, name)
    layer.weight = Doubled(layer.weight.detach().clone())


def hooked(parent: nn.Module, name: str) -> None:
    getattr(parent, name).register_forward_hook(lambda _module, _given, out: 2 * out)


WAYS = {"low rank": low_rank, "parametrized": parametrized, "tensor subclass": doubled, "hook": hooked}


def matrix(layer: nn.Module) -> Tensor:
    """The matrix that ``layer``, modified in one of WAYS, multiplies by."""
    if isinstance(layer, LowRank):
        return layer.matrix
    twice = bool(layer._forward_hooks) or type(layer.weight) is Doubled
    return layer.weight.as_subclass(Tensor) * (2.0 if twice else 1.0)
