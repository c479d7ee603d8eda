"""The mean of the last vectors of a text, up to each place: a context without an order."""

from __future__ import annotations

import torch
from torch import Tensor

from wordloom.nn.cache import RecurrentCache


def context_means(
    x: Tensor,
    window: int,
    *,
    positions: Tensor | None = None,
    documents: Tensor | None = None,
    attend: Tensor | None = None,
    cache: RecurrentCache | None = None,
) -> Tensor:
    """x [B, T, D] -> [B, T, D], means of up to ``window`` vectors: that of a place, and those before it.

    ``attend`` [B, T] is False for padding, which enters no mean.  With ``documents``, a mean holds vectors of
    one document, which begins where ``positions`` is 0; without positions, where the number changes.  A
    ``cache`` keeps the last vectors of each row; the caller advances it.
    """
    before = _tokens_before(x, positions, documents, attend, cache)  # [B, T]
    order = None
    if attend is not None:  # padding goes behind the tokens
        order = attend.logical_not().long().argsort(dim=1, stable=True)  # [B, T]
        x, before = _at(x, order), before.gather(1, order)
    if cache is None:
        means = _window_means(x, before, window)  # [B, T, D]
    else:
        x, before = _behind_cached(x, before, window, cache)  # [B, window - 1 + T, D], [B, window - 1 + T]
        cache.layer(0).state = _last(x, before, window - 1, attend)
        means = _window_means(x, before, window)[:, window - 1 :]  # [B, T, D]
    return means if order is None else _at(means, order.argsort(dim=1))


def _behind_cached(x: Tensor, before: Tensor, window: int, cache: RecurrentCache) -> tuple[Tensor, Tensor]:
    """Put the last ``window`` - 1 vectors of each row in front of ``x`` [B, T, D] and ``before`` [B, T].

    There are zeros where a row has fewer.
    """
    B, _, D = x.shape
    state = cache.layer(0).state
    if state is None:
        state = x.new_zeros(B, window - 1, D), before.new_zeros(B, window - 1)
    return torch.cat([state[0].to(x), x], dim=1), torch.cat([state[1], before], dim=1)


def _window_means(x: Tensor, before: Tensor, window: int) -> Tensor:
    """x [B, T, D] -> [B, T, D], means of the last ``window`` vectors up to each place.

    ``before`` [B, T] is how many vectors of its text stand before a place; a mean holds none of other texts.
    Sums over 1, 2, 4, ... vectors make those over any number, so the cost grows with the logarithm of
    ``window``.
    """
    sums, size = x, 1  # of the last ``size`` vectors
    total, taken = torch.zeros_like(x), 0
    while size <= window:
        if window & size:
            total = total + _shifted(sums, before, taken)
            taken += size
        if 2 * size <= window:
            sums = sums + _shifted(sums, before, size)
        size *= 2
    return total / (before + 1).clamp(max=window)[..., None].to(x.dtype)


def _shifted(x: Tensor, before: Tensor, by: int) -> Tensor:
    """x [B, T, D] moved ``by`` places to later ones; zero where that place is in another text."""
    if by == 0:
        return x
    moved = torch.cat([torch.zeros_like(x[:, :by]), x[:, :-by]], dim=1)[:, : x.shape[1]]
    return moved * (before >= by)[..., None].to(x.dtype)


def _last(x: Tensor, before: Tensor, count: int, attend: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the last ``count`` vectors of each row, [B, count, D] and [B, count], without padding behind."""
    if attend is None:
        return x[:, x.shape[1] - count :], before[:, before.shape[1] - count :]
    places = attend.sum(1, keepdim=True) + torch.arange(count, device=x.device)  # [B, count]
    return _at(x, places), before.gather(1, places)


def _at(x: Tensor, places: Tensor) -> Tensor:
    """x [B, T, D] -> [B, n, D], the vectors at ``places`` [B, n]."""
    return x.gather(1, places[..., None].expand(*places.shape, x.shape[2]))


def _tokens_before(
    x: Tensor,
    positions: Tensor | None,
    documents: Tensor | None,
    attend: Tensor | None,
    cache: RecurrentCache | None,
) -> Tensor:
    """[B, T], the number of tokens of the same text before each token of x [B, T, D]."""
    B, T = x.shape[:2]
    if documents is not None and positions is not None:
        return positions.expand(B, T)
    index = torch.arange(T, device=x.device).expand(B, T)
    if documents is not None:
        changes = x.new_ones(B, T, dtype=torch.bool)
        changes[:, 1:] = documents[:, 1:] != documents[:, :-1]
        return index - torch.where(changes, index, 0).cummax(dim=1).values
    if attend is not None:
        index = attend.long().cumsum(1) - attend.long()
    return index if cache is None else index + cache.lengths.to(x.device)[:, None]
