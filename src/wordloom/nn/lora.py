"""Low-rank adapters of linear layers: LoRA (Hu et al. 2021), rank-stabilised LoRA and DoRA.

    LoRA     W' = W + s B A,  A [r, in], B [out, r],  s = alpha / r     (Hu et al. 2021, arXiv:2106.09685)
    rsLoRA   s = alpha / sqrt(r)                                        (Kalajdzievski 2023, arXiv:2312.03732)
    DoRA     W' = m (W + s B A) / |W + s B A|,  m [out], norms of rows  (Liu et al. 2024, arXiv:2402.09353)

Only A, B and m are trained.  B begins with zeros and m with the norms of W, so W' begins as W.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wordloom.errors import ConfigError
from wordloom.nn.dropout import dropout
from wordloom.nn.quantized import Int8Linear, float_weight

Base = nn.Linear | Int8Linear


@dataclass(frozen=True, kw_only=True)
class LoraSettings:
    """The settings of an adapter.

    Attributes:
        rank: r, the rank of the update.
        alpha: the numerator of the scale s.
        dropout: the share of the inputs of A that are dropped in training.
        rank_stabilised: divide alpha by sqrt(r) instead of r.
        dora: learn the norms of the rows apart from their directions.
    """

    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    rank_stabilised: bool = False
    dora: bool = False

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ConfigError(f"lora rank {self.rank} is not allowed; give 1 or more")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"lora dropout {self.dropout:g} is not allowed; give 0 to below 1")
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise ConfigError(f"lora alpha {self.alpha:g} is not allowed; give a number above 0")

    @property
    def scale(self) -> float:
        """The factor s of B A."""
        return self.alpha / (math.sqrt(self.rank) if self.rank_stabilised else self.rank)


class LowRank(nn.Module):
    """The update of one layer: A [r, in], B [out, r] and, for DoRA, the norms m [out]."""

    def __init__(self, base: Base, settings: LoraSettings) -> None:
        super().__init__()
        self.settings = settings
        out_features, in_features = base.out_features, base.in_features
        self.A = nn.Parameter(torch.empty(settings.rank, in_features))
        self.B = nn.Parameter(torch.empty(out_features, settings.rank))
        self.m = nn.Parameter(torch.empty(out_features)) if settings.dora else None

    @torch.no_grad()
    def init_weights(self, base: Base, generator: torch.Generator | None = None) -> None:
        """Initialise A uniformly within 1 / sqrt(in), as peft does, B with zeros, and m with W's norms."""
        bound = 1 / math.sqrt(base.in_features)
        self.A.uniform_(-bound, bound, generator=generator)
        self.B.zero_()
        if self.m is not None:
            self.m.copy_(float_weight(base).float().norm(dim=1))

    def update(self) -> Tensor:
        """Return s B A, [out, in], in float32."""
        return self.settings.scale * (self.B.float() @ self.A.float())

    def factors(self, base: Base) -> Tensor | None:
        """Return m / |W + s B A|, [out], of DoRA; its gradient flows to m alone (section 4.3)."""
        if self.m is None:
            return None
        with torch.no_grad(), torch.autocast(self.A.device.type, enabled=False):
            norms = (float_weight(base).float() + self.update()).norm(dim=1)
        return self.m / torch.where(norms == 0, 1, norms)  # a row of zeros stays one

    @torch.no_grad()
    def merged(self, base: Base) -> Tensor:
        """Return W', [out, in], in float32."""
        weight = float_weight(base).float() + self.update()
        factors = self.factors(base)
        return weight if factors is None else weight * factors[:, None]


class LoraLinear(nn.Module):
    """x [.., in] -> x W'^T + bias [.., out]: a linear layer with adapters, of which one or none is active.

    Attributes:
        base: the layer with W, which is not trained.
        adapters: the updates by name.
        active: the name of the adapter in use; None computes the base layer alone.
    """

    def __init__(self, base: Base) -> None:
        super().__init__()
        self.in_features, self.out_features = base.in_features, base.out_features
        self.base = base
        self.adapters = nn.ModuleDict()
        self.active: str | None = None

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x)
        if self.active is None:
            return out
        adapter = self.adapters[self.active]
        assert isinstance(adapter, LowRank)
        share = adapter.settings.dropout if self.training else 0.0
        dropped = dropout(x, share, True) if share else x
        taken = dropped if torch.is_autocast_enabled(x.device.type) else dropped.to(adapter.A.dtype)
        narrow = F.linear(taken, adapter.A) * adapter.settings.scale  # [.., r]
        factors = adapter.factors(self.base)
        if factors is None and narrow.dtype == out.dtype:  # one pass over [.., out], without a copy
            rows = out.reshape(-1, self.out_features), narrow.reshape(-1, adapter.settings.rank)
            return torch.addmm(*rows, adapter.B.t()).view(out.shape)
        update = F.linear(narrow, adapter.B)  # [.., out]
        if factors is None:
            return out + update.to(out.dtype)
        bias = self.base.bias
        product = self._product(dropped, out, bias, share)
        return out + ((factors - 1) * product + factors * update).to(out.dtype)

    def _product(self, dropped: Tensor, out: Tensor, bias: Tensor | None, share: float) -> Tensor:
        """Return ``dropped`` W^T, [.., out]; without dropout it is ``out`` without bias."""
        if share:
            return F.linear(dropped, float_weight(self.base).to(dropped.dtype))
        return out if bias is None else out - bias
