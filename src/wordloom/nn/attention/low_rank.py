"""Low-rank attention for encoders: Linformer and the Nyström method.

Both write the matrix of attention weights [n, n] as a product of thin matrices, so that it is never made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wordloom.errors import ConfigError
from wordloom.nn.attention.approximation import Approximation, Texts
from wordloom.nn.dropout import drop_weights

PSEUDO_INVERSE_STEPS = 6  # of Newton's method, as in the paper


@dataclass(frozen=True)
class Linformer(Approximation):
    """softmax(q (E k)^T) F v, with E and F [K, n] learned (Wang et al. 2020, arXiv:2006.04768, eq. 7).

    The heads of a layer share E and F.  A shorter text uses their first columns.

    Attributes:
        keys: K, the rows of E and F.
        longest: The columns of E and F: the longest text.
    """

    keys: int
    longest: int
    drops_weights: ClassVar[bool] = True

    def __str__(self) -> str:
        return f"linformer:{self.keys}"

    def _projected(self, x: Tensor, real: Tensor | None, projection: Tensor) -> Tensor:
        """x [N, K, n, E] -> [N, K, keys, E]."""
        return self._columns(projection, x.shape[2]) @ (x if real is None else x * real[:, None, :, None])

    def _columns(self, projection: Tensor, n: int) -> Tensor:
        if n > self.longest:
            raise ConfigError(
                f"a text of {n} tokens is longer than the {self.longest} that '{self}' was built for"
            )
        return projection[:, :n].float()

    def attend(self, texts: Texts, *, scale: float, projections: Sequence[Tensor], dropout: float) -> Tensor:
        keys = self._projected(texts.k, texts.real, projections[0])[:, :, None]  # [N, K, 1, keys, E]
        values = self._projected(texts.v, texts.real, projections[1])[:, :, None]
        weights = (texts.q @ keys.transpose(-2, -1) * scale).softmax(dim=-1)  # [N, K, G, n, keys]
        return (drop_weights(weights, dropout, texts.seeds) if dropout else weights) @ values

    def n_pairs(self, n: int) -> float:
        return 2.0 * self.keys * n

    def activation_elements(self, n_heads: int, n_kv_heads: int) -> int:
        return self.keys * n_heads


class Projection(nn.Module):
    """A matrix E or F [keys, longest] of a Linformer."""

    def __init__(self, keys: int, longest: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(keys, longest))
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Normal(0, 1 / longest), so that a projected key is about as long as a mean of independent keys."""
        nn.init.normal_(self.weight, 0.0, self.weight.shape[1] ** -0.5, generator=generator)


@dataclass(frozen=True)
class Nystrom(Approximation):
    """softmax(q k~^T) softmax(q~ k~^T)^+ softmax(q~ k^T) v (Xiong et al. 2021, arXiv:2102.03902, eq. 13).

    The landmarks q~ and k~ are the means of M equal parts of a text.  A text of up to M tokens gets full
    attention.  The paper's convolution of the values is left out.

    Attributes:
        landmarks: M.
    """

    landmarks: int

    def __str__(self) -> str:
        return f"nystrom:{self.landmarks}"

    def attend(self, texts: Texts, *, scale: float, projections: Sequence[Tensor], dropout: float) -> Tensor:
        N, n = texts.k.shape[0], texts.k.shape[2]
        lengths = torch.full((N,), n) if texts.real is None else texts.real.sum(dim=1).cpu()
        parts = []
        for rows, longest, method in (
            ((lengths <= self.landmarks).nonzero()[:, 0], min(n, self.landmarks), _full),
            ((lengths > self.landmarks).nonzero()[:, 0], n, self._approximated),
        ):
            if len(rows) == N:
                return method(texts, scale)
            found = method(texts.select(rows.to(texts.q.device), longest), scale)
            parts.append((rows, F.pad(found, (0, 0, 0, n - longest))))
        order = torch.cat([rows for rows, _ in parts]).argsort().to(texts.q.device)
        return torch.cat([found for _, found in parts])[order]

    def _approximated(self, texts: Texts, scale: float) -> Tensor:
        means = self._means(texts)  # [N, M, n]
        landmark_q = means[:, None, None] @ texts.q  # [N, K, G, M, E]
        landmark_k = (means[:, None] @ texts.k)[:, :, None]  # [N, K, 1, M, E]
        by_landmark = (texts.q @ landmark_k.transpose(-2, -1) * scale).softmax(dim=-1)  # [N, K, G, n, M]
        between = (landmark_q @ landmark_k.transpose(-2, -1) * scale).softmax(dim=-1)  # [N, K, G, M, M]
        by_key = _softmax(landmark_q, texts, scale)  # [N, K, G, M, n]
        return by_landmark @ (pseudo_inverse(between) @ (by_key @ texts.v[:, :, None]))

    def _means(self, texts: Texts) -> Tensor:
        """Return [N or 1, M, n]: a row has the weights of the tokens whose mean a landmark is."""
        n, M = texts.k.shape[2], self.landmarks
        place = torch.arange(n, device=texts.k.device)[None]  # [1, n]
        lengths = torch.full_like(place[:, :1], n)
        if texts.real is not None:
            lengths = texts.real.sum(dim=1, keepdim=True)  # [N, 1]
        number = torch.arange(M, device=texts.k.device)[:, None]
        part = (
            (place + 1) * M - 1
        ) // lengths  # [N or 1, n]; token i lies in part floor(((i + 1) M - 1) / n)
        member = (part[:, None] == number).float()  # [N or 1, M, n]; padding lies in no part
        return member / member.sum(dim=2, keepdim=True)

    def n_pairs(self, n: int) -> float:
        return float(n * n) if n <= self.landmarks else 2.0 * self.landmarks * n

    def activation_elements(self, n_heads: int, n_kv_heads: int) -> int:
        return 2 * self.landmarks * n_heads


def _softmax(q: Tensor, texts: Texts, scale: float) -> Tensor:
    """Return the attention weights [N, K, G, *, n] of queries [N, K, G, *, E]."""
    scores = q @ texts.k[:, :, None].transpose(-2, -1) * scale
    if texts.real is not None:
        scores = scores.masked_fill(~texts.real[:, None, None, None], -torch.inf)
    return scores.softmax(dim=-1)


def _full(texts: Texts, scale: float) -> Tensor:
    return _softmax(texts.q, texts, scale) @ texts.v[:, :, None]


def pseudo_inverse(x: Tensor) -> Tensor:
    """Approximate the Moore-Penrose inverse of x [.., M, M], a matrix of softmax weights.

    Six steps of Razavi et al. 2014, which Xiong et al. 2021 give as eq. 11.  The start x^T / (|x|_1 |x|_inf)
    is that of each matrix, so that a text's result does not depend on the others of its batch.
    """
    identity = torch.eye(x.shape[-1], device=x.device)
    z = x.transpose(-2, -1) / x.sum(dim=-2).amax(dim=-1)[..., None, None]  # |x|_inf is 1
    for _ in range(PSEUDO_INVERSE_STEPS):
        xz = x @ z
        z = 0.25 * z @ (13 * identity - xz @ (15 * identity - xz @ (7 * identity - xz)))
    return z
