"""Choose the device, the precision and compilation, by what the machine can do."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from wordloom.errors import DeviceError
from wordloom.nn.linear import has_fast_bf16
from wordloom.nn.recurrent import Recurrent
from wordloom.recipe import TrainSettings

log = logging.getLogger(__name__)


def choose_device(name: str) -> torch.device:
    """Return the device called ``name``; ``auto`` takes CUDA, then MPS, then the CPU.

    Raises DeviceError for a device that is not there.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise DeviceError(f"unknown device {name!r}; allowed: auto, cpu, cuda, cuda:N, mps") from None
    there = {
        "cpu": True,
        "cuda": torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
    }
    if not there.get(device.type, False):
        raise DeviceError(f"device {name!r} is not on this machine; use 'auto' or 'cpu'")
    return device


@dataclass(frozen=True, kw_only=True)
class Precision:
    """The dtypes of weights and arithmetic in training."""

    device: torch.device
    # fp32, bf16 (autocast), bf16-pure (bf16 weights, float32 master copies), bf16-head (lm_head's products)
    mode: str

    @property
    def compute_dtype(self) -> torch.dtype:
        return torch.float32 if self.mode in ("fp32", "bf16-head") else torch.bfloat16

    @property
    def fastest_dtype(self) -> torch.dtype:
        """The fastest dtype in use; it sets the peak FLOP rate."""
        return torch.float32 if self.mode == "fp32" else torch.bfloat16

    @contextmanager
    def autocast(self) -> Iterator[None]:
        # the cache of casted weights would keep a bfloat16 copy of every weight alive across micro-batches
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.mode == "bf16"):
            yield

    def place(self, model: nn.Module, *, move: bool = True) -> nn.Module:
        """Give ``model`` the dtype of its weights, and ``move`` it to the device."""
        if self.mode == "bf16-head":
            model.lm_head.product_dtype = torch.bfloat16  # type: ignore[union-attr]
        dtype = torch.bfloat16 if self.mode == "bf16-pure" else torch.float32
        return model.to(device=self.device if move else None, dtype=dtype)


def choose_precision(settings: TrainSettings, device: torch.device) -> Precision:
    """Return the precision of ``settings``; ``auto`` is bf16 where it is faster, else fp32."""
    mode = settings.precision
    if mode == "auto":
        mode = "bf16" if has_fast_bf16(device) else "fp32"
    elif mode != "fp32" and not has_fast_bf16(device):
        log.warning(
            "precision '%s' gains no speed: this %s has no bfloat16 arithmetic; 'fp32' is as fast",
            mode,
            device.type,
        )
    return Precision(device=device, mode=mode)


def compile_blocks(model: Any, settings: TrainSettings, device: torch.device) -> str:
    """Compile each block in place if ``settings.compile`` asks for it; return a description for the log.

    With one graph for all layers, the first step comes sooner than with a graph of the whole model.  The
    results are also repeatable to the bit, which those of a whole graph were not.  ``auto`` compiles on CUDA;
    on a CPU, compiling took half a minute and saved nothing that could be measured.  If the compiler is
    missing, the model stays as it is and a warning says so.
    """
    if settings.compile == "off" or (settings.compile == "auto" and device.type != "cuda"):
        return "eager"
    if isinstance(model.blocks[0], Recurrent):  # a loop over steps would be unrolled
        return "eager (torch.compile has nothing to do: recurrent kernels are programs of their own)"
    missing = _missing_compiler(device)
    if missing is not None:
        log.warning("train.compile '%s': %s; running without torch.compile", settings.compile, missing)
        return f"eager ({missing})"
    torch._dynamo.config.suppress_errors = settings.compile == "auto"
    for block in model.blocks:
        block.compile(dynamic=False)
    return "compiled per block"


def _missing_compiler(device: torch.device) -> str | None:
    """Return what torch.compile needs and lacks for ``device`` on this machine, or None."""
    if device.type == "cuda":
        from torch.utils._triton import has_triton

        return None if has_triton() else "Triton is not installed or does not know this GPU"
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return "no C++ compiler was found (set CXX, or install g++)"
    return None
