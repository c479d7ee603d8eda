"""Attention by random features: the Performer (Choromanski et al. 2021, arXiv:2009.14794)."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from wordloom.nn.attention.approximation import Approximation, Texts, without_autocast
from wordloom.nn.evaluating import widened

CHUNK = 128  # tokens of a causal text whose scores are computed at once
_LOWEST = -1e30  # stands for the logarithm of 0

State = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Performer(Approximation):
    """phi(q) (phi(k)^T v) / phi(q) sum phi(k), with phi(x) = exp(W x - |x|^2 / 2) / sqrt(M)  (FAVOR+, eq. 7).

    The expectation of phi(q) phi(k) is exp(q k).  The M rows of W [M, E] are random and orthogonal within
    blocks of E (section 2.4); every layer draws its own from its seed, so no weights are stored.

    In a causal model, a text needs only a state of fixed size: the sums [K, M, E] of phi(k)^T v and [K, M] of
    phi(k), both divided by the exponential of a maximum [K, M], without which they would overflow.

    Attributes:
        features: M.
        seed: of W.
    """

    features: int
    seed: int = field(compare=False)

    def __str__(self) -> str:
        return f"performer:{self.features}"

    def _exponents(self, x: Tensor, scale: float) -> Tensor:
        """x [.., E] -> [.., M], the logarithms of phi(x sqrt(scale)) but for a constant."""
        x = x * math.sqrt(scale)
        w = orthogonal_features(self.features, x.shape[-1], self.seed).to(x.device, x.dtype)
        return x @ w.T - 0.5 * (x * x).sum(dim=-1, keepdim=True)

    def attend(self, texts: Texts, *, scale: float, projections: Sequence[Tensor], dropout: float) -> Tensor:
        return self.continued(texts, None, scale)[0]

    def continued(self, texts: Texts, state: State | None, scale: float) -> tuple[Tensor, State]:
        """Attend to these tokens and, in a causal model, those of ``state``.

        Returns (output [N, K, G, n, E], the state with these tokens).
        """
        N, K, _, n, _ = texts.q.shape
        log_q = self._exponents(texts.q, scale)  # [N, K, G, n, M]
        log_k = self._exponents(texts.k, scale)  # [N, K, n, M]
        if texts.real is not None:
            log_k = log_k.masked_fill(~texts.real[:, None, :, None], -torch.inf)
        if state is None:
            shape = (N, K, self.features)
            state = (
                log_k.new_zeros(*shape, texts.v.shape[-1]), log_k.new_zeros(shape),
                log_k.new_full(shape, _LOWEST),
            )  # fmt: skip
        if n == 0:
            return texts.q.new_zeros(*texts.q.shape[:-1], texts.v.shape[-1]), state
        step, parts = CHUNK if self.causal else n, []
        # split(), since the gradient of a slice is as long as the text
        q, k, v = (torch.split(x, step, dim=-2) for x in (log_q, log_k, texts.v))
        for log_q, log_k, values in zip(q, k, v, strict=True):
            part, state = self._chunk(log_q, log_k, values, state)
            parts.append(part)
        return torch.cat(parts, dim=-2), state

    def _chunk(self, log_q: Tensor, log_k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
        mixed, total, most = state
        highest = most.maximum(log_k.amax(dim=-2).detach())  # [N, K, M]
        decay = (most - highest).exp()
        mixed, total = mixed * decay[..., None], total * decay
        phi_k = (log_k - highest[:, :, None]).exp()  # [N, K, n, M]
        log_q = log_q + highest[:, :, None, None]
        phi_q = (log_q - log_q.amax(dim=-1, keepdim=True).detach()).exp()  # [N, K, G, n, M]
        new_mixed = mixed + phi_k.transpose(-2, -1) @ v  # [N, K, M, E]
        new_total = total + phi_k.sum(dim=-2)  # [N, K, M]
        if self.causal:
            scores = (phi_q @ phi_k[:, :, None].transpose(-2, -1)).tril()  # [N, K, G, n, n]
            above = phi_q @ mixed[:, :, None] + scores @ v[:, :, None]  # [N, K, G, n, E]
            below = phi_q @ total[:, :, None, :, None] + scores.sum(dim=-1, keepdim=True)  # [N, K, G, n, 1]
        else:
            above = phi_q @ new_mixed[:, :, None]
            below = phi_q @ new_total[:, :, None, :, None]
        out = above / below.clamp(min=torch.finfo(below.dtype).tiny)
        return out, (new_mixed, new_total, highest)

    def weights(self, texts: Texts, *, scale: float, projections: Sequence[Tensor]) -> Tensor:
        log_q = self._exponents(widened(texts.q), scale)[..., :, None, :]  # [N, K, G, n, 1, M]
        log_k = self._exponents(widened(texts.k), scale)[:, :, None, None]  # [N, K, 1, 1, n, M]
        scores = torch.stack([(row + log_k[:, :, :, 0]).logsumexp(dim=-1) for row in log_q.unbind(3)], dim=3)
        seen = self.mask(scores.shape[-1]).to(scores.device)  # scores [N, K, G, n, n]
        if texts.real is not None:
            seen = seen & texts.real.to(seen.device)[:, None, None, None]
        return scores.masked_fill(~seen, -torch.inf).softmax(dim=-1).nan_to_num().to(texts.q)

    def state_elements(self, n_kv_heads: int, head_dim: int) -> int:
        return self.features * n_kv_heads * (head_dim + 2) if self.causal else 0

    def n_pairs(self, n: int) -> float:
        return 2.0 * self.features * n + (min(n, CHUNK) * n / 2 if self.causal else 0)

    def activation_elements(self, n_heads: int, n_kv_heads: int) -> int:
        return 2 * self.features * (n_heads + n_kv_heads) + (CHUNK * n_heads if self.causal else 0)


@functools.lru_cache(maxsize=64)
def orthogonal_features(features: int, dim: int, seed: int) -> Tensor:
    """Return [features, dim] float64 from ``seed``: blocks of ``dim`` orthogonal rows as long as normal ones.

    Each row is distributed as a standard normal vector (Choromanski et al. 2021, section 2.4).
    """
    generator = torch.Generator().manual_seed(seed)
    blocks = []
    for _ in range(-(-features // dim)):
        normal = torch.randn(dim, dim, generator=generator, dtype=torch.float64)
        q, r = torch.linalg.qr(normal)
        blocks.append((q * r.diagonal().sign()).T)  # the sign makes the factorisation unique
    lengths = torch.randn(features, dim, generator=generator, dtype=torch.float64).norm(dim=1)
    return torch.cat(blocks)[:features] * lengths[:, None]


def continue_attention(
    kind: Performer,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: State | None,
    *,
    new_tokens: Tensor | None,
    scale: float,
) -> tuple[Tensor, State]:
    """Attend from the new tokens of a cache; padding follows the ``new_tokens`` [B] first ones of a row.

    q [B, H, T, E]; k, v [B, K, T, E].  Returns (output [B, H, T, E], the new state).
    """
    real = None
    if new_tokens is not None:
        real = torch.arange(q.shape[2], device=q.device) < new_tokens.to(q.device)[:, None]
    with without_autocast(q.device):
        B, H, T, E = q.shape
        grouped = q.float().view(B, k.shape[1], H // k.shape[1], T, E)  # [B, K, G, T, E]
        out, state = kind.continued(Texts(grouped, k.float(), v.float(), real), state, scale)
        return out.flatten(1, 2).to(v.dtype), state
