"""Feed-forward layers: plain (2017 Transformer, GPT, BERT) and gated (GLU and its family)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wordloom.errors import ConfigError, did_you_mean
from wordloom.nn.dropout import dropout
from wordloom.nn.fused import gelu_tanh, swiglu
from wordloom.nn.linear import Linear


class Swish(nn.Module):
    """x * sigmoid(beta * x) (Ramachandran et al. 2017, arXiv:1710.05941); beta is fixed or trained."""

    def __init__(self, *, beta: float = 1.0, learnt: bool = False) -> None:
        super().__init__()
        self.initial_beta = beta
        self.beta: Tensor | float = nn.Parameter(torch.tensor(beta)) if learnt else beta

    def reset_parameters(self) -> None:
        if isinstance(self.beta, nn.Parameter):
            nn.init.constant_(self.beta, self.initial_beta)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.beta * x)


def _identity(x: Tensor) -> Tensor:
    return x


ACTIVATIONS: dict[str, Callable[[], Callable[[Tensor], Tensor]]] = {
    "relu": lambda: F.relu,
    "gelu": lambda: F.gelu,  # exact: x * Phi(x), Hendrycks & Gimpel 2016, arXiv:1606.08415
    "gelu_tanh": lambda: gelu_tanh,  # the paper's approximation; GPT and GPT-2
    "silu": lambda: F.silu,
    "sigmoid": lambda: torch.sigmoid,  # gated: GLU itself
    "identity": lambda: _identity,  # gated: the bilinear layer
    "swish_learnt": lambda: Swish(learnt=True),
}


def activation(name: str | Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return the activation called ``name``, or ``name`` itself if it is a function.

    Raises ConfigError for an unknown name."""
    if not isinstance(name, str):
        return name
    if name not in ACTIVATIONS:
        raise ConfigError(f"unknown activation {name!r}; {did_you_mean(name, ACTIVATIONS)}")
    return ACTIVATIONS[name]()


class FeedForward(nn.Module):
    """down_proj(activation(up_proj(x))) (Vaswani et al. 2017, eq. 2): [.., D] -> [.., D].

    ``dropout`` acts on the activations, in training only.  Dropout after the layer belongs to the block, as
    in the papers.
    """

    def __init__(
        self,
        *,
        dim: int,
        hidden_dim: int,
        activation: str | Callable[[Tensor], Tensor] = "relu",
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.up_proj = Linear(dim, hidden_dim, bias=bias)
        self.down_proj = Linear(hidden_dim, dim, bias=bias)
        self.activation = _activation(activation)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.activation(self.up_proj(x))  # [.., F]
        if self.dropout:
            hidden = dropout(hidden, self.dropout, self.training)
        return self.down_proj(hidden)  # [.., D]


class GatedFeedForward(nn.Module):
    """down_proj(activation(gate_proj(x)) * up_proj(x)): GLU and family (Shazeer 2020, arXiv:2002.05202).

    ``sigmoid`` gives GLU, ``relu`` ReGLU, ``gelu`` GEGLU, ``silu`` SwiGLU; ``Swish(beta=...)`` may replace
    a name.  [.., D] -> [.., D].
    """

    def __init__(
        self,
        *,
        dim: int,
        hidden_dim: int,
        activation: str | Callable[[Tensor], Tensor] = "silu",
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.gate_proj = Linear(dim, hidden_dim, bias=bias)
        self.up_proj = Linear(dim, hidden_dim, bias=bias)
        self.down_proj = Linear(hidden_dim, dim, bias=bias)
        self.activation = _activation(activation)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_proj(x), self.up_proj(x)  # [.., F]
        gated = swiglu(gate, up) if self.activation is F.silu else self.activation(gate) * up
        return self.down_proj(gated)  # [.., D]


_activation = activation  # the constructors' keyword has the same name
