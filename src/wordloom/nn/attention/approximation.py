"""Approximations of full attention whose cost is linear in the number of tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from wordloom.nn.attention.visibility import Visibility
from wordloom.nn.dropout import Seeds, part_seeds, row_seeds


class Texts(NamedTuple):
    """The queries, keys and values of N texts, float32, padded to n tokens.

    Attributes:
        q: ``[N, K, G, n, E]``, the G query heads of each of K key heads.
        k, v: ``[N, K, n, E]``.
        real: ``[N, n]`` True for tokens, which precede the padding; None: all are.
        seeds: ``[N]`` of dropout; None without dropout.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    real: Tensor | None
    seeds: Seeds | None = None

    def select(self, rows: Tensor, n: int) -> Texts:
        """Return the first n tokens of these texts."""
        real = None if self.real is None else self.real[rows, :n]
        return Texts(self.q[rows, ..., :n, :], self.k[rows, :, :n], self.v[rows, :, :n], real)


@dataclass(frozen=True)
class Approximation(ABC):
    """An approximation of full attention.

    Attributes:
        causal: No query sees a later key.
    """

    causal: bool
    is_full: ClassVar[bool] = False
    remembered: ClassVar[None] = None  # no first and last tokens contain all that later queries see
    drops_weights: ClassVar[bool] = False
    """Whether dropout of attention weights has a meaning."""

    @property
    def bounded_cache(self) -> bool:
        """Whether the cache of a causal model has a fixed size."""
        return self.causal

    @property
    def kinds(self) -> tuple[Approximation, ...]:
        """The approximation: a pattern is made of several kinds."""
        return (self,)

    def state_elements(self, n_kv_heads: int, head_dim: int) -> int:
        """Return the float32 elements of the state of a causal text."""
        return 0

    @abstractmethod
    def attend(self, texts: Texts, *, scale: float, projections: Sequence[Tensor], dropout: float) -> Tensor:
        """Return the results [N, K, G, n, E]; ``projections`` are the weights of a Linformer."""

    def weights(self, texts: Texts, *, scale: float, projections: Sequence[Tensor]) -> Tensor:
        """Return the matrix [N, K, G, n, n] whose product with the values :meth:`attend` computes."""
        n = texts.v.shape[2]
        identity = torch.eye(n, device=texts.v.device).expand(*texts.v.shape[:3], n)
        return self.attend(texts._replace(v=identity), scale=scale, projections=projections, dropout=0.0)

    @abstractmethod
    def n_pairs(self, n: int) -> float:
        """Return how many pairs of a query and a key full attention computes with as many operations."""

    @abstractmethod
    def activation_elements(self, n_heads: int, n_kv_heads: int) -> int:
        """Return the float32 elements a token that the backward pass needs, besides q, k, v and results."""

    def mask(self, n: int) -> Tensor:
        """Return [n, n], True where query q of a text of n tokens sees key k."""
        seen = torch.ones(n, n, dtype=torch.bool)
        return seen.tril() if self.causal else seen


def approximate_attention(
    kind: Approximation,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    visibility: Visibility,
    scale: float,
    projections: Sequence[Tensor] = (),
    dropout: float = 0.0,
    dense: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Attend to all keys of a query's own text by an approximation, in float32.

    q [B, H, T, E]; k, v [B, K, T, E], head h of q with head h // (H / K) of k.  Tokens of padding get zeros.

    Returns (output [B, H, T, E], None), or with ``dense`` (output, attention weights [B, H, T, T]).
    """
    B, H, T, _ = q.shape
    with without_autocast(q.device):
        grouped = q.float().view(B, k.shape[1], H // k.shape[1], T, q.shape[3])  # [B, K, G, T, E]
        texts = Texts(grouped, k.float(), v.float(), None)
        places = None
        if visibility.documents is not None or visibility.real_keys is not None:
            places = _places_of_texts(visibility, B, T, q.device)
            texts = _gathered(texts, *places)
        if dropout:
            texts = texts._replace(seeds=_seeds_of_texts(B, places))
        if not dense:
            out = kind.attend(texts, scale=scale, projections=projections, dropout=dropout).flatten(1, 2)
            return _scattered(out, places, (B, H, T)).to(v.dtype), None
        weights = kind.weights(texts, scale=scale, projections=projections)  # [N, K, G, n, n]
        out = (weights @ texts.v[:, :, None]).flatten(1, 2)
        return _scattered(out, places, (B, H, T)).to(v.dtype), _whole(weights.flatten(1, 2), places, B, T)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which autocast does not change the dtype of products."""
    kind = device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


def _places_of_texts(
    visibility: Visibility, B: int, T: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Return each text's row [N], the places [N, n] of its tokens in the row, and which are real [N, n]."""
    text, position, _ = visibility.texts(B, T, device)  # [B, T]
    row, t = (text >= 0).nonzero(as_tuple=True)
    code = row * (int(text.max()) + 1 if len(row) else 1) + text[row, t]
    codes, number = torch.unique(code, return_inverse=True)
    n = int(position[row, t].max()) + 1 if len(row) else 0
    place = torch.full((len(codes), n), -1, device=device)
    place[number, position[row, t]] = t
    rows = torch.zeros(len(codes), dtype=torch.int64, device=device)
    rows[number] = row
    return rows, place.clamp(min=0), place >= 0


def _seeds_of_texts(B: int, places: tuple[Tensor, Tensor, Tensor] | None) -> Seeds:
    """Return a seed of dropout for each text: by its row and its first token's place in it."""
    seeds = row_seeds(B)
    return seeds if places is None else part_seeds(seeds, places[0], places[1][:, 0])


def _gathered(texts: Texts, rows: Tensor, place: Tensor, real: Tensor) -> Texts:
    q = texts.q[rows[:, None], :, :, place].permute(0, 2, 3, 1, 4)  # [N, K, G, n, E]
    k, v = (x[rows[:, None], :, place].transpose(1, 2) for x in (texts.k, texts.v))  # [N, K, n, E]
    return Texts(q, k, v, real)


def _scattered(
    out: Tensor, places: tuple[Tensor, Tensor, Tensor] | None, shape: tuple[int, int, int]
) -> Tensor:
    """out [N, H, n, E] by text -> [B, H, T, E], zeros for padding."""
    if places is None:
        return out
    rows, place, real = places
    B, H, T = shape
    text, t = real.nonzero(as_tuple=True)
    whole = out.new_zeros(B, T, H, out.shape[3])
    return whole.index_put((rows[text], place[text, t]), out[text, :, t]).transpose(1, 2)


def _whole(weights: Tensor, places: tuple[Tensor, Tensor, Tensor] | None, B: int, T: int) -> Tensor:
    """weights [N, H, n, n] by text -> [B, H, T, T], zeros between texts and for padding."""
    if places is None:
        return weights
    rows, place, real = places
    text, q, k = (real[:, :, None] & real[:, None]).nonzero(as_tuple=True)
    whole = weights.new_zeros(B, T, T, weights.shape[1])
    whole[rows[text], place[text, q], place[text, k]] = weights[text, :, q, k]
    return whole.permute(0, 3, 1, 2)
