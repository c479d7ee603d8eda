"""What decoding remembers: the cache protocol, the key/value cache of attention models, with a source beside
it or without, and the state of recurrent ones.

Every generative family decodes through the same four verbs::

    cache.length        tokens seen so far, the same for every row (shorter prompts are padded left)
    cache.layer(i)      what layer i keeps: keys and values here, a hidden state in recurrent models
    cache.advance(n)    n more tokens have passed through every layer
    cache.select(rows)  keep these rows in this order (beam search reorders, finished rows leave)

and ``cache.attend``, the rows' padding remembered, so that a caller passes a mask for new tokens only.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

__all__ = [
    "Cache",
    "DecoderCache",
    "KeyValueCache",
    "LayerKeyValues",
    "LayerState",
    "RecurrentCache",
    "token_positions",
]


class Cache(Protocol):
    """The protocol; see the module docstring."""

    length: int
    attend: Tensor | None

    def layer(self, index: int) -> Any: ...
    def advance(self, n: int) -> None: ...
    def select(self, rows: Tensor) -> None: ...


class LayerKeyValues:
    """One layer's keys and values, each [B, K, capacity, E], written in place.

    ``source`` holds those of what a decoder reads, each [N, K, S, E], from the first token on.
    """

    source: tuple[Tensor, Tensor] | None = None

    def __init__(self, cache: KeyValueCache) -> None:
        self.cache = cache
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store new keys and values [B, K, T, E]; return all so far, [B, K, S, E] views."""
        start, stop = self.cache.length, self.cache.length + keys.shape[2]
        if self.keys is None or self.values is None or self.keys.shape[2] < stop:
            self._grow(keys, stop)
        assert self.keys is not None
        assert self.values is not None
        self.keys[:, :, start:stop] = keys
        self.values[:, :, start:stop] = values
        return self.keys[:, :, :stop], self.values[:, :, :stop]

    def _grow(self, like: Tensor, needed: int) -> None:
        # doubling keeps copies amortised when the caller asked for less than it then used
        old_keys, old_values = self.keys, self.values
        old = 0 if old_keys is None else old_keys.shape[2]
        capacity = max(self.cache.capacity, needed, 2 * old)
        B, K, _, E = like.shape
        self.keys = like.new_zeros(B, K, capacity, E)
        self.values = like.new_zeros(B, K, capacity, E)
        if old_keys is not None and old_values is not None:
            self.keys[:, :, :old] = old_keys
            self.values[:, :, :old] = old_values


class KeyValueCache:
    """Keys and values of every layer, allocated once for ``length`` tokens at the first use.

    Device and dtype are those of the first keys stored.
    """

    def __init__(self, *, n_layers: int, length: int) -> None:
        self.length = 0
        self.capacity = length
        self.attend: Tensor | None = None
        self.layers = [LayerKeyValues(self) for _ in range(n_layers)]

    def layer(self, index: int) -> LayerKeyValues:
        return self.layers[index]

    def advance(self, n: int) -> None:
        self.length += n

    def select(self, rows: Tensor) -> None:
        if self.attend is not None:
            self.attend = self.attend[rows]
        for layer in self.layers:
            if layer.keys is not None and layer.values is not None:
                layer.keys = _rows(layer.keys, rows, self.length)
                layer.values = _rows(layer.values, rows, self.length)


def _rows(stored: Tensor, rows: Tensor, length: int) -> Tensor:
    """These rows of ``stored`` [B, K, capacity, E]; little is copied of what is not yet written."""
    if 2 * length >= stored.shape[2]:
        return stored.index_select(0, rows)
    kept = stored.new_empty(len(rows), *stored.shape[1:])
    kept[:, :, :length] = stored[:, :, :length].index_select(0, rows)
    return kept


class DecoderCache(KeyValueCache):
    """A :class:`KeyValueCache` that keeps the keys and values of the sources read, made once, beside its own.

    With n times as many rows as sources, the first n rows read the first source, and so on: the beams of a
    sentence share what is kept of it, and nothing of that moves when they change places.
    """

    def __init__(self, *, n_layers: int, length: int) -> None:
        super().__init__(n_layers=n_layers, length=length)
        self.source_attend: Tensor | None = None  # [N, S] True where a source's token is real

    def select(self, rows: Tensor) -> None:
        first = self.layers[0]
        if first.keys is not None and first.source is not None:
            self._select_sources(rows, len(first.keys), len(first.source[0]))
        super().select(rows)

    def _select_sources(self, rows: Tensor, n_rows: int, n_sources: int) -> None:
        wanted = rows // max(n_rows // max(n_sources, 1), 1)  # [B] the source that each row reads
        kept, shares = torch.unique_consecutive(wanted, return_counts=True)
        if shares.unique().numel() > 1:  # not as many rows of each: every row gets its own
            kept = wanted
        if torch.equal(kept, torch.arange(n_sources, device=kept.device)):
            return
        if self.source_attend is not None:
            self.source_attend = self.source_attend[kept]
        for layer in self.layers:
            if layer.source is not None:
                layer.source = layer.source[0][kept], layer.source[1][kept]


class LayerState:
    """What one recurrent layer remembers: h [B, R] and, in an LSTM, c [B, H]; None before the first token."""

    state: tuple[Tensor, ...] | None = None


class RecurrentCache:
    """The state of every layer: as large after a hundred thousand tokens as after one.

    ``attend`` stays None: what did not take part has left no trace in the state.
    """

    def __init__(self, *, n_layers: int) -> None:
        self.length = 0
        self.attend: Tensor | None = None
        self.layers = [LayerState() for _ in range(n_layers)]

    def layer(self, index: int) -> LayerState:
        return self.layers[index]

    def advance(self, n: int) -> None:
        self.length += n

    def select(self, rows: Tensor) -> None:
        for layer in self.layers:
            if layer.state is not None:
                layer.state = tuple(part.index_select(0, rows) for part in layer.state)

    def detach(self) -> None:
        """Let no gradient pass from what comes to what has been."""
        for layer in self.layers:
            if layer.state is not None:
                layer.state = tuple(part.detach() for part in layer.state)


def token_positions(
    tokens: Tensor, *, attend: Tensor | None, cache: Cache | None
) -> tuple[Tensor, Tensor | None]:
    """Positions of new ``tokens`` [B, T] and which of all keys so far take part.

    Padding does not count: a row padded by three on the left starts at position 0 in column 3, so it
    computes what it would alone.  ``attend`` [B, T] is True for real tokens; the cache remembers it.

    Returns (positions [1 or B, T], attend [B, S] or None when every key takes part).
    """
    B, T = tokens.shape
    past = 0 if cache is None else cache.length
    before = None if cache is None else cache.attend
    if attend is None and before is None:
        return torch.arange(past, past + T, device=tokens.device)[None], None
    if attend is None:
        attend = tokens.new_ones(B, T, dtype=torch.bool)
    if past:
        if before is None:
            before = tokens.new_ones(B, past, dtype=torch.bool)
        attend = torch.cat([before, attend], dim=1)  # [B, S]
    if cache is not None:
        cache.attend = attend
    positions = (attend.cumsum(dim=1) - 1).clamp(min=0)[:, past:]
    return positions, attend
