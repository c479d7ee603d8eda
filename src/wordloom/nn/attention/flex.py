"""Sparse attention on a GPU, by PyTorch's FlexAttention, which skips blocks that no query of a block sees."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from wordloom.nn.attention.pattern import Pattern
from wordloom.nn.attention.visibility import Visibility

LEAST_HEAD_DIM = 16  # of its kernels' matrix products


def flex_attention_fits(q: Tensor, k: Tensor, visibility: Visibility, dropout: float) -> bool:
    """Return whether :func:`sparse_flex_attention` accepts these."""
    if torch.compiler.is_compiling():  # its mask is made outside of compiled code
        return False
    new_keys = visibility.starts is None and visibility.key_positions is None and q.shape[2] == k.shape[2]
    return new_keys and q.device.type == "cuda" and not dropout and q.shape[3] >= LEAST_HEAD_DIM


def sparse_flex_attention(q: Tensor, k: Tensor, v: Tensor, *, visibility: Visibility, scale: float) -> Tensor:
    """Attention in which a query sees the keys that ``visibility`` allows.

    q [B, H, T, E]; k, v [B, K, T, E], head h of q with head h // (H / K) of k -> [B, H, T, E].
    """
    mask = block_mask(visibility, len(q), q.shape[2], q.device)
    attention: Any = _compiled() if q.device.type == "cuda" else flex_attention
    found: Tensor = attention(q, k, v, block_mask=mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1])
    return found


def block_mask(visibility: Visibility, B: int, T: int, device: torch.device) -> BlockMask:
    """Return the mask for B rows of T tokens; one without padding and documents is made once."""
    assert visibility.pattern is not None
    if visibility.documents is None and visibility.real_keys is None:
        return _whole_rows(visibility.pattern, T, device)
    if visibility.blocks is None:
        text, position, length = visibility.texts(B, T, device)
        pattern = visibility.pattern

        def mask_mod(b: Tensor, _h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            seen = pattern.allowed(position[b, q], position[b, k], length[b, q])
            return seen & (text[b, q] == text[b, k]) & (text[b, k] >= 0)

        made = create_block_mask(mask_mod, B, None, T, T, device=device)
        object.__setattr__(visibility, "blocks", made)
    return visibility.blocks


@functools.lru_cache(maxsize=32)
def _whole_rows(pattern: Pattern, T: int, device: torch.device) -> BlockMask:
    # a mask from inference mode could not be saved for a backward pass
    with torch.inference_mode(False):
        return create_block_mask(pattern.mask_mod(T), None, None, T, T, device=device)


@functools.cache
def _compiled() -> Any:
    return torch.compile(flex_attention)
