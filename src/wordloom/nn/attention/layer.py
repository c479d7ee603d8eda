"""Scaled dot-product attention: multi-head, grouped-query and multi-query, self and cross.

The fast path uses compiled kernels or ``scaled_dot_product_attention``.  The slow path (``backend="exact"``)
computes the equation as written: it returns the attention weights, and tests compare the fast path with it.
"""

from __future__ import annotations

import logging
import math
import warnings
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from wordloom.errors import ConfigError, DeviceError, did_you_mean
from wordloom.kernels import programs
from wordloom.kernels.acceptance import plain
from wordloom.nn import fused
from wordloom.nn.attention.approximation import Approximation, approximate_attention, without_autocast
from wordloom.nn.attention.flex import LEAST_HEAD_DIM, flex_attention_fits, sparse_flex_attention
from wordloom.nn.attention.low_rank import Linformer, Projection
from wordloom.nn.attention.pattern import Pattern
from wordloom.nn.attention.performer import Performer, State, continue_attention
from wordloom.nn.attention.setting import AttentionKind
from wordloom.nn.attention.sparse import sparse_attention, sparse_attention_fits
from wordloom.nn.attention.visibility import EVERYTHING, Visibility, causal_mask
from wordloom.nn.dropout import drop_weights, is_keyed
from wordloom.nn.linear import Linear, has_amx, product_dtype, widens
from wordloom.nn.positions import apply_rotary

log = logging.getLogger(__name__)

ATTENTION_BACKENDS: dict[str, SDPBackend | None] = {
    "auto": None,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
    "exact": None,
}


# With fewer keys than this, PyTorch's backward pass on a CPU without AMX is slower in bfloat16 than in
# float32: eight times slower with 16 keys, measured on Zen 4.  With AMX, the elements of a head's keys count:
# ten times slower with 16 keys of 32, as fast with 256 keys of 64.
FEW_KEYS = 512
FEW_ELEMENTS_AMX = 256 * 64

# Queries that read from a ring of a cache share a mask; more of them are taken in parts.
QUERIES_AT_ONCE = 256


class CachedKeys(Protocol):
    """The cached keys and values of one layer: see :class:`wordloom.nn.cache.LayerKeyValues`."""

    def append(
        self, keys: Tensor, values: Tensor, visibility: Visibility
    ) -> tuple[Tensor, Tensor, Visibility]: ...


class CachedState(Protocol):
    """The cached state of a layer with a Performer: see :class:`wordloom.nn.cache.LayerState`."""

    state: tuple[Tensor, ...] | None


def exact_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    visibility: Visibility = EVERYTHING,
    scale: float,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Compute softmax(q k^T * scale) v as written (Vaswani et al. 2017, eq. 1), in float32.

    q [B, H, T, E]; k, v [B, H, S, E].  A query that sees no key gets zeros.

    Returns (output [B, H, T, E], weights [B, H, T, S] float32 before dropout).
    """
    mask = visibility.mask(q.shape[2], k.shape[2], device=q.device)
    return masked_attention(q, k, v, mask=mask, scale=scale, dropout=dropout)


def masked_attention(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, scale: float, dropout: float
) -> tuple[Tensor, Tensor]:
    """Compute :func:`exact_attention` for a mask [B or 1, 1, T or 1, S]; None: all keys are seen."""
    with without_autocast(q.device):
        scores = (q.float() @ k.float().transpose(-2, -1)) * scale  # [B, H, T, S]
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        weights = scores.softmax(dim=-1)
        if mask is not None:
            weights = weights.masked_fill(~mask, 0.0)  # a fully masked row is 0/0 otherwise
        dropped = drop_weights(weights, dropout) if dropout else weights
        return (dropped @ v.float()).to(v.dtype), weights


def _faster_in_float32(q: Tensor, k: Tensor) -> bool:
    """Return True if attention with gradients is faster in float32 than in the 16 bits of q and k."""
    dtype = product_dtype(q)
    if dtype == torch.bfloat16 and q.device.type == "cpu":
        S, E = k.shape[-2:]
        if S * E < FEW_ELEMENTS_AMX if has_amx() else S < FEW_KEYS:
            return not torch.compiler.is_compiling()
    return widens(q.device, dtype)


class Attention(nn.Module):
    """Multi-head attention (Vaswani et al. 2017, section 3.2) with grouped keys (Ainslie et al. 2023).

    ``n_kv_heads`` equal to ``n_heads`` is multi-head, 1 is multi-query, any other number is grouped-query.
    ``head_dim`` may differ from dim / n_heads.  ``scale`` defaults to 1 / sqrt(head_dim).
    ``dropout`` acts on the attention weights, in training only.  ``pattern`` says which keys a query of
    self-attention sees by its position, or how full attention is approximated; None: full attention.

    Raises ConfigError when ``n_heads`` does not divide ``dim``, or ``n_kv_heads`` does not divide
    ``n_heads``.
    """

    def __init__(
        self,
        *,
        dim: int,
        n_heads: int,
        n_kv_heads: int | None = None,
        head_dim: int | None = None,
        context_dim: int | None = None,
        bias: bool = False,
        out_bias: bool | None = None,
        dropout: float = 0.0,
        scale: float | None = None,
        rotary_layout: str = "halves",
        pattern: AttentionKind | None = None,
    ) -> None:
        super().__init__()
        K = n_heads if n_kv_heads is None else n_kv_heads
        if head_dim is None:
            if dim % n_heads:
                raise ConfigError(
                    f"dim {dim} does not divide into {n_heads} heads; give head_dim or change n_heads"
                )
            head_dim = dim // n_heads
        if K < 1 or n_heads % K:
            raise ConfigError(f"n_heads {n_heads} is not a multiple of n_kv_heads {K}")
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, K, head_dim
        self.dropout = dropout
        self.scale = 1.0 / math.sqrt(head_dim) if scale is None else scale
        self.rotary_layout = rotary_layout
        self.pattern = None if pattern is None or pattern.is_full else pattern
        self.q_proj = Linear(dim, n_heads * head_dim, bias=bias)
        self.k_proj = Linear(context_dim or dim, K * head_dim, bias=bias)
        self.v_proj = Linear(context_dim or dim, K * head_dim, bias=bias)
        self.o_proj = Linear(n_heads * head_dim, dim, bias=bias if out_bias is None else out_bias)
        if isinstance(pattern, Linformer):
            self.key_projection = Projection(pattern.keys, pattern.longest)
            self.value_projection = Projection(pattern.keys, pattern.longest)
        self.backend = "auto"
        self.kept_dtype: torch.dtype | None = None  # of exact attention's keys and values; None: as computed
        self.recorded: list[Tensor] | None = None  # set to a list to collect weights (backend "exact")

    def forward(self, x: Tensor, **settings: Any) -> Tensor:
        """x [B, T, D] -> [B, T, D]; the settings are those of :meth:`mixed`."""
        return self.o_proj(self.mixed(x, **settings))

    def mixed(
        self,
        x: Tensor,
        *,
        context: Tensor | tuple[Tensor, Tensor] | None = None,
        visibility: Visibility = EVERYTHING,
        rotary: tuple[Tensor, Tensor] | None = None,
        cache: object = None,
    ) -> Tensor:
        """x [B, T, D] -> [B, T, H * E], the weighted means of values.

        ``context`` [B, S, C] gives the keys and values of cross-attention; a pair is the result of
        :meth:`keys_values` for a context.  ``rotary`` is (cos, sin), each [B or 1, T, E/2].  ``cache`` is a
        :class:`CachedKeys`, or for a Performer a :class:`CachedState`.
        """
        q = self.q_proj(x).unflatten(-1, (self.n_heads, self.head_dim)).transpose(1, 2)  # [B, H, T, E]
        if isinstance(context, tuple):
            k, v = context  # [B, K, S, E]
        else:
            k, v = self.keys_values(x if context is None else context)
        if rotary is not None:
            q = apply_rotary(q, *rotary, layout=self.rotary_layout)
            k = apply_rotary(k, *rotary, layout=self.rotary_layout)
        visibility = visibility.through(self.pattern)
        if cache is not None and isinstance(self.pattern, Performer):
            return self._continue(self.pattern, q, k, v, visibility, cast(CachedState, cache))
        kept = self.kept_dtype is not None and not k.requires_grad  # training rounds nothing
        if kept and not isinstance(self.pattern, Approximation):
            k, v = k.to(self.kept_dtype), v.to(self.kept_dtype)
        if cache is not None:
            k, v, visibility = cast(CachedKeys, cache).append(k, v, visibility)
        if k.dtype != q.dtype and self.kept_dtype is not None:
            k, v = k.to(q.dtype), v.to(q.dtype)
        if visibility.key_positions is not None and q.shape[2] > QUERIES_AT_ONCE:
            out = self._attend_in_parts(q, k, v, visibility)
        else:
            out = self.attend(q, k, v, visibility)  # [B, H, T, E]
        return out.transpose(1, 2).flatten(-2)

    def keys_values(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """source [B, S, C] -> keys and values, each [B, K, S, E]."""
        shape = (self.n_kv_heads, self.head_dim)
        k = self.k_proj(source).unflatten(-1, shape).transpose(1, 2)
        v = self.v_proj(source).unflatten(-1, shape).transpose(1, 2)
        return k, v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, visibility: Visibility = EVERYTHING) -> Tensor:
        """q [B, H, T, E], k and v [B, K, S, E] -> [B, H, T, E] by the chosen backend."""
        dropout = self.dropout if self.training else 0.0
        if isinstance(self.pattern, Approximation):
            return self._approximate(self.pattern, q, k, v, visibility, dropout)
        T, S = q.shape[2], k.shape[2]
        is_causal = visibility.is_causal(T, S)
        if visibility.pattern is not None and T == S > 1 and self.backend == "auto" and dropout < 1.0:
            if flex_attention_fits(q, k, visibility, dropout):
                return sparse_flex_attention(q, k, v, visibility=visibility, scale=self.scale)
            segments = visibility.segments(len(q), T)
            if segments is not None and sparse_attention_fits(q, k, v):
                return sparse_attention(
                    q, k, v, pattern=visibility.pattern, segments=segments, scale=self.scale, dropout=dropout
                )
        one_row = is_causal or not visibility.depends_on_query(T)  # of the mask, which all queries share
        if self.backend == "auto" and T and dropout < 1.0 and one_row:
            mask = None if is_causal else visibility.mask(T, S, device=q.device)  # [B, 1, 1, S]
            keys = None if mask is None else mask[:, 0, 0]  # [B, S]
            if plain(keys) and fused.attention_fits(q, k, v, is_causal=is_causal, dropout=dropout):
                return fused.attention(
                    q, k, v, scale=self.scale, is_causal=is_causal, keys=keys, dropout=dropout
                )
        groups = self.n_heads // self.n_kv_heads
        if groups > 1 and T == 1 and dropout == 0.0 and self.backend != "exact":
            # one query per head: the heads of a group are queries of their shared keys, without a copy
            B, H, _, E = q.shape
            grouped = q.view(B, self.n_kv_heads, groups, E)
            mask = visibility.mask(1, S, device=q.device)
            return self._kernel(grouped, k, v, mask=mask, is_causal=False, dropout=0.0).view(B, H, 1, E)
        if groups > 1:
            k = k.repeat_interleave(groups, dim=1)  # [B, H, S, E]
            v = v.repeat_interleave(groups, dim=1)
        if self.backend == "exact":
            out, weights = exact_attention(q, k, v, visibility=visibility, scale=self.scale, dropout=dropout)
            if self.recorded is not None:
                self.recorded.append(weights)
            return out
        mask = None if is_causal else visibility.mask(T, S, device=q.device)
        return self._kernel(q, k, v, mask=mask, is_causal=is_causal, dropout=dropout)

    def _approximate(
        self, kind: Approximation, q: Tensor, k: Tensor, v: Tensor, visibility: Visibility, dropout: float
    ) -> Tensor:
        out, weights = approximate_attention(
            kind, q, k, v, visibility=visibility, scale=self.scale, projections=self.projections,
            dropout=dropout, dense=self.backend == "exact",
        )  # fmt: skip
        if weights is not None and self.recorded is not None:
            self.recorded.append(weights)
        return out

    @property
    def projections(self) -> tuple[Tensor, ...]:
        """The matrices E and F of a Linformer; () for other attention."""
        if not isinstance(self.pattern, Linformer):
            return ()
        return self.key_projection.weight, self.value_projection.weight

    def _continue(
        self, kind: Performer, q: Tensor, k: Tensor, v: Tensor, visibility: Visibility, cache: CachedState
    ) -> Tensor:
        """Attend from new tokens to those that the state in ``cache`` has, and update it."""
        before = cast("State | None", cache.state)
        out, cache.state = continue_attention(
            kind, q, k, v, before, new_tokens=visibility.new_tokens, scale=self.scale
        )
        return out.transpose(1, 2).flatten(-2)

    def _attend_in_parts(self, q: Tensor, k: Tensor, v: Tensor, visibility: Visibility) -> Tensor:
        """Attend as :meth:`attend` for many queries after a cache: a mask for all would be quadratic."""
        assert isinstance(self.pattern, Pattern)
        assert self.pattern.remembered is not None
        assert visibility.starts is not None
        assert visibility.key_positions is not None
        first, last = self.pattern.remembered
        positions, outs = visibility.key_positions, []
        for t in range(0, q.shape[2], QUERIES_AT_ONCE):
            starts = visibility.starts + t  # [B]
            near = (positions > starts[:, None] - last) & (positions < starts[:, None] + QUERIES_AT_ONCE)
            seen = (near | (positions < first)).any(dim=0).nonzero()[:, 0]
            part = replace(visibility, starts=starts, key_positions=positions[:, seen])
            queries = q[:, :, t : t + QUERIES_AT_ONCE]
            outs.append(self.attend(queries, k[:, :, seen], v[:, :, seen], part))
        return torch.cat(outs, dim=2)

    def _kernel(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, is_causal: bool, dropout: float
    ) -> Tensor:
        forced = ATTENTION_BACKENDS[self.backend]
        if dropout and forced is None and is_keyed(q):
            if is_causal:
                mask = causal_mask(q.shape[2], k.shape[2], device=q.device)
            return masked_attention(q, k, v, mask=mask, scale=self.scale, dropout=dropout)[0]
        attention = partial(
            F.scaled_dot_product_attention, attn_mask=mask, dropout_p=dropout, is_causal=is_causal,
            scale=self.scale,
        )  # fmt: skip
        if forced is None and any(x.requires_grad for x in (q, k, v)) and _faster_in_float32(q, k):
            with torch.autocast("cpu", enabled=False):
                return attention(q.float(), k.float(), v.float()).to(product_dtype(q))
        if forced is None:
            return attention(q, k, v)
        with sdpa_kernel(forced):
            try:
                return attention(q, k, v)
            except RuntimeError as error:
                if "No available kernel" not in str(error) and "No viable backend" not in str(error):
                    raise
                raise DeviceError(
                    f"attention_backend '{self.backend}' cannot run on {q.device.type} with {q.dtype}, "
                    f"dropout {dropout:g}{', a mask' if mask is not None else ''}; use 'auto' or 'math'"
                ) from None


def set_attention_backend(model: nn.Module, backend: str) -> None:
    """Make every attention layer of ``model`` use ``backend``; raises ConfigError for an unknown name."""
    if backend not in ATTENTION_BACKENDS:
        raise ConfigError(
            f"unknown attention_backend {backend!r}; {did_you_mean(backend, ATTENTION_BACKENDS)}"
        )
    for module in model.modules():
        if isinstance(module, Attention):
            if isinstance(module.pattern, Approximation) and backend not in ("auto", "exact"):
                raise ConfigError(
                    f"attention_backend '{backend}' computes full attention, and attention is "
                    f"'{module.pattern}'; use 'auto' or 'exact'"
                )
            module.backend = backend


def running_kernel(
    backend: str,
    *,
    head_dim: int,
    device: torch.device,
    dtype: torch.dtype,
    dropout: float = 0.0,
    masked: bool = False,
    padded: bool = False,
    elements: int = 0,
    n_keys: int = 0,
    is_causal: bool = False,
    pattern: AttentionKind | None = None,
) -> str:
    """Return the kernel that runs for these settings.

    Wordloom's own are blocked, sparse for a pattern, and linformer, nystrom and performer.  FlexAttention is
    flex, PyTorch's other kernels are flash, efficient and math, and exact is the equation as written.

    ``padded``: some keys are masked for all queries.  ``masked``: some keys are masked for some queries, not
    counting the causal mask.  ``elements`` is the number of elements of q; ``blocked`` needs a minimum.
    ``n_keys``, the number of keys, and ``is_causal`` decide whether PyTorch's kernel is faster
    (:func:`wordloom.nn.fused.flash_is_faster`).  The other kernels are tried on a small example, because
    PyTorch has no query for them on a CPU.

    Raises DeviceError when ``backend`` names one that cannot run here.
    """
    if backend == "exact":
        return "exact"
    if isinstance(pattern, Approximation):
        return str(pattern).partition(":")[0]
    if pattern is not None and backend == "auto" and dropout < 1.0:
        fused_type = dtype in (torch.float32, torch.bfloat16)
        if device.type == "cpu" and fused_type and fused.attention_products(head_dim) is not None:
            return "sparse"
        if device.type == "cuda" and not dropout and head_dim >= LEAST_HEAD_DIM:
            return "flex"
        masked = True
    plain = backend == "auto" and dropout < 1.0 and not masked and device.type == "cpu"
    if plain and elements >= programs.MINIMUM_ELEMENTS and fused.attention_program(dtype, head_dim):
        elements_of_keys = n_keys * head_dim
        if dropout or not fused.flash_is_faster(dtype, elements_of_keys, is_causal=is_causal, trains=True):
            return "blocked"
    T = 16
    q = torch.zeros(1, 1, T, head_dim, device=device, dtype=dtype, requires_grad=True)
    mask = causal_mask(T, T, device=device)[None, None] if masked or padded else None
    tried = ["flash", "efficient", "math"] if backend == "auto" else [backend]
    for name in tried:
        kernel = ATTENTION_BACKENDS[name]
        assert kernel is not None
        try:
            with sdpa_kernel(kernel), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch explains each refusal at length
                F.scaled_dot_product_attention(
                    q, q, q, attn_mask=mask, dropout_p=dropout, is_causal=mask is None
                )
        except RuntimeError:
            continue
        return name
    raise DeviceError(
        f"attention_backend '{backend}' cannot run on {device.type} with {dtype}, dropout {dropout:g}"
        f"{', a mask' if masked else ''}; use 'auto' or 'math'"
    )
