"""The cache of a model with attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from wordloom.nn.attention.performer import Performer
from wordloom.nn.attention.setting import AttentionKind
from wordloom.nn.cache.layers import LayerKeyValues, LayerState, with_capacity
from wordloom.nn.cache.lengths import RowLengths, check_started, check_unchanged


class KeyValueCache(RowLengths):
    """Keys and values of every layer for B rows, allocated once for ``length`` tokens at the first use.

    Device and dtype are those of the first keys stored.  ``patterns`` has the attention of each layer: one
    that sees only the first and last tokens keeps no others, and a Performer has a state of fixed size.
    """

    def __init__(
        self,
        *,
        n_layers: int,
        batch: int,
        length: int,
        patterns: Sequence[AttentionKind] | None = None,
    ) -> None:
        super().__init__(batch)
        self.capacity = length
        self.patterns = patterns
        self.layers: list[LayerKeyValues | LayerState] = [
            LayerState()
            if isinstance(pattern, Performer)
            else LayerKeyValues(self, None if pattern is None else pattern.remembered)
            for pattern in (patterns or (None,) * n_layers)
        ]
        self._slots: tuple[Tensor, Tensor] | None = None
        self._written: Tensor | None = None  # the largest lengths [B] so far, once rows were truncated

    @property
    def key_values(self) -> list[LayerKeyValues]:
        """The layers that store keys and values."""
        return [layer for layer in self.layers if isinstance(layer, LayerKeyValues)]

    @property
    def has_states(self) -> bool:
        """Whether a layer has a state of fixed size instead of keys and values."""
        return len(self.key_values) < len(self.layers)

    def layer(self, index: int) -> LayerKeyValues | LayerState:
        return self.layers[index]

    def empty(self, batch: int, length: int) -> Self:
        """Return an empty cache for the same model."""
        return type(self)(n_layers=len(self.layers), batch=batch, length=length, patterns=self.patterns)

    def set_lengths(self, lengths: Tensor) -> None:
        super().set_lengths(lengths)
        self._slots = None

    def advance(self, tokens: Tensor, attend: Tensor | None = None) -> None:
        super().advance(tokens, attend)
        self._slots = None

    def slots(self, T: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the rows [B, 1] and the places [B, T] where the next T tokens of each row are written."""
        if self._slots is None:
            rows = torch.arange(self.n_rows, device=device)[:, None]
            self._slots = rows, self.lengths.to(device)[:, None] + torch.arange(T, device=device)
        return self._slots

    def select(self, rows: Tensor) -> None:
        for layer in self.layers:
            layer.select(rows)
        if self._written is not None:
            self._written = self._written[rows.cpu()]
        self.select_lengths(rows)

    def join(self, other: Self) -> None:
        """Add the rows of ``other``, whose model is this cache's, behind these rows."""
        if self.has_states and not (self.longest and other.longest):
            check_started(self, other)
        for layer, added in zip(self.layers, other.layers, strict=True):
            layer.join(added)  # type: ignore[arg-type]  # the layers of one model are of one type
        self.capacity = max(self.capacity, other.capacity)
        if self._written is not None or other._written is not None:
            self._written = torch.cat([self._largest(), other._largest()])
        self.set_lengths(torch.cat([self.lengths, other.lengths]))

    def mark_written(self, T: int) -> None:
        """Take into account that T tokens of each row were stored, although fewer of them may count."""
        self._written = self._largest().maximum(self.lengths + T)

    def _largest(self) -> Tensor:
        """Return the largest lengths [B] that the rows ever had."""
        return self.lengths if self._written is None else self.lengths.maximum(self._written)

    def truncate(self, lengths: int | Tensor) -> None:
        """Keep the first ``lengths`` tokens of each row: one number, or [B].

        Raises GenerationError for a length that is negative or above the row's, where tokens that the next
        ones would see have left the ring of a layer, and for a layer with a state, unless nothing changes.
        """
        kept, written = self.checked(lengths), self._largest()
        if self.has_states:
            check_unchanged(self, kept, "the state of a Performer cannot be truncated; read the text again")
        for layer in self.key_values:
            layer.check_truncation(kept, written)
        self._written = written
        self.set_lengths(kept)


class DecoderCache(KeyValueCache):
    """A :class:`KeyValueCache` that also stores the keys and values of the sources, computed once.

    With n times as many rows as sources, the first n rows read the first source, and so on.  The beams of a
    sentence share the keys of its source, which do not move when beams change places.

    Attributes:
        source_attend: ``[N, S]`` True where a source's token is real; None: all are.
    """

    source_attend: Tensor | None = None

    @property
    def n_sources(self) -> int:
        """N, or 0 before the first token."""
        source = self.layers[0].source
        return 0 if source is None else len(source[0])

    def select(self, rows: Tensor) -> None:
        if self.n_sources:
            self._select_sources(rows, self.n_rows)
        super().select(rows)

    def _select_sources(self, rows: Tensor, n_rows: int) -> None:
        wanted = rows // max(n_rows // self.n_sources, 1)  # [B] the source that each row reads
        kept, shares = torch.unique_consecutive(wanted, return_counts=True)
        if shares.unique().numel() > 1:  # not as many rows of each: every row gets its own
            kept = wanted
        if not torch.equal(kept, torch.arange(self.n_sources, device=kept.device)):
            self._take_sources(kept)

    def _take_sources(self, kept: Tensor) -> None:
        if self.source_attend is not None:
            self.source_attend = self.source_attend[kept]
        for layer in self.layers:
            assert layer.source is not None
            layer.source = layer.source[0][kept], layer.source[1][kept]

    def join(self, other: Self) -> None:
        """Add the rows of ``other`` behind; the shorter sources are padded."""
        if not self.n_sources:
            check_started(self, other)
            self.source_attend = other.source_attend
            for layer, added in zip(self.layers, other.layers, strict=True):
                layer.source = added.source
        elif other.n_sources:
            for cache in (self, other):
                cache._repeat_sources()
            sources = [cache.layers[0].source for cache in (self, other)]
            S = max(source[0].shape[2] for source in sources if source is not None)
            self.source_attend = torch.cat([cache._padded_attend(S) for cache in (self, other)])
            for layer, added in zip(self.layers, other.layers, strict=True):
                assert layer.source is not None
                assert added.source is not None
                keys, values = (
                    torch.cat([with_capacity(mine, S), with_capacity(new, S)])
                    for mine, new in zip(layer.source, added.source, strict=True)
                )
                layer.source = keys, values
        super().join(other)

    def _repeat_sources(self) -> None:
        """Give every row a source of its own."""
        rows = torch.arange(self.n_rows) // (self.n_rows // self.n_sources)
        if len(rows) > self.n_sources:
            self._take_sources(rows)

    def _padded_attend(self, S: int) -> Tensor:
        """Return [N, S], True where a source's token is real, for sources padded to S tokens."""
        first = self.layers[0].source
        assert first is not None
        keys, attend = first[0], self.source_attend
        if attend is None:
            attend = keys.new_ones(keys.shape[0], keys.shape[2], dtype=torch.bool)
        return F.pad(attend, (0, S - attend.shape[1]))
