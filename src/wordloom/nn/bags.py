"""Products of bags with a matrix: the linear layer on sparse rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from wordloom.kernels.acceptance import plain

_FEW = 3  # rows of the matrix up to which separate products are faster than one


def bag_products(ids: Tensor, weights: Tensor, offsets: Tensor, matrix: Tensor) -> Tensor:
    """Return ``F.linear(rows, matrix)`` for sparse rows: the weighted sums of ``matrix[:, i]``.

    ids [n] int32, weights [n] (constants), offsets [B + 1] int32, matrix [C, V] -> [B, C]; bag b is
    ``offsets[b]:offsets[b + 1]``, an empty bag gives zeros.  No dense [B, V] is built.  The gradient of
    the matrix is dense.  On a CPU, scipy's transposed product adds it up row by row in float32; PyTorch's
    kernel sorts all ids and is thirty times slower.
    """
    if matrix.device.type == "cpu" and matrix.dtype == torch.float32 and plain(ids, weights, offsets, matrix):
        return _BagProducts.apply(ids, weights, offsets, matrix)  # type: ignore[no-untyped-call]
    return _embedding_bag(ids, weights, offsets, matrix)


def _embedding_bag(ids: Tensor, weights: Tensor, offsets: Tensor, matrix: Tensor) -> Tensor:
    return F.embedding_bag(
        ids,
        matrix.t().contiguous(),  # [V, C]
        offsets,
        mode="sum",
        per_sample_weights=weights.to(matrix.dtype),
        include_last_offset=True,
    )


class _BagProducts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, weights: Tensor, offsets: Tensor, matrix: Tensor) -> Tensor:
        from scipy.sparse import csr_matrix

        parts = (weights.numpy(), ids.numpy(), offsets.numpy())
        ctx.rows = csr_matrix(parts, shape=(len(offsets) - 1, matrix.shape[1]))  # [B, V], nothing copied
        if len(matrix) > _FEW:
            return _embedding_bag(ids, weights, offsets, matrix)
        return torch.from_numpy(np.stack([ctx.rows @ row for row in matrix.detach().numpy()])).t()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        grad, columns = grad_outputs[0], ctx.rows.T  # [B, C], [V, B]
        if grad.shape[1] > _FEW:
            return None, None, None, torch.from_numpy(columns @ grad.contiguous().numpy()).t()
        each = [columns @ row for row in grad.t().contiguous().numpy()]
        return None, None, None, torch.from_numpy(np.stack(each))
