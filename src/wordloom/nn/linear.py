"""The linear layer, and the routines that compute its products on a CPU.

16-bit numbers: where the CPU has no arithmetic for them, PyTorch widens them element by element inside the
product, which is 7 to 9 times slower than float32 with AVX2.  This layer widens both factors once, multiplies
in float32 and rounds the result.  The result equals a 16-bit product with float32 sums, at nearly the
speed of float32.

float32: PyTorch uses Intel's MKL.  On AMD processors with AVX512, the routine of oneDNN, which PyTorch
includes too, is a fifth to two fifths faster.
"""

from __future__ import annotations

import functools
import platform
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from wordloom.kernels.acceptance import fall_back, plain

LEAST_ROWS = 32  # of x: for fewer rows, widening the weight costs more than it saves
LEAST_PRODUCTS = 1 << 22  # of float32 numbers: for fewer, oneDNN's overhead is larger than its gain


@functools.cache
def has_fast_bf16(device: torch.device) -> bool:
    """Return whether matrix products in bfloat16 are faster than in float32; on CPUs AVX512-BF16 or AMX."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "mps":
        return True
    return has_amx() or _cpu_has("_is_avx512_bf16_supported")


def has_amx() -> bool:
    """Return whether this CPU multiplies whole tiles of bfloat16 (Intel's AMX)."""
    return _cpu_has("_is_amx_tile_supported")


def _cpu_has(probe: str) -> bool:
    return bool(getattr(torch.cpu, probe, lambda: False)())  # private, but the only ones torch has


@functools.cache
def _has_kernel(dtype: torch.dtype) -> bool:
    """Return whether PyTorch has an optimised CPU kernel for products of ``dtype``."""
    if not torch._C._has_mkldnn:
        return False
    probe = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}[dtype]
    return bool(getattr(torch.ops.mkldnn, probe)())


def autocasts(x: Tensor) -> bool:
    """Return whether autocast is on for the device of ``x``."""
    kind = x.device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def product_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which a product with ``x`` is computed: autocast's if it is on, else that of x."""
    if x.dtype == torch.float64 or not autocasts(x):
        return x.dtype
    return torch.get_autocast_dtype(x.device.type)


def widens(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether products of ``dtype`` on ``device`` are better computed in float32 and rounded."""
    if torch.compiler.is_compiling() or device.type != "cpu":
        return False
    return dtype in (torch.bfloat16, torch.float16) and not _has_kernel(dtype)


@functools.cache
def processor() -> str:
    """Return the processor's maker, family, model and name on Linux; elsewhere what Python reports."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text(errors="replace").splitlines() if about.is_file() else []
    facts = dict(
        reversed([(key.strip(), value.strip()) for key, _, value in (li.partition(":") for li in lines)])
    )
    names = [facts[key] for key in ("vendor_id", "cpu family", "model", "model name") if key in facts]
    return " ".join(names) or platform.processor()


@functools.cache
def mkl_is_a_guest() -> bool:
    """Return whether PyTorch runs MKL on an AMD processor with AVX512; measured on Zen 4."""
    if not torch._C.has_mkl or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    return "AuthenticAMD" in processor()


@functools.cache
def _onednn_is_faster() -> bool:
    """Return whether oneDNN's float32 products are faster than PyTorch's own choice here."""
    return torch._C._has_mkldnn and mkl_is_a_guest() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Return whether oneDNN computes x [N, in] weight [out, in]^T + bias faster than PyTorch's own choice.

    Only for plain float32 tensors on the CPU: oneDNN would read past what a tensor subclass computes.
    """
    if torch.compiler.is_compiling() or not _read_directly(x, weight, bias):
        return False
    if any(t.dtype != torch.float32 or t.device.type != "cpu" for t in (x, weight, bias) if t is not None):
        return False
    return x.numel() * weight.shape[0] >= LEAST_PRODUCTS and _onednn_is_faster()


def _read_directly(*tensors: Tensor | None) -> bool:
    """Return whether our products may read the memory of ``tensors``; if not, log the reason."""
    if plain(*tensors):
        return True
    kinds = {type(t).__name__ for t in tensors if not plain(t)}
    fall_back("Linear", f"a factor is a {' and a '.join(sorted(kinds))}")
    return False


def fastest_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``F.linear(x, weight, bias)`` by the fastest available routine, without gradients.

    x [.., in], weight [out, in], which may be a transpose, bias [out] or None -> [.., out].
    """
    if by_onednn(x, weight, bias):
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return F.linear(x, weight, bias)


class Linear(nn.Linear):
    """x [.., in] -> x weight^T + bias [.., out] by the fastest routine; see the module docstring.

    The gradient can be taken once, and not by ``torch.func``.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type == "cpu" and x.numel() >= LEAST_ROWS * self.in_features:
            dtype = product_dtype(x)
            # outside autocast, PyTorch refuses factors of two dtypes
            allowed = autocasts(x) or x.dtype == self.weight.dtype
            wide = allowed and widens(x.device, dtype) and _read_directly(x, self.weight, self.bias)
            if wide or (dtype == torch.float32 and by_onednn(x, self.weight, self.bias)):
                return _Product.apply(x, self.weight, self.bias, dtype)  # type: ignore[no-untyped-call]
        return F.linear(x, self.weight, self.bias)


class PackedLinear:
    """activation(x weight^T + bias) + residual on a CPU, by oneDNN, for many calls without gradients.

    The weight is copied once into the layout that the routine reads.  Activation and residual are computed
    while a tile of the product is in registers.  On Zen 4 this is 5 to 25 % faster than separate products.

    Args:
        weight, bias: ``[out, in]`` and ``[out]`` or None, copied: later changes have no effect.
        activation: one of :attr:`ACTIVATIONS`; equal to PyTorch's but for the last bits.
    """

    ACTIVATIONS: ClassVar[dict[str, tuple[str, str]]] = {
        "identity": ("none", ""),
        "relu": ("relu", ""),
        "gelu": ("gelu", "none"),
        "gelu_tanh": ("gelu", "tanh"),
    }

    def __init__(self, weight: Tensor, bias: Tensor | None, *, activation: str = "identity") -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous())
        self.bias = None if bias is None else bias.detach().to(weight.dtype)
        self.attr, self.algorithm = self.ACTIVATIONS[activation]

    @staticmethod
    def takes(weight: Tensor) -> bool:
        """Return whether there is a fast routine for the device and dtype of ``weight``."""
        if weight.device.type != "cpu" or not torch._C._has_mkldnn or not torch.backends.mkldnn.enabled:
            return False
        if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
            return False
        bf16 = weight.dtype == torch.bfloat16 and has_fast_bf16(weight.device)
        return weight.dtype == torch.float32 or bf16

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """x [.., in], residual [.., out] (only without an activation) -> [.., out]."""
        if residual is None:
            return torch.ops.mkldnn._linear_pointwise(
                x, self.weight, self.bias, self.attr, [], self.algorithm
            )
        return torch.ops.mkldnn._linear_pointwise.binary(x, residual, self.weight, self.bias, "add")


class _Product(torch.autograd.Function):
    """The product of numbers in ``dtype``, computed in float32 by the fastest routine, and rounded."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        low = x.to(dtype)
        ctx.save_for_backward(low, weight)
        ctx.dtypes = (dtype, x.dtype, None if bias is None else bias.dtype)
        with torch.autocast("cpu", enabled=False):
            wide_bias = None if bias is None else bias.to(dtype).float()
            return fastest_linear(low.float(), weight.to(dtype).float(), wide_bias).to(dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        low, weight = ctx.saved_tensors
        dtype, x_dtype, bias_dtype = ctx.dtypes
        rows = grad.float().reshape(-1, grad.shape[-1])  # [N, out]
        d_x = d_weight = d_bias = None
        with torch.autocast("cpu", enabled=False):
            if ctx.needs_input_grad[0]:
                d_x = fastest_linear(rows, weight.to(dtype).float().t()).view(low.shape).to(x_dtype)
            if ctx.needs_input_grad[1]:  # not by oneDNN, which would copy a transpose first
                d_weight = (rows.t() @ low.float().reshape(-1, low.shape[-1])).to(weight.dtype)
            if ctx.needs_input_grad[2]:
                d_bias = rows.sum(0).to(bias_dtype)
        return d_x, d_weight, d_bias, None
