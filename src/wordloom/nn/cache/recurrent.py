"""The cache of a recurrent model: the state of every layer."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from wordloom.nn.cache.layers import LayerState
from wordloom.nn.cache.lengths import RowLengths, check_started, check_unchanged


class RecurrentCache(RowLengths):
    """The state of every layer, whose size does not depend on the number of tokens."""

    def __init__(self, *, n_layers: int, batch: int) -> None:
        super().__init__(batch)
        self.layers = [LayerState() for _ in range(n_layers)]

    def layer(self, index: int) -> LayerState:
        return self.layers[index]

    def empty(self, batch: int, length: int) -> Self:
        """Return an empty cache for the same model; its size does not depend on ``length``."""
        return type(self)(n_layers=len(self.layers), batch=batch)

    def select(self, rows: Tensor) -> None:
        for layer in self.layers:
            layer.select(rows)
        self.select_lengths(rows)

    def join(self, other: Self) -> None:
        """Add the rows of ``other``, whose model is this cache's, behind these rows."""
        if any(layer.state is None for layer in (*self.layers, *other.layers)):
            check_started(self, other)
        for layer, added in zip(self.layers, other.layers, strict=True):
            layer.join(added)
        self.set_lengths(torch.cat([self.lengths, other.lengths]))

    def truncate(self, lengths: int | Tensor) -> None:
        """Raise GenerationError unless nothing changes: a state does not contain the states before it."""
        advice = "take a snapshot() before the tokens and restore() it"
        check_unchanged(self, self.checked(lengths), f"a recurrent state cannot be truncated; {advice}")

    def snapshot(self) -> RecurrentCache:
        """Return a cache of these rows that later tokens do not change; nothing is copied."""
        saved = RecurrentCache(n_layers=len(self.layers), batch=0)
        saved.restore(self)
        return saved

    def restore(self, saved: RecurrentCache) -> None:
        """Return to the rows, lengths and states of ``saved``, which stays as it is."""
        for layer, old in zip(self.layers, saved.layers, strict=True):
            layer.state = old.state
        self.set_lengths(saved.lengths)

    def detach(self) -> None:
        """Stop gradients between the tokens so far and the next ones."""
        for layer in self.layers:
            if layer.state is not None:
                layer.state = tuple(part.detach() for part in layer.state)
