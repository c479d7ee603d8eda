"""Optimizers: fused AdamW, Muon with AdamW, SGD, and L-BFGS.

Muon trains the matrices of the blocks, and AdamW the other parameters.  Weight decay, and L-BFGS's l2, act on
matrices only, never on gains, biases and other vectors.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from wordloom.nn.linear import has_fast_bf16
from wordloom.recipe import TrainSettings
from wordloom.training.lbfgs import LBFGS
from wordloom.training.ranks import is_spread, spread_as, whole

# Parameters within Transformer blocks: of a model, of a body under a head, of an encoder and a decoder.
IN_BLOCK = re.compile(r"(^|\.)((en|de)coder_)?blocks\.")
# Coefficients of the quintic Newton-Schulz iteration (K. Jordan, "Muon", 2024): steepest at zero, so that
# five rounds bring every singular value into about [0.7, 1.2].
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


class Muon(torch.optim.Muon):
    """torch.optim.Muon with matrices of one shape orthogonalised together.

    The update is that of Jordan 2024 and Liu et al. 2025 (arXiv:2502.16982), in one batched product where
    torch makes many small ones.  CPUs without bfloat16 arithmetic compute in float32, because bfloat16
    products are several times slower there.
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
        matrices = torch.stack([whole(update) for update in updates])
        stacked = orthogonalise(matrices, steps=group["ns_steps"], eps=group["eps"]).to(params[0].dtype)
        lr = group["lr"] * math.sqrt(max(1.0, shape[0] / shape[1]))
        weights: list[Tensor] = list(params)
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        steps = [spread_as(p, step) for p, step in zip(params, stacked, strict=True)]
        torch._foreach_add_(weights, steps, alpha=-lr)


def orthogonalise(matrices: Tensor, *, steps: int = 5, eps: float = 1e-7) -> Tensor:
    """Return ``matrices`` [N, R, C] with singular values near 1, by Newton-Schulz iteration."""
    a, b, c = _NEWTON_SCHULZ
    x = matrices.to(torch.bfloat16 if has_fast_bf16(matrices.device) else torch.float32)
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.transpose(-2, -1)  # [N, C, R]
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.transpose(-2, -1)  # [N, min(R, C), min(R, C)]
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
    """One or two torch optimizers that share a schedule, or L-BFGS; the groups hold the peak rates.

    ``names`` are those of the parameters, for a state that does not depend on their order.
    """

    def __init__(
        self,
        parts: dict[str, torch.optim.Optimizer],
        names: dict[Tensor, str],
        master: MasterWeights | None,
        lbfgs: LBFGS | None = None,
    ) -> None:
        self.parts = parts
        self.lbfgs = lbfgs  # instead of the parts
        self.names = names
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
        if self.lbfgs is not None:
            return self.lbfgs.param_groups
        return [group for part in self.parts.values() for group in part.param_groups]

    @property
    def learning_rate(self) -> float:
        """The last step's learning rate, of AdamW if it is beside Muon; for L-BFGS the step length."""
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
        """Take one step with the gradients of the parameters and the mean ``loss``."""
        if self.lbfgs is not None:
            self.lbfgs.evaluated(loss)
        for part in self.parts.values():
            part.step()
        if self.master is not None:
            self.master.write_back()

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the state as ``optimizer.<parameter>.<name>``, and the master weights."""
        memory = {} if self.lbfgs is None else self.lbfgs.memory
        tensors = {f"optimizer.lbfgs.{name}": value for name, value in memory.items()}
        for part in self.parts.values():
            for parameter, state in part.state.items():
                for key, value in state.items():
                    tensors[f"optimizer.{self.names[parameter]}.{key}"] = value
        if self.master is not None:
            for parameter in self.master.full.values():
                tensors[f"master.{self.names[parameter]}"] = parameter.detach()
        return tensors

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state of :meth:`state_tensors`; the keys must be exactly those of this optimizer."""
        if self.lbfgs is not None:
            for name, value in self.lbfgs.memory.items():
                value.copy_(tensors[f"optimizer.lbfgs.{name}"])
        for part in self.parts.values():
            for group in part.param_groups:
                for parameter in group["params"]:
                    prefix, state = f"optimizer.{self.names[parameter]}.", dict[str, Tensor]()
                    for key in (key for key in tensors if key.startswith(prefix)):
                        name, value = key.removeprefix(prefix), tensors[key]
                        # torch keeps AdamW's step counter on the CPU unless fused on CUDA
                        on_cpu = name == "step" and not parameter.is_cuda
                        given = value.clone() if on_cpu else value.to(parameter.device)
                        state[name] = spread_as(parameter, given)
                    part.state[parameter] = state
        if self.master is not None:
            with torch.no_grad():
                for parameter in self.master.full.values():
                    parameter.copy_(spread_as(parameter, tensors[f"master.{self.names[parameter]}"]))


def build_optimizer(model: nn.Module, settings: TrainSettings) -> Optimizer:
    """Return the optimizer of ``settings`` over the trained parameters of ``model``, each shared one once."""
    s = settings
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    master = MasterWeights(trained.values()) if s.precision == "bf16-pure" else None
    named = {name: p if master is None else master.of(p) for name, p in trained.items()}
    names: dict[Tensor, str] = {p: name for name, p in named.items()}
    in_muon = {name for name, p in named.items() if p.ndim == 2 and IN_BLOCK.search(name)}
    muon = [named[name] for name in named if name in in_muon and s.optimizer == "muon"]
    matrices = [p for name, p in named.items() if p.ndim >= 2 and not (muon and name in in_muon)]
    vectors = [p for p in named.values() if p.ndim < 2]
    decay = "l2" if s.optimizer == "lbfgs" else "weight_decay"
    groups = [{"params": matrices, decay: getattr(s, decay)}, {"params": vectors, decay: 0.0}]
    groups = [group for group in groups if group["params"]]
    if s.optimizer == "lbfgs":
        return Optimizer({}, names, master, LBFGS(groups, tolerance=s.tolerance))
    parts: dict[str, torch.optim.Optimizer] = {}
    first = next(model.parameters())
    fused = first.device.type in ("cpu", "cuda")
    if s.optimizer == "sgd":
        fused = fused and not is_spread(first)  # PyTorch has no fused SGD of distributed tensors
        parts["sgd"] = torch.optim.SGD(groups, lr=s.learning_rate, momentum=s.momentum, fused=fused)
    elif groups:  # of an adapter, Muon trains all
        betas = (s.beta1, s.beta2)
        parts["adamw"] = torch.optim.AdamW(
            groups, lr=s.learning_rate, betas=betas, eps=s.epsilon, fused=fused
        )
    if muon:
        parts["muon"] = Muon(
            muon, lr=s.muon_learning_rate, momentum=s.muon_momentum, weight_decay=s.weight_decay
        )
    return Optimizer(parts, names, master)
