"""The head of a language model, which computes logits over the vocabulary and their loss.

The loss is fused: logits of a chunk of rows are computed, turned into their gradient, and dropped.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from wordloom.kernels.acceptance import fall_back, plain
from wordloom.nn.fused import softmax_error
from wordloom.nn.linear import Linear, fastest_linear, product_dtype, widens
from wordloom.nn.quantized import Int8Linear, dequantize
from wordloom.nn.unmodified import modification

IGNORE_INDEX = -100  # a target that is not scored
CHUNK_BYTES = 64 << 20  # of logits computed at once, whatever the vocabulary and the precision


class Head(Linear):
    """hidden [.., D] -> logits [.., V], and the loss over them.

    Attributes:
        product_dtype: dtype of the fused loss's matrix products; None: autocast's.
        untrained_row: a row of the weight that has no gradient, such as a tied embedding that stays zero.
    """

    product_dtype: torch.dtype | None = None
    untrained_row: int | None = None

    def forward(self, x: Tensor) -> Tensor:
        """x [.., D] -> logits [.., V]."""
        if self.untrained_row is None or not torch.is_grad_enabled():
            return super().forward(x)
        return F.linear(x, self._trained_weight(), self.bias)

    def loss(self, hidden: Tensor, targets: Tensor, *, smoothing: float = 0.0) -> Tensor:
        """Return the summed cross-entropy of the logits of ``hidden`` [N, D] with ``targets`` [N], float32.

        The fused loss reads the weights and does not call the layer.  A modified head (a subclass, hooks, a
        parametrization, a weight that is not a plain tensor) is called instead.
        """
        reason = modification(self, Head)
        if not reason and not plain(hidden, targets):
            reason = f"its inputs are a {type(hidden).__name__} and a {type(targets).__name__}"
        if reason:
            fall_back("the loss of the language model's head", reason)
            return _logits_loss(self(hidden), targets, smoothing)
        weight = self._trained_weight()
        return linear_cross_entropy(
            hidden, weight, self.bias, targets, dtype=self.product_dtype, smoothing=smoothing
        )

    def _trained_weight(self) -> Tensor:
        """Return the weight [V, D], whose ``untrained_row`` has no gradient.

        A hook on the parameter would not do: copies and shards of the model are other parameters.
        """
        if self.untrained_row is None:
            return self.weight
        trained: Tensor = _WithoutRow.apply(self.weight, self.untrained_row)  # type: ignore[no-untyped-call]
        return trained


def head_loss(head: nn.Module, hidden: Tensor, targets: Tensor, *, smoothing: float = 0.0) -> Tensor:
    """Return :meth:`Head.loss`; a layer of another class, such as an adapter around a head, is called.

    The weights of a head in 8 bits are widened, and have no gradient.
    """
    if isinstance(head, Head):
        return head.loss(hidden, targets, smoothing=smoothing)
    if isinstance(head, Int8Linear) and not modification(head, Int8Linear):
        weight = dequantize(head.packed, head.out_features, head.in_features)  # [V, D]
        return linear_cross_entropy(hidden, weight, head.bias, targets, smoothing=smoothing)
    fall_back("the loss of the language model's head", f"{type(head).__name__} instead of Head")
    return _logits_loss(head(hidden), targets, smoothing)


def _logits_loss(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    return F.cross_entropy(
        logits.float(), targets, ignore_index=IGNORE_INDEX, reduction="sum", label_smoothing=smoothing
    )


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    dtype: torch.dtype | None = None,
    smoothing: float = 0.0,
) -> Tensor:
    """Return the sum of cross-entropies of ``hidden @ weight.T + bias`` against ``targets``.

    hidden [N, D], weight [V, D], bias [V] or None, targets [N] int64 (IGNORE_INDEX is not scored) -> scalar
    float32.  Rows are taken in chunks, and a chunk's gradient is computed together with its logits.  So
    memory holds one chunk of logits at a time, and nothing is computed twice.  The matrix products run
    in ``dtype`` (None: the autocast precision), log-softmax in float32.  ``smoothing`` is the share of each
    target's probability that is spread evenly over the vocabulary.
    """
    dtype = dtype or product_dtype(hidden)
    return _LinearCrossEntropy.apply(hidden, weight, bias, targets, dtype, smoothing)  # type: ignore[no-untyped-call]


class _WithoutRow(torch.autograd.Function):
    """The identity of a weight [V, D]; the gradient of one row is zero."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, row: int) -> Tensor:
        ctx.row = row
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        grad = grad_outputs[0].clone()
        grad[ctx.row] = 0.0
        return grad, None


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        dtype: torch.dtype,
        smoothing: float,
    ) -> Tensor:
        N, V = hidden.shape[0], weight.shape[0]
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        wide = torch.float32 if widens(hidden.device, dtype) else dtype  # dtype of the products
        chunks = max(1, -(-N * V * wide.itemsize // CHUNK_BYTES))
        rows = max(1, -(-N // chunks))  # equal chunks: a short last one costs nearly as much as a full one
        w = weight.to(dtype).to(wide)
        b = None if bias is None else bias.to(dtype).to(wide)
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        grad_hidden = torch.empty_like(hidden) if wants_hidden else None
        # a single chunk keeps the dtype of its product; several are summed in float32
        grad_weight: Tensor | None = None
        grad_bias = torch.zeros(V, dtype=torch.float32, device=hidden.device) if wants_bias else None
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, N, rows):
                h, t = hidden[start : start + rows].to(dtype).to(wide), targets[start : start + rows]
                logits = fastest_linear(h, w, b)  # [rows, V]
                if not any((wants_hidden, wants_weight, wants_bias)):
                    total += _logits_loss(logits, t, smoothing)
                    continue
                # g is d loss / d logits
                loss, g = softmax_error(logits, t, ignore_index=IGNORE_INDEX, smoothing=smoothing)
                total += loss
                if grad_hidden is not None:
                    grad_hidden[start : start + rows] = fastest_linear(g, w.t())
                if wants_weight:
                    product = g.T @ h
                    grad_weight = product.float() if grad_weight is None else grad_weight.add_(product)
                if grad_bias is not None:
                    grad_bias += g.sum(0)  # with dtype=float32 PyTorch would widen all of g first
        if wants_weight and grad_weight is None:  # no row; ranks must agree on which weights have gradients
            grad_weight = torch.zeros_like(weight, dtype=torch.float32)
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        ctx.dtypes = (weight.dtype, None if bias is None else bias.dtype)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight, grad_bias = ctx.saved_tensors
        scale = grad_outputs[0]
        weight_dtype, bias_dtype = ctx.dtypes

        def scaled(grad: Tensor | None, dtype: torch.dtype | None) -> Tensor | None:
            # not in place: a second backward through a retained graph must find the same values
            return None if grad is None else (grad * scale).to(dtype)

        return (
            scaled(grad_hidden, None if grad_hidden is None else grad_hidden.dtype),
            scaled(grad_weight, weight_dtype),
            scaled(grad_bias, bias_dtype),
            None,
            None,
            None,
        )
