"""Sparse attention by position: which keys a query sees (Lin et al. 2021, arXiv:2106.04554, section 4.1).

A pattern is written as kinds joined by ``+``, such as ``"band:256+global:16"``; a query sees the keys of any
of them.  A causal model lets no query see a later key, whatever the kind.

    full             every key
    band:W           the last W keys, the query's own included; in an encoder, W keys on each side as well
    global:G         the first G tokens see every key, and every query sees them
    dilated:W:D      as band:W, but every D-th key
    block:B          the keys of the query's own block of B
    random:R:SEED    R keys drawn for each query

Compounds are short for them:

    longformer:W:G   band:W+global:G             Beltagy et al. 2020, arXiv:2004.05150
    bigbird:B:G:R    band:B+global:G+random:R:0  Zaheer et al. 2020, arXiv:2007.14062, by token, not by block
    star             the nearest neighbours and global:1     Guo et al. 2019, arXiv:1902.09113
    sliding:W        band:W                      Jiang et al. 2023, arXiv:2310.06825
    sinks:G:W        band:W+global:G             Xiao et al. 2023, arXiv:2309.17453

A position is the number of a token within its text: padding is not counted, and each packed document begins
at 0.  So packed documents see what they would see alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from wordloom.nn.attention.kinds import Full, Kind, Random, parsed_kinds


class Ranges(NamedTuple):
    """The keys that each query of a text of n tokens sees, as ranges and as single keys.

    Attributes:
        first: ``[P, n]`` int32, the first key of each query in each of P kinds.
        end: ``[P, n]`` int32, the end of the range, at most n.
        steps: The distance of two keys of a range, for each kind; kinds with step 1 come first.
        drawn: ``[n, R]`` int32, single keys that lie in no range and differ; -1 for none.
    """

    first: Tensor
    end: Tensor
    steps: tuple[int, ...]
    drawn: Tensor

    def n_pairs(self) -> int:
        """Return how many pairs of a query and a key see each other."""
        total = int((self.drawn >= 0).sum())
        for p, step in enumerate(self.steps):
            if step == 1:
                continue
            longest = int((-(-(self.end[p] - self.first[p]) // step)).max())
            keys = self.first[p][:, None] + step * torch.arange(longest, dtype=torch.int32)  # [n, longest]
            total += int((~self.covers(keys, p) & (keys < self.end[p][:, None])).sum())
        whole = self.steps.count(1)
        if whole:
            order = self.first[:whole].argsort(dim=0)
            first, end = self.first[:whole].gather(0, order), self.end[:whole].gather(0, order)
            reached = end.cummax(dim=0).values.roll(1, dims=0)
            reached[0] = 0
            total += int((end - torch.maximum(first, reached)).clamp(min=0).sum())
        return total

    def covers(self, keys: Tensor, kinds: int) -> Tensor:
        """Return [n, R], True where one of the first ``kinds`` ranges of a query contains keys [n, R]."""
        covered = torch.zeros_like(keys, dtype=torch.bool)
        for p in range(kinds):
            first, end = self.first[p][:, None], self.end[p][:, None]
            covered |= (keys >= first) & (keys < end) & ((keys - first) % self.steps[p] == 0)
        return covered


@dataclass(frozen=True)
class Pattern:
    """Which keys a query sees by its position; see the module docstring.

    Attributes:
        kinds: A query sees the keys of any of them.
        causal: No query sees a later key.
    """

    kinds: tuple[Kind, ...]
    causal: bool

    @classmethod
    def parse(cls, text: str, *, causal: bool) -> Pattern:
        """Return the pattern that ``text`` describes, such as ``"band:256+global:16"``.

        Raises ConfigError for an unknown kind, a missing or superfluous number, and a width of 0.
        """
        return cls(parsed_kinds(text, causal=causal), causal)

    def __str__(self) -> str:
        return "+".join(str(kind) for kind in self.kinds)

    @property
    def is_full(self) -> bool:
        """Whether every query sees all keys up to its own, or in an encoder all keys."""
        return any(isinstance(kind, Full) for kind in self.kinds)

    @property
    def remembered(self) -> tuple[int, int] | None:
        """How many of the first and of the last tokens later queries of a causal model see; None: all."""
        bounds = [kind.remembered for kind in self.kinds]
        if any(bound is None for bound in bounds):
            return None
        known = [bound for bound in bounds if bound is not None]
        return max(first for first, _ in known), max(last for _, last in known)

    @property
    def bounded_cache(self) -> bool:
        """Whether the cache of a causal model has a fixed size."""
        return self.causal and self.remembered is not None

    def allowed(self, q: Tensor, k: Tensor, n: Tensor | int) -> Tensor:
        """Return True where a query at position q of a text of n tokens sees a key at position k.

        q, k and n are int64 and broadcast.  This is the definition of the kinds; every other reader is
        tested against it.
        """
        seen = functools.reduce(
            torch.Tensor.logical_or, (kind.allowed(q, k, n, self.causal) for kind in self.kinds)
        )
        return seen & (k <= q) if self.causal else seen

    def mask(self, n: int) -> Tensor:
        """Return [n, n], True where query q of a text of n tokens sees key k."""
        place = torch.arange(n)
        return self.allowed(place[:, None], place, n)

    def mask_mod(self, n: int) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        """Return the mask function for FlexAttention's ``create_block_mask``, for texts of n tokens."""

        def mask_mod(_b: Tensor, _h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return self.allowed(q, k, n)

        return mask_mod

    def ranges(self, n: int, longest: int | None = None) -> Ranges:
        """Return the keys that each query of a text of n tokens sees.

        Kinds with R random keys, which are all keys of a text of up to R tokens, are then a range, unless the
        ``longest`` text of a batch has more.
        """
        return _ranges(self, n, n if longest is None else longest)

    def n_pairs(self, n: int) -> int:
        """Return how many pairs of a query and a key see each other in a text of n tokens."""
        return self.ranges(n).n_pairs()


@functools.lru_cache(maxsize=64)
def _ranges(pattern: Pattern, n: int, longest: int) -> Ranges:
    q = torch.arange(n)
    random = [kind for kind in pattern.kinds if isinstance(kind, Random) and kind.keys < longest]
    spaced = [Full() if isinstance(kind, Random) else kind for kind in pattern.kinds if kind not in random]
    spaced.sort(key=lambda kind: kind.step)
    bounds = [kind.ranges(q, n, pattern.causal) for kind in spaced]
    last = q + 1 if pattern.causal else torch.full_like(q, n)
    none = torch.empty(0, n, dtype=torch.int32)
    first = torch.stack([first for first, _ in bounds]).int() if bounds else none
    end = torch.stack([end.minimum(last) for _, end in bounds]).int() if bounds else none
    steps = tuple(min(kind.step, max(n, 1)) for kind in spaced)  # a larger one would overflow in products
    draws = [kind.drawn(n, pattern.causal) for kind in random]
    drawn = torch.cat(draws, dim=1).int() if draws else torch.empty(n, 0, dtype=torch.int32)
    alone = Ranges(first, end, steps, drawn)
    drawn = drawn.masked_fill(alone.covers(drawn, len(steps)), -1)
    if len(draws) > 1:  # a key drawn twice counts once
        drawn = drawn.sort(dim=1).values
        drawn[:, 1:].masked_fill_(drawn[:, 1:] == drawn[:, :-1], -1)
    return alone._replace(drawn=drawn)
