"""The cache of one layer: all keys and values, a ring of the last ones, or a state of fixed size."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from wordloom.errors import GenerationError
from wordloom.nn.attention.visibility import Visibility

SPARE_PLACES = 32
"""Further places of a ring: up to so many tokens can be read at once before, or truncated after."""


class Owner(Protocol):
    """The cache that a layer belongs to, which knows the lengths of the rows."""

    n_rows: int
    longest: int
    capacity: int

    @property
    def uniform(self) -> bool: ...
    @property
    def lengths(self) -> Tensor: ...
    def slots(self, T: int, device: torch.device) -> tuple[Tensor, Tensor]: ...


class LayerCache:
    """The cache of one layer.

    Attributes:
        source: The keys and values of a decoder's source, each ``[N, K, S, E]``, from the first token on.
    """

    source: tuple[Tensor, Tensor] | None = None


class LayerKeyValues(LayerCache):
    """One layer's keys and values, each [B, K, capacity, E], written in place.

    ``remembered`` (G, W) says that later queries see only the first G and the last W tokens
    (:attr:`wordloom.nn.attention.Pattern.remembered`).  Then the first G places hold the first G tokens, and
    the others are a ring of W + ``SPARE_PLACES``: a new token takes the place of the oldest.
    """

    def __init__(self, cache: Owner, remembered: tuple[int, int] | None = None) -> None:
        self.cache = cache
        self.first = self.last = self.ring = 0
        self.bound: int | None = None
        if remembered is not None:
            self.first, self.last = remembered
            self.ring = self.last + SPARE_PLACES
            self.bound = self.first + self.ring
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
        return self._append_to_ring(keys, values, visibility, self.bound)

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
        self, keys: Tensor, values: Tensor, visibility: Visibility, bound: int
    ) -> tuple[Tensor, Tensor, Visibility]:
        """See :meth:`append`; new tokens take the places of the oldest."""
        lengths, T = self.cache.lengths[:, None], keys.shape[2]
        new = lengths + torch.arange(T)  # [B, T] positions
        before = ring_positions(lengths, self.first, bound)  # [B, bound], as stored
        if self.keys is None or self.keys.shape[2] < bound:
            self.grow(keys, bound)
        assert self.keys is not None
        assert self.values is not None
        if T > 1:  # the first of the new queries see keys that the last of the new keys take the place of
            seen_keys = torch.cat([self.keys, keys], dim=2)
            seen_values = torch.cat([self.values, values], dim=2)
            positions = torch.cat([before, new], dim=1)
        real = (
            torch.full_like(lengths, T) if visibility.new_tokens is None else visibility.new_tokens[:, None]
        )
        end = lengths + real.cpu()
        kept = (new < end) & ((new < self.first) | (new >= end - self.ring))
        row, t = kept.nonzero(as_tuple=True)
        place = ring_place(new[row, t], self.first, bound)
        row, t, place = (index.to(keys.device) for index in (row, t, place))
        self.keys[row, :, place] = keys[row, :, t]
        self.values[row, :, place] = values[row, :, t]
        if T == 1:
            seen_keys, seen_values = self.keys, self.values
            positions = ring_positions(lengths + 1, self.first, bound)
        device = keys.device
        visibility = replace(
            visibility, starts=self.cache.lengths.to(device), key_positions=positions.to(device)
        )
        return seen_keys, seen_values, visibility

    def grow(self, like: Tensor, needed: int) -> None:
        """Make room for ``needed`` tokens of keys and values like ``like`` [B, K, *, E]."""
        # doubling keeps copies amortised when the caller asked for less than it then used
        old = 0 if self.keys is None else self.keys.shape[2]
        capacity = self._within(max(self.cache.capacity, needed, 2 * old))
        B, K, _, E = like.shape
        for name, stored in (("keys", self.keys), ("values", self.values)):
            longer = like.new_zeros(B, K, capacity, E)
            if stored is not None:
                longer[:, :, :old] = stored
            setattr(self, name, longer)

    def _within(self, places: int) -> int:
        return places if self.bound is None else min(places, self.bound)

    def select(self, rows: Tensor) -> None:
        """Keep these rows in this order."""
        if self.keys is not None and self.values is not None:
            self.keys = _rows(self.keys, rows, self.cache.longest)
            self.values = _rows(self.values, rows, self.cache.longest)

    def join(self, other: Self) -> None:
        """Add the rows of ``other`` behind; the lengths of both caches are still those before."""
        rows = [self.cache.n_rows, other.cache.n_rows]
        length = self._within(max(self.cache.longest, other.cache.longest))
        capacity = self._within(max(self.cache.capacity, other.cache.capacity))
        self.keys = _joined(self.keys, other.keys, rows, length, capacity)
        self.values = _joined(self.values, other.values, rows, length, capacity)

    def check_truncation(self, kept: Tensor, written: Tensor) -> None:
        """Raise GenerationError where tokens that the next ones would see have left the ring.

        ``kept`` [B] are the new lengths, and ``written`` [B] the largest ones that the rows ever had.
        """
        if self.bound is None:
            return
        lost = (written > self.bound) & (kept - self.last + 1 < written - self.ring)
        if bool((lost & (kept < self.cache.lengths)).any()):
            raise GenerationError(
                f"a cache of {self.cache.longest} tokens with a ring of {self.ring} cannot be truncated to "
                f"{kept.tolist()}: the last {SPARE_PLACES} tokens can be removed; read the text again"
            )


def ring_place(positions: Tensor, first: int, bound: int) -> Tensor:
    """Return where a layer of ``bound`` places, whose first are no ring, stores tokens at ``positions``."""
    return torch.where(positions < bound, positions, first + (positions - first) % (bound - first))


def ring_positions(lengths: Tensor, first: int, bound: int) -> Tensor:
    """Return the position of the token in each place [B, bound], -1 for none; ``lengths`` is [B, 1]."""
    place = torch.arange(bound)
    around = (lengths - 1 - place).div(bound - first, rounding_mode="floor") * (bound - first)
    return torch.where(place < lengths, place + around * (place >= first), -1)


def _rows(stored: Tensor, rows: Tensor, length: int) -> Tensor:
    """Return these rows of ``stored`` [B, K, capacity, E]; the unused capacity is not copied."""
    if 2 * length >= stored.shape[2]:
        return stored.index_select(0, rows)
    return with_capacity(stored[:, :, :length].index_select(0, rows), stored.shape[2])


def with_capacity(stored: Tensor, capacity: int) -> Tensor:
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


class LayerState(LayerCache):
    """The state of one layer, tensors [B, ..]; None before the first token.

    A recurrent layer has h [B, R] and, in an LSTM, c [B, H]; see :class:`wordloom.nn.attention.Performer` for
    those of a Performer.  The tensors of a state are replaced and never written to.
    """

    state: tuple[Tensor, ...] | None = None

    def select(self, rows: Tensor) -> None:
        """Keep these rows in this order."""
        if self.state is not None:
            self.state = tuple(part.index_select(0, rows) for part in self.state)

    def join(self, other: Self) -> None:
        """Add the rows of ``other`` behind; where one has no state yet, it must have no rows."""
        if self.state is not None and other.state is not None:
            self.state = tuple(torch.cat(pair) for pair in zip(self.state, other.state, strict=True))
        elif self.state is None:
            self.state = other.state
