"""A training step of one rank among many, without their memory: PyTorch's fake ranks and fake tensors.

The step is the trainer's: its sharding, precision, loss, gradient checkpointing and optimizer.  Fake tensors
have shapes and no numbers, so kernels that read numbers are replaced by what a GPU runs.

    python -m tests.run.planning.simulated_step < cases.json        a JSON list of cases -> one of bytes
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.tensor import _sharding_prop
from torch.nn import functional as F

from wordloom.data.batches.causal import CausalBatch
from wordloom.models import PRESETS, checks, gpt, gpt2, skeleton
from wordloom.models.building.build import build, config_from
from wordloom.models.building.lora import add_adapter, matching_layers
from wordloom.nn import fused, head, linear, norms
from wordloom.nn.attention import layer, positions_and_visibility
from wordloom.nn.lora import LoraSettings
from wordloom.objectives import causal_lm
from wordloom.recipe import TrainSettings
from wordloom.training import optimizers
from wordloom.training.gradient_checkpointing import checkpoint_blocks
from wordloom.training.optimizers import build_optimizer
from wordloom.training.precision import Precision
from wordloom.training.ranks import Ranks, part_here
from wordloom.training.sharding import LossOf, mesh_of, shard_model


class RMSNorm(torch.autograd.Function):
    """The memory of the one kernel that a GPU runs: it keeps its input and a number for each row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, x.new_empty(*x.shape[:-1], 1))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


def softmax_error(
    logits: Tensor, targets: Tensor, *, ignore_index: int, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """That of :mod:`wordloom.nn.fused` on a GPU, which reads no number."""
    scored = targets != ignore_index
    log_probability = F.log_softmax(logits, dim=-1, dtype=torch.float32)
    loss = F.nll_loss(log_probability, targets, ignore_index=ignore_index, reduction="sum")
    grad = log_probability.exp_()
    grad.scatter_add_(1, targets.masked_fill(~scored, 0)[:, None], -scored[:, None].to(grad.dtype))
    grad.mul_(scored[:, None])
    return loss, grad.to(logits.dtype)


def replace_kernels() -> None:
    """Replace what reads numbers, the type of a tensor or this CPU's name by what takes memory on a GPU."""
    for module in (linear, layer, head):
        module.widens = lambda *_: False
    layer._faster_in_float32 = lambda *_: False
    head.modification, head.plain = (lambda *_: ""), (lambda *_: True)
    head.softmax_error = softmax_error
    norms.rms_norm = lambda x, weight, eps: RMSNorm.apply(x.float(), weight).to(x.dtype)
    checks._highest = lambda _: -1
    optimizers.has_fast_bf16 = lambda _: True
    _sharding_prop.detect_fake_mode = lambda *_: None  # shapes of whole tensors are not memory of this rank
    for module in (gpt, gpt2):
        module.positions_within = lambda positions, _: positions


def config_of(case: dict[str, Any]) -> Any:
    """Return the config of a case: ``preset`` with changes, or ``family`` and all settings, in ``model``."""
    if "preset" in case:
        return type(PRESETS[case["preset"]])(**{**vars(PRESETS[case["preset"]]), **case["model"]})
    return config_from(case["family"], **case["model"])


def simulated_bytes(case: dict[str, Any]) -> int:
    """Return the peak of a step of the first of ``ranks`` ranks."""
    settings = TrainSettings.model_validate(case["train"])
    N, rows, T = case["ranks"], case["rows"], settings.seq_len
    mesh = None
    if N > 1:
        os.environ["LOCAL_WORLD_SIZE"] = str(case["per_machine"])
        dist.init_process_group("fake", rank=0, world_size=N)
        mesh = mesh_of(settings.shard, Ranks(0, N), "cpu")
    precision = Precision(device=torch.device("cpu"), mode=settings.precision)
    model: Any = skeleton(config_of(case))
    if settings.precision == "bf16-pure":
        model = model.to(torch.bfloat16)
    if "lora" in case:
        with torch.device("meta"):
            add_adapter(model, LoraSettings(rank=case["lora"]), matching_layers(model, ["*_proj"]))
    if settings.precision == "bf16-head":
        model.lm_head.product_dtype = torch.bfloat16
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            model = model.to_empty(device="cpu").train()
            if hasattr(model, "tie_weights"):
                model.tie_weights()
            loss_of = LossOf(model, causal_lm)
            if mesh is not None:
                shard_model(loss_of, mesh, Ranks(0, N), low_precision=settings.precision == "bf16")
            if settings.gradient_checkpointing:
                checkpoint_blocks(model)
            optimizer = build_optimizer(model, settings)
            states = {"adamw": 2, "muon": 1, "sgd": int(settings.momentum > 0)}
            for name, part in optimizer.parts.items():  # as after a first step
                for group in part.param_groups:
                    for p in group["params"]:
                        state = part.state[p]
                        names = ["momentum_buffer", "exp_avg_sq"][: states[name]]
                        state.update({key: torch.zeros_like(p) for key in names})
            numbers = torch.zeros(rows, T, dtype=torch.int64)
            batch = CausalBatch(numbers, numbers, torch.arange(T)[None].expand(rows, T), None)
            peak = _tracked(loss_of, optimizer, precision, batch, parts=case["parts"])
            if optimizer.master is not None:  # float32 weights and gradients, which the tracker does not see
                peak += sum(2 * part_here(p).nbytes for p in optimizer.master.full.values())
    finally:
        if mesh is not None:
            dist.destroy_process_group()
    return peak


def _tracked(loss_of: LossOf, optimizer: Any, precision: Precision, batch: Any, *, parts: int) -> int:
    """Return the peak of the forward and backward passes of ``parts`` micro-batches, and of Muon's step."""
    first = next(iter(optimizer.parts.values()))
    tracker: Any
    if dist.is_initialized():
        tracker = FSDPMemTracker(loss_of, first)
    else:
        tracker = MemTracker()
        tracker.track_external(loss_of, first)
    others = [part.state for part in optimizer.parts.values() if part is not first]
    unseen = sum(part_here(t).nbytes for state in others for each in state.values() for t in each.values())
    with tracker:
        for _ in range(parts):
            with precision.autocast():
                loss = loss_of(batch)
            torch.autograd.backward(loss.total / 7)
            del loss
            tracker.reset_mod_stats()  # it knows one pass; the peak stays
        if "muon" in optimizer.parts:
            optimizer.parts["muon"].step()
    (snapshot,) = tracker.get_tracker_snapshot("peak").values()
    return int(snapshot["Total"]) + unseen


def compiled_block_bytes(case: dict[str, Any]) -> int:
    """Return the bytes that a block keeps for the backward pass if torch.compile cuts its graph in two."""
    for module in (linear, fused):
        module.by_onednn = lambda *_: False
    fused.fits = fused.attention_fits = lambda *_, **__: False
    model: Any = build(config_of(case)).train()
    block = model.blocks[0].to(torch.bfloat16)
    block.compile(dynamic=False, backend="aot_eager_decomp_partition")
    dtype = torch.float32 if case["compiled_block"] == "bf16" else torch.bfloat16
    x = torch.randn(case["rows"], case["seq_len"], model.config.dim, dtype=dtype, requires_grad=True)
    positions, visibility = positions_and_visibility(torch.zeros(x.shape[:2], dtype=torch.int64))
    more = (model.rotary.angles(positions),) if case["family"] == "llama" else ()
    shared = [*model.parameters(), x, *(angles for pair in more for angles in pair)]
    known = {tensor.untyped_storage().data_ptr() for tensor in shared}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor  # keeps it, so that no other takes its place
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    mixed = torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.float32, cache_enabled=False)
    with hooks, mixed:
        block(x, *more, visibility, None)
    own = sum(tensor.untyped_storage().nbytes() for place, tensor in kept.items() if place not in known)
    return own + (x.nbytes if x.untyped_storage().data_ptr() in kept else 0)


def peak_of(case: dict[str, Any]) -> int:
    return compiled_block_bytes(case) if "compiled_block" in case else simulated_bytes(case)


if __name__ == "__main__":
    replace_kernels()
    given = json.load(sys.stdin)
    if any("compiled_block" in case for case in given):
        norms.rms_norm = fused.rms_norm  # the compiler takes it apart
    print(json.dumps([peak_of(case) for case in given]))
