"""The small weights of all layers as one array: norms and biases, which the programs read in float32."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn


def whole_vectors(n: int) -> int:
    """Return ``n`` rounded up to whole vector registers, which hold 8 or 16 numbers."""
    return -(-n // 16) * 16


def stacked(parts: Sequence[Tensor | None], dims: int = 1) -> np.ndarray:
    """Return the parts of all layers, each of ``dims`` dimensions or None, as float32 [L, ..] or [L, 0, ..].

    Raises RuntimeError unless all parts have one shape, since a program reads one shape for all layers.
    """
    present = [part for part in parts if part is not None]
    if not present:
        return np.zeros((len(parts), *[0] * dims), dtype=np.float32)
    if len(present) < len(parts):
        raise RuntimeError(f"{len(present)} of {len(parts)} layers have a tensor that the others lack")
    return torch.stack(present).detach().float().numpy()


def stacked_norms(norms: list[list[nn.Module]], name: str) -> np.ndarray:
    """Return the parameters ``name`` of the norms [L, n] as [L, n, D] float32, or [L, n, 0] without them."""
    flat = stacked([getattr(norm, name, None) for layer in norms for norm in layer])
    return flat.reshape(len(norms), len(norms[0]), flat.shape[1])


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return float32 or bfloat16 zeros whose memory pages are allocated when they are first written."""
    if dtype == torch.float32:
        return torch.from_numpy(np.zeros(shape, np.float32))
    return torch.from_numpy(np.zeros(shape, np.int16)).view(dtype)
