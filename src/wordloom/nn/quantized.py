"""Weights in 8 bits: groups of 64 signed integers with a scale each, made from a model's float weights.

A weight is the product of its integer and the scale of its group.  The scale is a bfloat16, and the largest
number of a group is 127 scales or a little less.  With the scales, a weight takes 8.25 bits.

A product with such a weight takes its other factor in groups of 16-bit integers (:func:`narrowed`), so that
compiled programs multiply integers.  This rounding is some hundred times finer than that of the weights.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from wordloom.kernels import GROUP
from wordloom.nn.linear import has_fast_bf16, product_dtype

# With fast bfloat16, more rows than this are multiplied in it; up to here the programs are as fast (Zen 4).
MOST_EXACT_ROWS = 64
_BEHIND = 16  # scales: compiled programs read whole vectors


def quantize(weight: Tensor) -> Tensor:
    """Return weight [N, K] in 8 bits: [N * K' + 2 * N * K' / 64 + 32] bytes, K' being K rounded up to 64s.

    These are the integers [N, K'], then the scales [N, K' / 64] and zeros.
    """
    N, K = weight.shape
    if weight.is_meta:  # PyTorch would import its compiler and take milliseconds for each operation
        n_groups = N * -(-K // GROUP)
        return weight.new_empty(n_groups * GROUP + 2 * (n_groups + _BEHIND), dtype=torch.uint8)
    groups = F.pad(weight.detach().float(), (0, -K % GROUP)).view(N, -1, GROUP)  # [N, G, 64]
    exact = groups.abs().amax(dim=-1) / 127
    scales = exact.to(torch.bfloat16)  # rounded to nearest, and then up, so that no integer exceeds 127
    above = (scales.view(torch.int16) + 1).view(torch.bfloat16)
    scales = torch.where(scales.float() < exact, above, scales)
    divisor = torch.where(scales == 0, 1, scales).float()
    integers = (groups / divisor[..., None]).round().to(torch.int8)
    scales = F.pad(scales.flatten(), (0, _BEHIND))
    return torch.cat([integers.view(torch.uint8).flatten(), scales.view(torch.uint8)])


def dequantize(packed: Tensor, N: int, K: int, rows: Tensor | None = None) -> Tensor:
    """Return the float32 numbers [N, K] that :func:`quantize` kept, or the ``rows`` [*] of them [*, K]."""
    integers, scales = _parts(packed, N, K)
    if rows is not None:
        integers, scales = integers[rows], scales[rows]
    wide = integers.float() * scales.float()
    return wide.flatten(-2)[..., :K]


def _parts(packed: Tensor, N: int, K: int) -> tuple[Tensor, Tensor]:
    """Return the integers [N, K' / 64, 64] and the scales [N, K' / 64, 1] that :func:`quantize` kept."""
    groups = -(-K // GROUP)
    integers = packed[: N * groups * GROUP].view(torch.int8).view(N, groups, GROUP)
    return integers, packed[N * groups * GROUP :].view(torch.bfloat16)[: N * groups].view(N, groups, 1)


def narrowed(x: Tensor) -> Tensor:
    """Return x [.., K] rounded to groups of 64 integers of 16 bits, the largest being 32,767, as float32.

    A group with NaN or infinity becomes NaN; one with nothing above 1e-30 becomes zeros.
    """
    K = x.shape[-1]
    groups = F.pad(x.float(), (0, -K % GROUP)).reshape(*x.shape[:-1], -1, GROUP)
    top = groups.abs().amax(dim=-1, keepdim=True)
    integers = (groups * torch.where(top < 1e-30, 0, 32767 / top)).round()
    return (integers * (top / 32767)).flatten(-2)[..., :K]


class Int8Linear(nn.Module):
    """x [.., in] -> x weight^T + bias [.., out] with a weight in 8 bits, which is widened at each call.

    For many rows of x, on a CPU with fast bfloat16, both factors are rounded to bfloat16.  Compiled decoding
    programs read ``packed`` instead.
    """

    packed: Tensor

    def __init__(self, linear: nn.Linear, packed: Tensor | None = None) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.register_buffer("packed", quantize(linear.weight) if packed is None else packed)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """x [.., in] -> [.., out]."""
        if x.requires_grad and torch.is_grad_enabled():
            return _TrainedThrough.apply(x, self.packed, self.bias, self.out_features)  # type: ignore[no-untyped-call]
        if self._in_bfloat16(x):
            integers, scales = _parts(self.packed, self.out_features, self.in_features)
            short = integers.to(torch.bfloat16).mul_(scales).flatten(-2)[:, : self.in_features]
            out = F.linear(x.to(torch.bfloat16), short).to(x.dtype)
            return out if self.bias is None else out + self.bias.to(x.dtype)
        weight = dequantize(self.packed, self.out_features, self.in_features)
        bias = None if self.bias is None else self.bias.float()
        return F.linear(narrowed(x), weight, bias).to(x.dtype)

    def _in_bfloat16(self, x: Tensor) -> bool:
        many = x.numel() > MOST_EXACT_ROWS * self.in_features
        return many and x.device.type == "cpu" and not x.requires_grad and has_fast_bf16(x.device)


class _TrainedThrough(torch.autograd.Function):
    """The product with a weight in 8 bits, for layers below that are trained; the weight is widened twice.

    Between the forward and the backward pass, only the 8 bits are kept.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, packed: Tensor, bias: Tensor | None, N: int) -> Tensor:
        ctx.save_for_backward(packed)
        ctx.shape, ctx.product, ctx.dtype = (N, x.shape[-1]), product_dtype(x), x.dtype
        weight = dequantize(packed, *ctx.shape).to(ctx.product)
        added = None if bias is None else bias.to(ctx.product)
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(x.to(ctx.product), weight, added)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (packed,) = ctx.saved_tensors
        weight = dequantize(packed, *ctx.shape).to(ctx.product)
        with torch.autocast(grad.device.type, enabled=False):
            return (grad.to(ctx.product) @ weight).to(ctx.dtype), None, None, None


class Int8Embedding(nn.Module):
    """tokens [..] -> rows [.., D] of a table in 8 bits."""

    packed: Tensor

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = embedding.num_embeddings, embedding.embedding_dim
        self.register_buffer("packed", quantize(embedding.weight))

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [..] -> [.., D]."""
        return dequantize(self.packed, self.num_embeddings, self.embedding_dim, tokens)


def stored_weight(layer: nn.Module) -> Tensor:
    """Return the weight of a linear layer or an embedding as it is stored: [N, K], or packed in 8 bits."""
    weight = layer.packed if isinstance(layer, Int8Linear | Int8Embedding) else layer.weight
    assert isinstance(weight, Tensor)
    return weight


def float_weight(layer: nn.Module) -> Tensor:
    """Return the weight [N, K] of a linear layer in its own dtype, or in float32 if it has 8 bits."""
    if isinstance(layer, Int8Linear):
        return dequantize(layer.packed, layer.out_features, layer.in_features)
    return stored_weight(layer)
