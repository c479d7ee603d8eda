"""Low-rank adapters as the decoding programs read them, beside the base model that they share."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from wordloom.generate.fast.causal import linears_of
from wordloom.models.building.lora import lora_layers, merge_adapter
from wordloom.nn.lora import LoraLinear, LowRank


class Updates:
    """The updates of several adapters of one base, by number.

    ``table`` [A, L, M, 3] is that of :class:`wordloom.kernels.decoding.causal.NewTokens`.
    """

    def __init__(self, n_layers: int, n_matrices: int) -> None:
        self.table = np.empty((0, n_layers, n_matrices, 3), dtype=np.int64)
        self._held: list[Tensor] = []  # what the addresses point to

    def add(self, model: Any) -> int | None:
        """Add the active adapter of ``model``, and return its number.

        None for one that the programs do not have: DoRA, or an adapter of a layer outside the blocks.
        """
        found: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        for i, block in enumerate(model.blocks):
            for m, layer in enumerate(linears_of(block)):
                if isinstance(layer, LoraLinear) and layer.active is not None:
                    update = layer.adapters[layer.active]
                    if not isinstance(update, LowRank) or update.m is not None:
                        return None
                    B = (update.B.detach().float() * update.settings.scale).T.contiguous()  # [rank, out]
                    found[i, m] = update.A.detach().float().contiguous(), B
        active = [layer for layer in lora_layers(model).values() if layer.active is not None]
        if len(found) < len(active):
            return None
        entry = np.zeros((1, *self.table.shape[1:]), dtype=np.int64)
        for (i, m), (A, B) in found.items():
            entry[0, i, m] = A.data_ptr(), B.data_ptr(), len(A)
            self._held += [A, B]
        self.table = np.concatenate([self.table, entry])
        return len(self.table) - 1


def merged_copy(model: Any, dtype: torch.dtype) -> Any:
    """Return ``model`` with its active adapter merged into the weights, in ``dtype``."""
    name = next(layer.active for layer in lora_layers(model).values() if layer.active is not None)
    merge_adapter(model, name)
    return model.to(dtype)
