"""Which keys each query of attention may see: one object, from which every backend reads what it needs."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from wordloom.errors import ConfigError


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
    """

    causal: bool = False
    starts: Tensor | None = None
    documents: Tensor | None = None
    real_keys: Tensor | None = None
    _masks: dict[tuple[int, int], Tensor | None] = field(default_factory=dict, init=False, repr=False)

    def is_causal(self, T: int, S: int) -> bool:
        """Return whether the causal mask of a kernel, which begins with the first key, is all it needs."""
        alone = self.starts is None and self.documents is None and self.real_keys is None
        return self.causal and alone and T == S > 1

    def depends_on_query(self, T: int) -> bool:
        """Return whether the T queries of a row see different keys."""
        return self.documents is not None or (self.causal and T > 1)

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
        if self.causal and self.starts is not None:
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
        return None if mask is None else mask[:, None]  # [B or 1, 1, T or 1, S]


EVERYTHING = Visibility()
