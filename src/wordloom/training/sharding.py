"""Spread a model over ranks with PyTorch's fully_shard (FSDP2; Zhao et al. 2023, arXiv:2304.11277).

- "none": each rank has all weights (data parallel).
- "full": each rank has an equal part of every weight, its gradient and its optimizer state, and gathers the
  weights of a block when it computes the block (also Rajbhandari et al. 2020, arXiv:1910.02054, stage 3).
- "hybrid": the ranks of a machine shard the weights, and machines have copies.

Gradients are summed over ranks, not averaged: the loss has been divided by the number of items on all ranks.
"""

from __future__ import annotations

import copy
import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from wordloom.nn.recurrent import Recurrent
from wordloom.objectives import Objective
from wordloom.training.optimizers import IN_BLOCK
from wordloom.training.ranks import Ranks, ranks_of_machine


class LossOf(nn.Module):
    """The loss of a model as a module, so that FSDP gathers the weights outside blocks before it."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model = model
        self._objective = [objective]  # not a module, even if it is one

    def forward(self, batch: Any) -> Any:
        return self._objective[0](self.model, batch)


def mesh_of(shard: str, ranks: Ranks, device: str) -> DeviceMesh:
    """Return the ranks as rows of copies and columns of shards."""
    machine = int(os.environ.get("LOCAL_WORLD_SIZE", ranks.size))
    columns = {"none": 1, "full": ranks.size, "hybrid": machine}[shard]
    shape = (ranks.size // columns, columns)
    return init_device_mesh(device, shape, mesh_dim_names=("copies", "shards"))


def shard_model(loss_of: LossOf, mesh: DeviceMesh, ranks: Ranks, *, low_precision: bool) -> None:
    """Spread the weights of a model over ``mesh``, in place: block by block, then the others together.

    Ranks whose weights are on the meta device receive them from the first rank of their machine.
    """
    copies, _ = mesh.shape
    grid = mesh if copies > 1 else mesh["shards"]
    whole = MixedPrecisionPolicy(cast_forward_inputs=False)
    low = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    for parameter in loss_of.parameters():
        parameter.data = parameter.data.contiguous()  # a weight that was read may be a transposed view
    machine = _machine_of_absent(loss_of, ranks)
    for name, module in list(loss_of.named_modules()):
        if is_block(name) and not isinstance(module, Recurrent):
            _receive(module, machine)
            fully_shard(module, mesh=grid, mp_policy=low if low_precision else whole)
    _receive(loss_of, machine)
    fully_shard(loss_of, mesh=grid, mp_policy=whole)
    for module in fsdp_modules(loss_of):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
    root: Any = loss_of
    root._get_fsdp_state()._lazy_init()  # else a block that is called alone, as in evaluation, is a root


def _machine_of_absent(model: nn.Module, ranks: Ranks) -> DeviceMesh | None:
    """Return the ranks of this machine if some rank has no weights; None if all have them."""
    absent = any(parameter.is_meta for parameter in model.parameters())
    if not ranks.summed(torch.tensor([absent], dtype=torch.int64)).any():
        return None
    each = ranks_of_machine()
    return init_device_mesh("cpu", (ranks.size // each, each), mesh_dim_names=("machines", "ranks"))["ranks"]


def _receive(module: nn.Module, machine: DeviceMesh | None) -> None:
    """Copy the weights of ``module`` that are not yet spread from the first rank of the machine."""
    if machine is None:
        return
    group = machine.get_group()
    for parameter in module.parameters():
        if isinstance(parameter, DTensor):
            continue
        tensor = torch.empty_like(parameter, device="cpu") if parameter.is_meta else parameter.detach()
        dist.broadcast(tensor, group=group, group_src=0)
        if parameter.is_meta:
            swap: Any = torch.utils.swap_tensors
            swap(parameter, nn.Parameter(tensor, parameter.requires_grad))


@contextmanager
def gathered(loss_of: Any) -> Iterator[None]:
    """Make weights ordinary tensors within the block: those outside blocks, and all if ranks have copies.

    The weights of other blocks are gathered when a block is called, which all ranks must do together.
    """
    modules: list[Any] = [each for each in fsdp_modules(loss_of) if each is loss_of or _has_copies(each)]
    for module in modules:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield
    finally:
        for module in modules:
            module.set_reshard_after_forward(module is not loss_of, recurse=False)
            module.reshard()


def _has_copies(module: Any) -> bool:
    """Return whether each rank has all weights of ``module``."""
    return all(p.device_mesh.shape[-1] == 1 for p in module.parameters() if isinstance(p, DTensor))


class WholeCopy:
    """A copy of a model in which the first rank assembles weights, to save them.

    It is made before the model is spread; outside :meth:`of`, its ``model`` is on the meta device.
    """

    def __init__(self, model: nn.Module) -> None:
        blank = {id(p): nn.Parameter(p.detach().to("meta"), p.requires_grad) for p in model.parameters()}
        self.model = copy.deepcopy(model, dict(blank))
        self._slots: dict[nn.Parameter, list[tuple[nn.Module, str]]] = defaultdict(list)
        for module in self.model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    self._slots[parameter].append((module, name))
        self._blank = dict(self.model.named_parameters())

    @contextmanager
    def of(self, model: nn.Module, ranks: Ranks) -> Iterator[nn.Module]:
        """Yield the model with the weights of ``model``, on the CPU; on other ranks without any."""
        for name, parameter in model.named_parameters():
            tensor = ranks.whole(parameter.detach())
            if ranks.is_first:
                self._fill(self._blank[name], nn.Parameter(tensor.cpu().clone(), parameter.requires_grad))
        try:
            yield self.model
        finally:
            for blank in self._blank.values():
                self._fill(blank, blank)

    def _fill(self, blank: nn.Parameter, parameter: nn.Parameter) -> None:
        for module, name in self._slots[blank]:
            module._parameters[name] = parameter


def is_block(name: str) -> bool:
    """Return whether ``name`` is of a whole block of a model, such as "model.blocks.3"."""
    head, _, number = name.rpartition(".")
    return number.isdecimal() and bool(IN_BLOCK.search(f"{head}."))


def fsdp_modules(module: nn.Module) -> list[FSDPModule]:
    """Return the modules within ``module`` whose weights are gathered together."""
    return [each for each in module.modules() if isinstance(each, FSDPModule)]
