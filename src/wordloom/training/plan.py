"""Predict the parameters, memory, operations and time of a run, from a few timed steps."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import psutil
import torch

from wordloom.data.batches.causal import to_device
from wordloom.errors import DeviceError
from wordloom.models import skeleton
from wordloom.models.building.cost import flops_per_token
from wordloom.models.building.lora import matching_layers
from wordloom.models.building.quantized import int8_bytes
from wordloom.nn.linear import widens
from wordloom.objectives import TruncatedBPTT
from wordloom.recipe import TrainSettings
from wordloom.training.lbfgs import HISTORY
from wordloom.training.optimizers import build_optimizer
from wordloom.training.precision import choose_device
from wordloom.training.ranks import is_spread, part_here, ranks_of_machine, shards_of
from wordloom.training.trainer import Trainer
from wordloom.training.weight_average import WeightAverage, restored_weights


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The cost of a sample: operations per token in training, and tokens.

    ``longer`` holds the share of the last steps that read longer samples, and the costs of those samples.
    """

    flops_per_token: int
    tokens_per_sample: float
    dense: bool  # the operations are mostly matrix products
    longer: tuple[float, Costs] | None = None

    def of_step(self, batch_size: int) -> Work:
        """Return the work of one step of ``batch_size`` samples."""
        tokens = round(batch_size * self.tokens_per_sample)
        return Work(tokens, float(self.flops_per_token * tokens))


class Work(NamedTuple):
    """Tokens read and operations computed by a number of steps."""

    tokens: int
    flops: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Predictions for a run: its largest memory in bytes, and the seconds of its first optimizer step."""

    parameters: int
    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    available_bytes: int
    costs: Costs
    batch_size: int
    peak_flops: float | None  # None: the steps are not matrix products
    step_seconds: float | None = None
    total_steps: int | None = None

    @property
    def memory_bytes(self) -> int:
        return self.weight_bytes + self.gradient_bytes + self.optimizer_bytes + self.activation_bytes

    def work(self, step: int) -> Work:
        """Return the work of the first ``step`` steps of ``total_steps``."""
        each, longer = self.costs.of_step(self.batch_size), self.costs.longer
        if longer is None or self.total_steps is None:
            return Work(step * each.tokens, step * each.flops)
        share, costs = longer
        more = costs.of_step(self.batch_size)
        last = max(0, step - (self.total_steps - round(share * self.total_steps)))
        first = step - last
        return Work(first * each.tokens + last * more.tokens, first * each.flops + last * more.flops)

    def lines(self) -> list[str]:
        """Return the plan as lines of text."""
        mb = 2**20
        lines = [
            f"parameters  {self.parameters:,}",
            f"memory      {self.memory_bytes / mb:,.0f} MB needed: weights {self.weight_bytes / mb:,.0f}, "
            f"gradients {self.gradient_bytes / mb:,.0f}, optimizer {self.optimizer_bytes / mb:,.0f}, "
            f"activations {self.activation_bytes / mb:,.0f}; {self.available_bytes / mb:,.0f} MB are free",
            f"compute     {self._compute(self.costs)}"
            + (f", at the end {self._compute(self.costs.longer[1])}" if self.costs.longer else "")
            + (f"; matrix peak here {self.peak_flops / 1e9:,.0f} GFLOP/s" if self.peak_flops else ""),
        ]
        if self.total_steps is not None:
            tokens, flops = self.work(self.total_steps)
            line = f"budget      {self.total_steps:,} steps = {tokens:,} tokens = {flops:.3g} FLOPs"
            if self.step_seconds is not None:
                expected = _duration(self.step_seconds * flops / self.work(1).flops)
                line += f", about {expected} at {self.step_seconds:.3g} s a step"
            lines.append(line)
        return lines

    def _compute(self, costs: Costs) -> str:
        tokens, flops = costs.of_step(self.batch_size)
        return f"{costs.flops_per_token:,} FLOPs per token, {flops:.3g} per step of {tokens:,} tokens"


def make_plan(
    trainer: Trainer, *, timed_steps: int, costs: Costs | None = None, ways: TuningMemory | None = None
) -> Plan:
    """Measure ``trainer`` without changing its weights and state.

    ``costs`` None means those of a causal language model on windows of ``seq_len`` tokens.  ``ways`` are the
    ways to tune the model, which an error names.

    Raises DeviceError when the run needs more memory than is free, and names three settings to change.
    """
    s = trainer.settings
    parameters = list(trainer.model.parameters())
    weights = sum(part_here(p).nbytes for p in (*parameters, *trainer.model.buffers()))
    gradients = sum(part_here(p).nbytes for p in parameters if p.requires_grad)
    count = _elements(trainer.optimizer.groups)
    muon = trainer.optimizer.parts.get("muon")
    in_muon = _elements(muon.param_groups) if muon else 0
    share = gradients / max(1, sum(p.nbytes for p in parameters if p.requires_grad))  # of this rank
    optimizer = _state_bytes(s) * (count - in_muon) + 4 * in_muon
    if costs is None:
        each = flops_per_token(trainer.model, context=s.seq_len).training
        costs = Costs(flops_per_token=each, tokens_per_sample=s.seq_len, dense=True)
    dtype = trainer.precision.fastest_dtype
    if trainer.optimizer.master is not None:
        optimizer += 8 * count  # master copies and their gradients
    if trainer.average is not None:
        optimizer += 4 * count
    micro = max(part.count for part in trainer.ranks.parts(s.batch_size, s.micro_batch_size))
    measured = 1 if costs.dense else micro  # samples; dense activations grow with their number
    plan = Plan(
        parameters=count,
        weight_bytes=weights,
        gradient_bytes=gradients,
        optimizer_bytes=round(share * optimizer),
        activation_bytes=_activation_bytes(trainer, measured) * (micro // measured),
        available_bytes=_available_bytes(trainer.device),
        costs=costs,
        batch_size=s.batch_size,
        peak_flops=_peak_of_ranks(trainer, dtype) if costs.dense else None,
    )
    if plan.memory_bytes > plan.available_bytes + weights:  # the weights are already there
        more = "" if ways is None else f"; {ways.advice(plan.activation_bytes)}"
        raise DeviceError(_too_much(plan.memory_bytes, plan.available_bytes) + smaller(s) + more)
    if not timed_steps:
        return plan
    return replace(plan, step_seconds=time_steps(trainer, timed_steps))


def _elements(groups: Iterable[dict[str, Any]]) -> int:
    return sum(p.numel() for group in groups for p in group["params"])


def _state_bytes(settings: TrainSettings) -> int:
    """Return the bytes of optimizer state per weight: two moments, or L-BFGS's pairs and four vectors."""
    return 4 * (2 * HISTORY + 4) if settings.optimizer == "lbfgs" else 8


def _bytes_per_weight(settings: TrainSettings) -> int:
    """Return the bytes of a trained weight, its gradient and its optimizer state."""
    each = 8 + _state_bytes(settings)  # weights and gradients
    each += 4 if settings.precision == "bf16-pure" else 0  # 2 + 2, and 4 + 4 + 8 for the masters
    return each + (4 if settings.ema else 0)


@dataclass(frozen=True)
class TuningMemory:
    """The bytes of weights, gradients and optimizer for each way to tune a model.

    Attributes:
        full: all weights are trained.
        lora: an adapter is trained.
        lora_int8: an adapter is trained over weights in 8 bits; None for a family that has none.
    """

    full: int
    lora: int
    lora_int8: int | None

    def line(self, activations: int) -> str:
        """Return the three ways with the bytes of ``activations`` added, as a line of text."""
        found = {"the whole model": self.full, "an adapter ([lora])": self.lora}
        if self.lora_int8 is not None:
            found['an adapter over 8 bits (lora.base = "int8")'] = self.lora_int8
        return "tuning      memory for " + ", ".join(
            f"{name} {(size + activations) / 2**20:,.0f} MB" for name, size in found.items()
        )

    def advice(self, activations: int) -> str:
        """Return the part of an error message that names the smaller ways."""
        ways = f"[lora] needs about {(self.lora + activations) / 2**30:.1f} GiB"
        if self.lora_int8 is not None:
            ways += f', and with lora.base = "int8" {(self.lora_int8 + activations) / 2**30:.1f} GiB'
        return ways


def tuning_memory(
    config: Any, settings: TrainSettings, *, rank: int, targets: Sequence[str], dora: bool = False
) -> TuningMemory:
    """Return the memory of each way to tune a model of ``config``, from its shapes alone.

    ``rank``, ``targets`` and ``dora`` are settings of the adapter.
    """
    model = skeleton(config)
    weights = sum(p.numel() for p in model.parameters())
    adapter = 0
    for name in matching_layers(model, targets):
        out_features, in_features = model.get_parameter(f"{name}.weight").shape
        adapter += rank * (in_features + out_features) + (out_features if dora else 0)
    each = _bytes_per_weight(settings)
    packed = int8_bytes(config)
    return TuningMemory(
        full=weights * each,
        lora=weights * 4 + adapter * each,
        lora_int8=None if packed is None else packed + adapter * each,
    )


def check_fits(
    config: Any,
    settings: TrainSettings,
    *,
    needed: int | None = None,
    ways: TuningMemory | None = None,
) -> None:
    """Raise DeviceError, before anything is allocated, if weights, gradients and optimizer do not fit.

    Args:
        config: the config of the model.
        settings: the settings of its training.
        needed: the bytes of all three; None: those of a model whose weights are all trained.
        ways: the ways to tune the model, which the error names.
    """
    available = _available_bytes(choose_device(settings.device))
    parameters = sum(p.numel() for p in skeleton(config).parameters())
    needed = parameters * _bytes_per_weight(settings) if needed is None else needed
    needed //= shards_of(settings.shard)
    if needed > available:
        instead = "lower model.n_layers, model.dim or the vocabulary" if ways is None else ways.advice(0)
        raise DeviceError(
            _too_much(needed, available)
            + f"before any activation: the model has {parameters:,} parameters; {instead}, or take a machine "
            "with more memory"
        )


def smaller(settings: TrainSettings) -> str:
    """Return the end of an error message: three settings that make a run smaller."""
    s = settings
    batch = "batch_size" if s.objective == "contrastive" else "micro_batch_size"
    third = "lower model.n_layers" if s.gradient_checkpointing else "set train.gradient_checkpointing = true"
    size = s.micro_batch_size or s.batch_size
    return f"lower train.{batch} (now {size}), lower train.seq_len (now {s.seq_len}), or {third}"


def _too_much(needed: float, available: float) -> str:
    return f"this run needs about {needed / 2**30:.1f} GiB and {available / 2**30:.1f} GiB are free; "


def time_steps(trainer: Trainer, steps: int) -> float:
    """Return the seconds of one optimizer step: the median of ``steps`` after one warm-up, all undone.

    Quick steps are timed for two seconds, because the first ones still allocate new memory, and for at most
    an eighth of the run.
    """
    most = max(steps + 1, min(16, trainer.total_steps // 8))
    times: list[float] = []
    try:
        with restored_weights(trainer.model):
            while len(times) < most:
                began = time.perf_counter()
                trainer.train_step()
                if trainer.device.type == "cuda":
                    torch.cuda.synchronize(trainer.device)
                times.append(trainer.ranks.from_first(time.perf_counter() - began))  # all stop together
                if (sum(times) > 60 and len(times) > 1) or (len(times) > steps and sum(times) > 2.0):
                    break
    finally:
        trainer.step = trainer.samples = 0
        _forget(trainer)
        trainer.model.zero_grad(set_to_none=True)
        settings = trainer.settings.model_copy(update={"precision": trainer.precision.mode})
        trainer.optimizer = build_optimizer(trainer.model, settings)
        if trainer.average is not None:
            trainer.average = WeightAverage(trainer.model, trainer.average.decay)
    timed = sorted(times[1:])
    return timed[len(timed) // 2]


def measure_peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Return the operations per second of a large matrix product, the best of a few in half a second."""
    if widens(device, dtype):
        dtype = torch.float32  # training computes its products in it, too
    return _peak_flops(device, dtype, torch.get_num_threads())


def _peak_of_ranks(trainer: Trainer, dtype: torch.dtype) -> float:
    """Return the operations per second of all ranks together, which measure at the same time."""
    peak = measure_peak_flops(trainer.device, dtype)
    return float(trainer.ranks.summed(torch.tensor(peak, dtype=torch.float64)))


@cache  # a property of the machine: later runs of this process need not measure it again
def _peak_flops(device: torch.device, dtype: torch.dtype, threads: int) -> float:
    n = 8192 if device.type == "cuda" else 1024
    generator = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(n, n, device=device, generator=generator).to(dtype) for _ in range(2))
    best = float("inf")
    deadline = time.perf_counter() + 0.4
    for _ in range(12):
        began = time.perf_counter()
        a @ b
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - began)
        if time.perf_counter() > deadline:
            break
    return 2 * n**3 / best


def _activation_bytes(trainer: Trainer, samples: int) -> int:
    """Return the bytes that a forward pass keeps for the backward pass: the storages autograd saves."""
    kept: dict[int, int] = {}

    def weights() -> set[int]:
        parameters = trainer.model.parameters()  # those of blocks on other ranks come and go
        return {p.untyped_storage().data_ptr() for p in parameters if not is_spread(p)}

    always = weights() if trainer.ranks.size == 1 else None

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in (weights() if always is None else always):
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # a saved output would hold its own graph, and with it the trainer

    widest = getattr(trainer.batches, "widest", None)  # where rows grow longer along the way
    batch: Any = widest(samples) if widest else trainer.batches.batch(0, samples)
    batch = to_device(batch, trainer.device)
    trainer.model.train()
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with trainer.gathered(), hooks, trainer.precision.autocast():
        loss = trainer.loss_of(batch)
        del loss
    _forget(trainer)
    return sum(kept.values())


def _forget(trainer: Trainer) -> None:
    """Drop the recurrent state of batches that do not count."""
    if isinstance(trainer.objective, TruncatedBPTT):
        trainer.objective.reset()


def _available_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return psutil.virtual_memory().available // ranks_of_machine()


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
