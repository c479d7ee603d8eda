"""Caches of decoding: keys and values of attention models, and the state of recurrent ones.

A cache has one length per row.  Rows join and leave between any two passes, and none is padded to the length
of another.  Every generative family decodes through one protocol::

    cache.lengths                   tokens that each row has passed through the model, [B]
    cache.layer(i)                  what layer i stores: keys and values, or a hidden state
    cache.advance(tokens, attend)   new tokens have passed through every layer
    cache.select(rows)              keep these rows in this order; a row may be repeated
    cache.empty(batch, length)      a new cache for the same model
    cache.join(other)               add the rows of another cache behind
    cache.truncate(lengths)         forget all but each row's first tokens; recurrent states refuse
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from wordloom.errors import ConfigError, GenerationError
from wordloom.nn.attention.visibility import Visibility


class Cache(Protocol):
    """The protocol; see the module docstring."""

    @property
    def lengths(self) -> Tensor: ...
    @property
    def longest(self) -> int: ...
    def layer(self, index: int) -> Any: ...
    def advance(self, tokens: Tensor, attend: Tensor | None = None) -> None: ...
    def empty(self, batch: int, length: int) -> Self: ...
    def select(self, rows: Tensor) -> None: ...
    def join(self, other: Self) -> None: ...
    def truncate(self, lengths: int | Tensor) -> None: ...


class RowLengths:
    """The length of each row, and how it changes.

    Attributes:
        n_rows: B.
        longest: The largest length.
    """

    def __init__(self, batch: int) -> None:
        self.n_rows, self.longest = batch, 0
        self._different: Tensor | None = None  # the lengths [B] of rows that differ in length

    @property
    def uniform(self) -> bool:
        """Whether all rows have one length."""
        return self._different is None

    @property
    def lengths(self) -> Tensor:
        """The lengths [B], int64, on the CPU."""
        # rows of one length, the usual case, need no tensor, which would cost a step some microseconds
        return torch.full((self.n_rows,), self.longest) if self._different is None else self._different

    def set_lengths(self, lengths: Tensor) -> None:
        least, most = (int(n) for n in lengths.aminmax()) if len(lengths) else (0, 0)
        self.n_rows, self.longest = len(lengths), most
        self._different = lengths if least < most else None

    def select_lengths(self, rows: Tensor) -> None:
        """Keep the lengths of these rows, in this order."""
        if self._different is None and len(rows):
            self.n_rows = len(rows)
        else:
            self.set_lengths(self.lengths[rows.cpu()])

    def advance(self, tokens: Tensor, attend: Tensor | None = None) -> None:
        """Count the new ``tokens`` [B, T]; of a row with padding, those that ``attend`` [B, T] marks."""
        if attend is None:
            self.longest += tokens.shape[1]
            if self._different is not None:
                self._different = self._different + tokens.shape[1]
        else:
            self.set_lengths(self.lengths + attend.sum(dim=1).cpu())

    def checked(self, lengths: int | Tensor) -> Tensor:
        """Return ``lengths`` [B]; raises GenerationError unless each is from 0 to the row's length."""
        lengths = torch.as_tensor(lengths, dtype=torch.int64).cpu().expand(self.n_rows)
        if bool((lengths < 0).any()) or bool((lengths > self.lengths).any()):
            raise GenerationError(
                f"a cache of {self.lengths.tolist()} tokens cannot be truncated to {lengths.tolist()}"
            )
        return lengths


class LayerKeyValues:
    """One layer's keys and values, each [B, K, capacity, E], written in place.

    ``remembered`` (G, W) says that later queries see only the first G and the last W tokens
    (:attr:`wordloom.nn.attention.Pattern.remembered`).  Then the first G places hold the first G tokens, and
    W more are a ring: a new token takes the place of the one W before it.  ``source`` holds those of a
    decoder's source, each [N, K, S, E], from the first token on.
    """

    source: tuple[Tensor, Tensor] | None = None

    def __init__(self, cache: KeyValueCache, remembered: tuple[int, int] | None = None) -> None:
        self.cache = cache
        self.remembered = remembered
        self.bound = None if remembered is None else sum(remembered)
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def append(
        self, keys: Tensor, values: Tensor, visibility: Visibility
    ) -> tuple[Tensor, Tensor, Visibility]:
        """Store new keys and values [B, K, T, E]; return those that the new queries may see, [B, K, S, E].

        S is the largest length with the new tokens, or the places of a ring.  A shorter row has keys behind
        its own that no query of it may see: zeros, or what a longer text or padding left there.
        """
        stop = self.cache.longest + keys.shape[2]
        if self.bound is None or stop <= self.bound:
            return *self._append_in_order(keys, values), visibility
        return self._append_to_ring(keys, values, visibility)

    def _append_in_order(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        start, T = self.cache.longest, keys.shape[2]
        stop = start + T
        if self.keys is None or self.values is None or self.keys.shape[2] < stop:
            self.grow(keys, stop)
        assert self.keys is not None
        assert self.values is not None
        if self.cache.uniform:
            self.keys[:, :, start:stop] = keys
            self.values[:, :, start:stop] = values
        else:
            rows, slots = self.cache.slots(T, keys.device)
            self.keys[rows, :, slots] = keys.transpose(1, 2)  # [B, T, K, E]
            self.values[rows, :, slots] = values.transpose(1, 2)
        return self.keys[:, :, :stop], self.values[:, :, :stop]

    def _append_to_ring(
        self, keys: Tensor, values: Tensor, visibility: Visibility
    ) -> tuple[Tensor, Tensor, Visibility]:
        """See :meth:`append`; new tokens take the places of tokens that no later query sees."""
        assert self.remembered is not None
        assert self.bound is not None
        first, last = self.remembered
        lengths, T = self.cache.lengths[:, None], keys.shape[2]
        new = lengths + torch.arange(T)  # [B, T] positions
        before = ring_positions(lengths, first, self.bound)  # [B, bound], as stored
        if self.keys is None or self.keys.shape[2] < self.bound:
            self.grow(keys, self.bound)
        assert self.keys is not None
        assert self.values is not None
        if T > 1:  # the first of the new queries see keys that the last of the new keys take the place of
            seen_keys = torch.cat([self.keys, keys], dim=2)
            seen_values = torch.cat([self.values, values], dim=2)
            positions = torch.cat([before, new], dim=1)
        real = (
            torch.full_like(lengths, T) if visibility.new_tokens is None else visibility.new_tokens[:, None]
        )
        kept = (new < lengths + real.cpu()) & ((new < first) | (new >= lengths + real.cpu() - last))
        row, t = kept.nonzero(as_tuple=True)
        place = ring_place(new[row, t], first, self.bound)
        row, t, place = (index.to(keys.device) for index in (row, t, place))
        self.keys[row, :, place] = keys[row, :, t]
        self.values[row, :, place] = values[row, :, t]
        if T == 1:
            seen_keys, seen_values = self.keys, self.values
            positions = ring_positions(lengths + 1, first, self.bound)
        device = keys.device
        visibility = replace(
            visibility, starts=self.cache.lengths.to(device), key_positions=positions.to(device)
        )
        return seen_keys, seen_values, visibility

    def grow(self, like: Tensor, needed: int) -> None:
        """Make room for ``needed`` tokens of keys and values like ``like`` [B, K, *, E]."""
        # doubling keeps copies amortised when the caller asked for less than it then used
        old = 0 if self.keys is None else self.keys.shape[2]
        capacity = max(self.cache.capacity, needed, 2 * old)
        if self.bound is not None:
            capacity = min(capacity, self.bound)
        B, K, _, E = like.shape
        for name, stored in (("keys", self.keys), ("values", self.values)):
            longer = like.new_zeros(B, K, capacity, E)
            if stored is not None:
                longer[:, :, :old] = stored
            setattr(self, name, longer)


def ring_place(positions: Tensor, first: int, bound: int) -> Tensor:
    """Return where a layer of ``bound`` places, whose first are no ring, stores tokens at ``positions``."""
    return torch.where(positions < bound, positions, first + (positions - first) % (bound - first or 1))


def ring_positions(lengths: Tensor, first: int, bound: int) -> Tensor:
    """Return the position of the token in each place [B, bound], -1 for none; ``lengths`` is [B, 1]."""
    place = torch.arange(bound)
    around = (lengths - 1 - place).div(bound - first or 1, rounding_mode="floor") * (bound - first)
    return torch.where(place < lengths, place + around * (place >= first), -1)


class KeyValueCache(RowLengths):
    """Keys and values of every layer for B rows, allocated once for ``length`` tokens at the first use.

    Device and dtype are those of the first keys stored.  ``remembered`` has an entry for each layer; see
    :class:`LayerKeyValues`.
    """

    def __init__(
        self,
        *,
        n_layers: int,
        batch: int,
        length: int,
        remembered: Sequence[tuple[int, int] | None] | None = None,
    ) -> None:
        super().__init__(batch)
        self.capacity = length
        bounds = remembered or [None] * n_layers
        self.layers = [LayerKeyValues(self, bound) for bound in bounds]
        self._slots: tuple[Tensor, Tensor] | None = None

    def layer(self, index: int) -> LayerKeyValues:
        return self.layers[index]

    def empty(self, batch: int, length: int) -> Self:
        """Return an empty cache for the same model."""
        remembered = [layer.remembered for layer in self.layers]
        return type(self)(n_layers=len(self.layers), batch=batch, length=length, remembered=remembered)

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
            if layer.keys is not None and layer.values is not None:
                layer.keys = _rows(layer.keys, rows, self.longest)
                layer.values = _rows(layer.values, rows, self.longest)
        self.select_lengths(rows)

    def join(self, other: Self) -> None:
        """Add the rows of ``other``, whose model is this cache's, behind these rows."""
        longest, rows = max(self.longest, other.longest), [self.n_rows, other.n_rows]
        self.capacity = max(self.capacity, other.capacity)
        for layer, added in zip(self.layers, other.layers, strict=True):
            length, capacity = longest, self.capacity
            if layer.bound is not None:
                length, capacity = min(length, layer.bound), min(capacity, layer.bound)
            layer.keys = _joined(layer.keys, added.keys, rows, length, capacity)
            layer.values = _joined(layer.values, added.values, rows, length, capacity)
        self.set_lengths(torch.cat([self.lengths, other.lengths]))

    def truncate(self, lengths: int | Tensor) -> None:
        """Keep the first ``lengths`` tokens of each row: one number, or [B].

        Raises GenerationError for a length that is negative or above the row's, and where tokens that the
        next ones would see have left the ring of a layer.
        """
        kept = self.checked(lengths)
        for layer in self.layers:
            overwritten = self.lengths - (self.lengths if layer.bound is None else layer.bound)
            if bool(((kept < self.lengths - 1) & (overwritten > 0)).any()):
                raise GenerationError(
                    f"a cache that keeps the last {layer.remembered[1]} of {self.longest} tokens cannot be "  # type: ignore[index]
                    f"truncated to {kept.tolist()}; read the text again"
                )
        self.set_lengths(kept)


def _rows(stored: Tensor, rows: Tensor, length: int) -> Tensor:
    """Return these rows of ``stored`` [B, K, capacity, E]; the unused capacity is not copied."""
    if 2 * length >= stored.shape[2]:
        return stored.index_select(0, rows)
    return _with_capacity(stored[:, :, :length].index_select(0, rows), stored.shape[2])


def _with_capacity(stored: Tensor, capacity: int) -> Tensor:
    """Return ``stored`` [B, K, S, E] with zeros behind, [B, K, capacity, E].

    Zeros, since a masked value is multiplied by 0, and 0 times what memory happens to hold may be NaN.
    """
    return F.pad(stored, (0, 0, 0, capacity - stored.shape[2]))


def _joined(
    first: Tensor | None, second: Tensor | None, rows: list[int], length: int, capacity: int
) -> Tensor | None:
    """Return the ``rows`` of both [B, K, capacity, E]; of either, at most ``length`` tokens are in use."""
    like = second if first is None else first
    if like is None:
        return None
    stored = like.new_zeros(sum(rows), like.shape[1], max(capacity, length), like.shape[3])
    for part, place in zip((first, second), torch.split(stored, rows), strict=True):
        if part is not None:
            place[:, :, : min(length, part.shape[2])] = part[:, :, :length]
    return stored


def _check_started(first: RowLengths, second: RowLengths) -> None:
    """Raise GenerationError where rows join rows of which nothing is stored yet."""
    if first.n_rows and second.n_rows:
        raise GenerationError("rows join after their first token; pass their prompts through the model first")


class DecoderCache(KeyValueCache):
    """A :class:`KeyValueCache` that also stores the keys and values of the sources, computed once.

    With n times as many rows as sources, the first n rows read the first source, and so on.  The beams of a
    sentence share the keys of its source, which do not move when beams change places.
    """

    def __init__(
        self,
        *,
        n_layers: int,
        batch: int,
        length: int,
        remembered: Sequence[tuple[int, int] | None] | None = None,
    ) -> None:
        super().__init__(n_layers=n_layers, batch=batch, length=length, remembered=remembered)
        self.source_attend: Tensor | None = None  # [N, S] True where a source's token is real

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
            _check_started(self, other)
            self.source_attend = other.source_attend
            for layer, added in zip(self.layers, other.layers, strict=True):
                layer.source = added.source
        elif other.n_sources:
            for cache in (self, other):
                cache._repeat_sources()
            S = max(cache.layers[0].source[0].shape[2] for cache in (self, other))  # type: ignore[index]
            self.source_attend = torch.cat([cache._padded_attend(S) for cache in (self, other)])
            for layer, added in zip(self.layers, other.layers, strict=True):
                assert layer.source is not None
                assert added.source is not None
                keys, values = (
                    torch.cat([_with_capacity(mine, S), _with_capacity(new, S)])
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


class LayerState:
    """The state of one recurrent layer: h [B, R] and, in an LSTM, c [B, H]; None before the first token.

    The tensors of a state are replaced and never written to.
    """

    state: tuple[Tensor, ...] | None = None


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
            if layer.state is not None:
                layer.state = tuple(part.index_select(0, rows) for part in layer.state)
        self.select_lengths(rows)

    def join(self, other: Self) -> None:
        """Add the rows of ``other``, whose model is this cache's, behind these rows."""
        for layer, added in zip(self.layers, other.layers, strict=True):
            if layer.state is not None and added.state is not None:
                pairs = zip(layer.state, added.state, strict=True)
                layer.state = tuple(torch.cat(pair) for pair in pairs)
            else:
                _check_started(self, other)
                layer.state = added.state if layer.state is None else layer.state
        self.set_lengths(torch.cat([self.lengths, other.lengths]))

    def truncate(self, lengths: int | Tensor) -> None:
        """Raise GenerationError unless nothing changes: a state does not contain the states before it."""
        if not torch.equal(self.checked(lengths), self.lengths):
            raise GenerationError(
                "a recurrent state cannot be truncated; take a snapshot() before the tokens and restore() it"
            )

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


def positions_and_visibility(
    tokens: Tensor,
    *,
    attend: Tensor | None = None,
    documents: Tensor | None = None,
    cache: RowLengths | None = None,
) -> tuple[Tensor, Visibility]:
    """Return the positions [1 or B, T] of new ``tokens`` [B, T], and which keys their queries may see.

    ``attend`` [B, T] is True for real tokens.  Padding does not count: without a cache it may stand on either
    side of a row's tokens.  With a cache it stands behind them, and the next tokens overwrite its keys.

    Raises ConfigError for padding before a token and a cache.
    """
    T, device = tokens.shape[1], tokens.device
    if cache is None and attend is not None:
        positions = (attend.cumsum(dim=1) - 1).clamp(min=0)  # [B, T]
        return positions, Visibility(causal=True, documents=documents, real_keys=attend)
    if attend is not None and bool((attend[:, 1:] > attend[:, :-1]).any()):
        raise ConfigError("padding comes before a token; in a cache it must follow the tokens of a row")
    start = 0 if cache is None else cache.longest
    new = torch.arange(start, start + T, device=device)[None]  # [1, T]
    new_tokens = None if attend is None else attend.sum(dim=1)
    if cache is None or cache.uniform:
        return new, Visibility(causal=True, documents=documents, new_tokens=new_tokens)
    starts = cache.lengths.to(device)
    visibility = Visibility(causal=True, starts=starts, documents=documents, new_tokens=new_tokens)
    return starts[:, None] + (new - start), visibility  # [B, T]
