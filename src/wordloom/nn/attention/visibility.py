"""Which keys each query of attention may see: one object, from which every backend reads what it needs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from wordloom.errors import ConfigError
from wordloom.nn.attention.pattern import Pattern


class Lengths(Protocol):
    """The lengths of the rows of a cache: see :class:`wordloom.nn.cache.RowLengths`."""

    longest: int

    @property
    def uniform(self) -> bool: ...
    @property
    def lengths(self) -> Tensor: ...


def causal_mask(T: int, S: int, *, device: torch.device | None = None) -> Tensor:
    """Return [T, S], True where query t may see key s; the last query stands at the last key."""
    return torch.ones(T, S, dtype=torch.bool, device=device).tril(diagonal=S - T)


@dataclass(frozen=True, eq=False, kw_only=True)
class Visibility:
    """The keys [B, S] that the queries [B, T] of one forward pass may see.

    A model makes one object a pass and hands it to all its layers, so that a dense mask is made once, and
    only if a backend needs one.

    Attributes:
        causal: A query sees no key after its own.
        starts: ``[B]`` the key at which each row's first query stands, for rows of different lengths in a
            cache.  None: the last query stands at the last key.
        documents: ``[B, T]`` the number of each token's document; a query sees its own document alone.
        real_keys: ``[B, S]`` True for real tokens, False for padding.  None: all keys are real.
        new_tokens: ``[B]`` how many of each row's queries are real, where padding follows them and a cache
            stores the others.  None: all are.
        key_positions: ``[B or 1, S]`` the positions of keys that a cache does not store in order; -1 for an
            empty place.  None: the keys stand in order.
        pattern: The keys that a query sees by its position; see :meth:`through`.
    """

    causal: bool = False
    starts: Tensor | None = None
    documents: Tensor | None = None
    real_keys: Tensor | None = None
    new_tokens: Tensor | None = None
    key_positions: Tensor | None = None
    pattern: Pattern | None = None
    blocks: Any = field(default=None, init=False, repr=False)  # FlexAttention's mask, once it is made
    _patterned: dict[Pattern, Visibility] = field(default_factory=dict, init=False, repr=False)
    _masks: dict[tuple[int, int], Tensor | None] = field(default_factory=dict, init=False, repr=False)

    def through(self, pattern: object) -> Visibility:
        """Return these keys as far as ``pattern`` allows them, the same object at each call.

        An approximation, and None, allow all.
        """
        if not isinstance(pattern, Pattern):
            return self
        if self is EVERYTHING:  # which lives on, and would keep every mask
            return replace(self, pattern=pattern)
        if pattern not in self._patterned:
            self._patterned[pattern] = replace(self, pattern=pattern)
        return self._patterned[pattern]

    def is_causal(self, T: int, S: int) -> bool:
        """Return whether the causal mask of a kernel, which begins with the first key, is all it needs."""
        alone = self.starts is None and self.documents is None and self.real_keys is None
        alone = alone and self.pattern is None
        return self.causal and alone and T == S > 1

    def depends_on_query(self, T: int) -> bool:
        """Return whether the T queries of a row see different keys."""
        return self.documents is not None or (T > 1 and (self.causal or self.pattern is not None))

    def mask(self, T: int, S: int, *, device: torch.device) -> Tensor | None:
        """Return [B or 1, 1, T or 1, S], True where a query sees a key; None: every query sees every key.

        Raises ConfigError for documents beside keys of earlier passes.
        """
        if (T, S) not in self._masks:
            self._masks[T, S] = self._dense(T, S, device)
        return self._masks[T, S]

    def _dense(self, T: int, S: int, device: torch.device) -> Tensor | None:
        mask = None if self.real_keys is None else self.real_keys[:, None]  # [B, 1, S]
        causal: Tensor | None = None  # [B or 1, T, S]
        if self.key_positions is not None:
            pass  # the pattern, which is causal, compares positions
        elif self.causal and self.starts is not None:
            last = self.starts[:, None] + torch.arange(
                T, device=device
            )  # [B, T] the last key each query sees
            causal = torch.arange(S, device=device) <= last[:, :, None]
        elif self.causal and T > 1:
            causal = causal_mask(T, S, device=device)[None]
        if causal is not None:
            mask = causal if mask is None else causal & mask
        if self.documents is not None:
            if T != S:
                raise ConfigError(
                    f"documents name the rows' {T} new tokens, and the cache holds {S - T} more; packed "
                    "documents are read in one pass, without a cache"
                )
            same = self.documents[:, :, None] == self.documents[:, None, :]
            mask = same if mask is None else mask & same
        if self.pattern is not None:
            seen = self._by_position(T, S, device)
            mask = seen if mask is None else mask & seen
        return None if mask is None else mask[:, None]  # [B or 1, 1, T or 1, S]

    def _by_position(self, T: int, S: int, device: torch.device) -> Tensor:
        """Return [B or 1, T, S], True where ``pattern`` lets a query see a key."""
        assert self.pattern is not None
        keys, n = torch.arange(S, device=device)[None], torch.tensor([[S]], device=device)  # [1, S], [1, 1]
        queries = keys[:, S - T :]
        if self.documents is not None:
            _, keys, n = self.texts(len(self.documents), T, device)  # each [B, T]
            queries = keys
        elif self.real_keys is not None:
            keys = self.real_keys.cumsum(dim=1) - 1  # [B, S]
            queries, n = keys[:, S - T :], self.real_keys.sum(dim=1, keepdim=True)
        elif self.starts is not None:
            queries = self.starts[:, None] + torch.arange(T, device=device)  # [B, T]
        if self.key_positions is not None:
            keys = self.key_positions
        seen = self.pattern.allowed(queries[:, :, None], keys[:, None], n[:, :, None])
        return seen & (keys >= 0)[:, None]

    def texts(self, B: int, T: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Return for each of B rows of T tokens its text, -1 for padding, its position and the text's length.

        Each is [B, T] int64.  Tokens of one text need not stand side by side.
        """
        text = torch.zeros(B, T, dtype=torch.int64, device=device)
        text = text if self.documents is None or not T * B else self.documents - self.documents.min()
        text = text if self.real_keys is None else text.masked_fill(~self.real_keys, -1)
        order = text.argsort(dim=1, stable=True)
        place = order.argsort(dim=1)  # where a token stands among its row's, sorted by text
        ordered = text.gather(1, order)
        first = torch.searchsorted(ordered, text.contiguous())
        end = torch.searchsorted(ordered, text.contiguous(), right=True)
        return text, place - first, end - first

    def segments(self, B: int, T: int) -> Tensor | None:
        """Return the row, first token and length of each text in B rows of T tokens, [N, 3] int64 on the CPU.

        None: padding or another document interrupts a text, or a cache holds earlier tokens.
        """
        if self.starts is not None or self.key_positions is not None:
            return None
        if self.real_keys is None and self.documents is None:
            row = torch.arange(B)
            return torch.stack([row, torch.zeros_like(row), torch.full_like(row, T)], dim=1)
        return self._texts

    @cached_property
    def _texts(self) -> Tensor | None:
        real, documents = self.real_keys, self.documents
        if documents is None:
            assert real is not None
            documents = torch.zeros_like(real, dtype=torch.int64)
        codes = documents.cpu() - (documents.min().cpu() if documents.numel() else 0)
        codes = codes if real is None else codes.masked_fill(~real.cpu(), -1)  # [B, T]
        begins = torch.ones_like(codes, dtype=torch.bool)
        begins[:, 1:] = codes[:, 1:] != codes[:, :-1]
        row, first = begins.nonzero(as_tuple=True)  # [N]
        place = row * codes.shape[1] + first
        length = torch.diff(place, append=torch.tensor([codes.numel()]))
        found = torch.stack([row, first, length, codes[row, first]], dim=1)
        found = found[found[:, 3] >= 0]
        texts = {tuple(text) for text in found[:, [0, 3]].tolist()}
        interrupted = len(texts) < len(found)
        return None if interrupted else found[:, :3]


EVERYTHING = Visibility()


def positions_and_visibility(
    tokens: Tensor,
    *,
    attend: Tensor | None = None,
    documents: Tensor | None = None,
    cache: Lengths | None = None,
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
