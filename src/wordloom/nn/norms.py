"""LayerNorm and RMSNorm, computed in float32 whatever the precision around them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wordloom.nn.fused import rms_norm


class LayerNorm(nn.Module):
    """Layer normalisation over the last dimension (Ba et al. 2016, arXiv:1607.06450, eq. 4).

    ``y = (x - mean) / sqrt(var + eps) * weight + bias`` with the biased variance.  The paper's sigma
    is replaced by the square root of the variance *plus eps*.

    [.., D] -> [.., D], in the dtype of the input; statistics are float32.
    """

    def __init__(self, dim: int, *, eps: float = 1e-5, bias: bool = True) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias: nn.Parameter | None
        self.register_parameter("bias", nn.Parameter(torch.zeros(dim)) if bias else None)

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.float()
        bias = None if self.bias is None else self.bias.float()
        return F.layer_norm(x.float(), weight.shape, weight, bias, self.eps).to(x.dtype)


class RMSNorm(nn.Module):
    """Root-mean-square normalisation (Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4).

    ``y = x / sqrt(mean(x^2) + eps) * (weight + offset)``: eps stands inside the root.  ``gain=False``
    omits the weight; ``offset=1.0`` is for models that store a zero-centred gain.

    [.., D] -> [.., D], in the dtype of the input; statistics are float32.
    """

    def __init__(self, dim: int, *, eps: float = 1e-6, gain: bool = True, offset: float = 0.0) -> None:
        super().__init__()
        self.dim = dim
        self.eps = eps
        self.offset = offset
        self.weight: nn.Parameter | None
        self.register_parameter("weight", nn.Parameter(torch.full((dim,), 1.0 - offset)) if gain else None)

    def reset_parameters(self) -> None:
        if self.weight is not None:
            nn.init.constant_(self.weight, 1.0 - self.offset)

    def forward(self, x: Tensor) -> Tensor:
        weight: Tensor | None = self.weight
        if weight is not None:
            weight = weight.float() + self.offset if self.offset else weight.float()
        return rms_norm(x, weight, self.eps)
