"""Optimizers: fused AdamW, Muon for the blocks' matrices with AdamW for the rest, SGD, and L-BFGS.

Weight decay, and L-BFGS's l2, act on matrices only: gains, biases and other vectors are left alone.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from wordloom.nn.linear import has_fast_bf16
from wordloom.recipe import TrainSettings
from wordloom.training.lbfgs import LBFGS

__all__ = ["MasterWeights", "Muon", "Optimizer", "build_optimizer", "orthogonalise"]

# Parameters within Transformer blocks: of a model, of a body under a head, of an encoder and a decoder.
_IN_BLOCK = re.compile(r"(^|\.)((en|de)coder_)?blocks\.")
# Coefficients of the quintic Newton-Schulz iteration (K. Jordan, "Muon", 2024): steepest at zero, so that
# five rounds bring every singular value into about [0.7, 1.2].
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


class Muon(torch.optim.Muon):
    """torch.optim.Muon with matrices of one shape orthogonalised together.

    The same update (Jordan 2024; Liu et al. 2025, arXiv:2502.16982), in one batched product where torch
    makes many small ones, and in float32 on CPUs without bfloat16 arithmetic, where torch's bfloat16
    products are several times slower.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            shapes: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    shapes[p.shape].append(p)
            for shape, params in shapes.items():
                self._update(params, shape, group)

    def _update(self, params: list[nn.Parameter], shape: torch.Size, group: dict[str, Any]) -> None:
        buffers = []
        for p in params:
            state = self.state[p]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(p)
            buffers.append(state["momentum_buffer"])
        grads = [p.grad for p in params if p.grad is not None]
        torch._foreach_lerp_(buffers, grads, 1 - group["momentum"])
        updates = torch._foreach_lerp(grads, buffers, group["momentum"]) if group["nesterov"] else buffers
        stacked = orthogonalise(torch.stack(list(updates)), steps=group["ns_steps"], eps=group["eps"])
        lr = group["lr"] * math.sqrt(max(1.0, shape[0] / shape[1]))
        weights: list[Tensor] = list(params)
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(weights, list(stacked.to(params[0].dtype)), alpha=-lr)


def orthogonalise(matrices: Tensor, *, steps: int = 5, eps: float = 1e-7) -> Tensor:
    """Each of ``matrices`` [N, R, C] with its singular values brought near 1, by Newton-Schulz iteration."""
    a, b, c = _NEWTON_SCHULZ
    x = matrices.to(torch.bfloat16 if has_fast_bf16(matrices.device) else torch.float32)
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.transpose(-2, -1)
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.transpose(-2, -1)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.transpose(-2, -1) if tall else x


class MasterWeights:
    """Float32 copies of bfloat16 parameters, for the optimizer to work on ("bf16-pure")."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.low = [p for p in parameters if p.dtype == torch.bfloat16]
        self.full = {p: nn.Parameter(p.detach().float()) for p in self.low}

    def of(self, parameter: nn.Parameter) -> nn.Parameter:
        return self.full.get(parameter, parameter)

    def collect_gradients(self) -> None:
        for p in self.low:
            self.full[p].grad = None if p.grad is None else p.grad.float()

    @torch.no_grad()
    def write_back(self) -> None:
        for p in self.low:
            p.copy_(self.full[p])


class Optimizer:
    """One or two torch optimizers that share a schedule, or L-BFGS; peak rates are kept in the groups."""

    def __init__(
        self,
        parts: dict[str, torch.optim.Optimizer],
        names: dict[Tensor, str],
        master: MasterWeights | None,
        lbfgs: LBFGS | None = None,
    ) -> None:
        self.parts = parts
        self.lbfgs = lbfgs  # instead of the parts
        self.names = names  # of the parameters the parts hold, for a state that outlives their order
        self.master = master
        for part in parts.values():
            for group in part.param_groups:
                group["peak"] = group["lr"]

    def set_learning_rate(self, share: float) -> None:
        for part in self.parts.values():
            for group in part.param_groups:
                group["lr"] = group["peak"] * share

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The parameter groups of all parts."""
        if self.lbfgs is not None:
            return self.lbfgs.param_groups
        return [group for part in self.parts.values() for group in part.param_groups]

    @property
    def learning_rate(self) -> float:
        """The learning rate of the last step: that of AdamW's part, or the step length of L-BFGS."""
        return float(self.groups[0]["lr"])

    @property
    def converged(self) -> bool:
        """True if L-BFGS has converged; always False for the other optimizers."""
        return self.lbfgs is not None and self.lbfgs.converged

    @property
    def shortens(self) -> bool:
        """True if a loss that is not finite only shortens the step, as within a search of L-BFGS."""
        return self.lbfgs is not None and self.lbfgs.searching

    def step(self, loss: float) -> None:
        """One step from the gradients that the parameters hold; ``loss`` is the mean they are of."""
        if self.lbfgs is not None:
            self.lbfgs.evaluated(loss)
        for part in self.parts.values():
            part.step()
        if self.master is not None:
            self.master.write_back()

    def state_tensors(self) -> dict[str, Tensor]:
        """Every tensor of the state as ``optimizer.<parameter>.<what>``, and the master weights."""
        tensors = {}
        if self.lbfgs is not None:
            tensors = {f"optimizer.lbfgs.{name}": value for name, value in self.lbfgs.memory.items()}
        for part in self.parts.values():
            for parameter, state in part.state.items():
                for key, value in state.items():
                    tensors[f"optimizer.{self.names[parameter]}.{key}"] = value
        if self.master is not None:
            for parameter in self.master.full.values():
                tensors[f"master.{self.names[parameter]}"] = parameter.detach()
        return tensors

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """The inverse of :meth:`state_tensors`; the keys must be exactly those of this optimizer."""
        if self.lbfgs is not None:
            for name, value in self.lbfgs.memory.items():
                value.copy_(tensors[f"optimizer.lbfgs.{name}"])
        for part in self.parts.values():
            for group in part.param_groups:
                for parameter in group["params"]:
                    prefix = f"optimizer.{self.names[parameter]}."
                    state = {k[len(prefix) :]: value for k, value in tensors.items() if k.startswith(prefix)}
                    # torch keeps AdamW's step counter on the CPU unless fused on CUDA
                    part.state[parameter] = {
                        key: value.clone()
                        if key == "step" and not parameter.is_cuda
                        else value.to(parameter.device)
                        for key, value in state.items()
                    }
        if self.master is not None:
            with torch.no_grad():
                for parameter in self.master.full.values():
                    parameter.copy_(tensors[f"master.{self.names[parameter]}"])


def build_optimizer(model: nn.Module, settings: TrainSettings) -> Optimizer:
    """The optimizer of ``settings`` over ``model``'s parameters (each shared tensor once)."""
    s = settings
    master = MasterWeights(model.parameters()) if s.precision == "bf16-pure" else None
    named = {name: p if master is None else master.of(p) for name, p in model.named_parameters()}
    names: dict[Tensor, str] = {p: name for name, p in named.items()}
    muon = [
        p for name, p in named.items() if s.optimizer == "muon" and p.ndim == 2 and _IN_BLOCK.search(name)
    ]
    taken = {id(p) for p in muon}
    matrices = [p for p in named.values() if p.ndim >= 2 and id(p) not in taken]
    vectors = [p for p in named.values() if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": s.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    if s.optimizer == "lbfgs":
        penalised = [
            {"params": group["params"], "l2": l2}
            for group, l2 in zip(groups, (s.l2, 0.0), strict=True)
            if group["params"]
        ]
        return Optimizer({}, names, master, LBFGS(penalised, tolerance=s.tolerance))
    device = next(model.parameters()).device.type
    if s.optimizer == "sgd":
        given = [group for group in groups if group["params"]]
        sgd = torch.optim.SGD(given, lr=s.learning_rate, momentum=s.momentum, fused=device in ("cpu", "cuda"))
        return Optimizer({"sgd": sgd}, names, master)
    parts: dict[str, torch.optim.Optimizer] = {
        "adamw": torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=s.learning_rate,
            betas=(s.beta1, s.beta2),
            eps=s.epsilon,
            fused=device in ("cpu", "cuda"),
        )
    }
    if muon:
        parts["muon"] = Muon(
            muon, lr=s.muon_learning_rate, momentum=s.muon_momentum, weight_decay=s.weight_decay
        )
    return Optimizer(parts, names, master)
