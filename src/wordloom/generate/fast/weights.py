"""Which models the compiled decoding programs compute exactly, and the small weights that they read."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from wordloom.generate.conditioned import Conditioned
from wordloom.kernels.acceptance import fall_back
from wordloom.models import MODELS
from wordloom.models.building.deviation import deviation
from wordloom.models.building.quantized import is_quantized
from wordloom.nn.attention import Approximation
from wordloom.nn.quantized import stored_weight

ACTIVATIONS = {"relu": 0, "gelu": 1, "gelu_tanh": 2, "silu": 3}  # as numbered in kernels/decoding/leaves.py
MOST_WEIGHTS = 1 << 26  # of decoder and head, which are copied; larger ones gain little

_CAUSAL = ("gpt", "gpt2", "llama", "rnn")
_CONDITIONED = ("transformer", "bert_generation")  # families that write from a source


def accepts(model: Any) -> bool:
    """Return whether a program computes what ``model`` does; if not, log the reason at level debug.

    A program computes a model of a known family that is exactly what its config builds: every layer has the
    type and the settings that the config gives it, and no hook.  The weights are plain contiguous tensors on
    the CPU, all float32 or all bfloat16.
    """
    reason = _refusal(model)
    if reason:
        fall_back("decoding", reason)
    return not reason


def _refusal(model: Any) -> str:
    """Return why no program computes what ``model`` does; "" if one does."""
    inner = model.model if type(model) is Conditioned else model
    family = next((name for name, family in MODELS.items() if type(inner) is family.model), None)
    if family not in (_CAUSAL if inner is model else _CONDITIONED):
        return "there is no program for this model"
    if find_spec("numba") is None:
        return "numba is not installed"
    reason = deviation(inner)
    if reason:
        return reason
    parameters = list(inner.parameters())
    dtype = parameters[0].dtype
    if dtype not in (torch.float32, torch.bfloat16) or any(p.dtype != dtype for p in parameters):
        return "the weights are neither all float32 nor all bfloat16"
    if is_quantized(inner) and dtype != torch.float32:
        return "norms and biases beside weights in 8 bits are not float32"
    if any(p.device.type != "cpu" or not p.is_contiguous() for p in (*parameters, *inner.buffers())):
        return "the weights are not contiguous on the CPU"
    if family != "rnn" and inner.config.activation not in ACTIVATIONS:
        return f"there is no program for activation {inner.config.activation}"
    for pattern in (getattr(module, "pattern", None) for module in inner.modules()):
        if isinstance(pattern, Approximation) or (pattern is not None and family in _CONDITIONED):
            return f"there is no program for attention '{pattern}' in this model"
    if family == "llama" and inner.rotary.kind == "dynamic":
        return "the rotary frequencies depend on the length"
    return _refusal_of_sizes(inner) if family in _CONDITIONED else ""


def _refusal_of_sizes(model: Any) -> str:
    from wordloom.kernels.registers import LANES

    if model.config.dim % LANES or model.config.ffn_dim % LANES:
        return f"dim and hidden_dim are not multiples of {LANES}"
    if decoder_weights(model) > MOST_WEIGHTS:
        return "products take most of the time in a model of this size"
    return ""


def decoder_weights(model: Any) -> int:
    """Return the number of weights in the decoder's blocks and the head of an encoder-decoder."""
    return n_weights(model.decoder_blocks) + n_weights(model.lm_head)


def n_weights(module: nn.Module) -> int:
    """Return the number of weights; those in 8 bits are packed with a 16th of their number in scales."""
    packed = [buffer for name, buffer in module.named_buffers() if name.rpartition(".")[2] == "packed"]
    return sum(p.numel() for p in module.parameters()) + sum(p.numel() for p in packed)


def kept_dtype(model: Any) -> torch.dtype:
    """Return the dtype of the matrices of ``model``: int8 if they are packed in 8 bits."""
    weight = stored_weight(model.lm_head)
    return torch.int8 if weight.dtype == torch.uint8 else weight.dtype


def whole_vectors(n: int) -> int:
    """Return ``n`` rounded up to whole vector registers, which hold 8 or 16 numbers."""
    return -(-n // 16) * 16


def stacked(parts: Sequence[Tensor | None], dims: int = 1) -> np.ndarray:
    """Return the parts of all layers, each of ``dims`` dimensions or None, as float32 [L, ..] or [L, 0, ..].

    Raises RuntimeError unless all parts have one shape, since a program reads one shape for all layers.
    """
    present = [part for part in parts if part is not None]
    if not present:
        return np.zeros((len(parts), *[0] * dims), dtype=np.float32)
    if len(present) < len(parts):
        raise RuntimeError(f"{len(present)} of {len(parts)} layers have a tensor that the others lack")
    return torch.stack(present).detach().float().numpy()


def stacked_norms(norms: list[list[nn.Module]], name: str) -> np.ndarray:
    """Return the parameters ``name`` of the norms [L, n] as [L, n, D] float32, or [L, n, 0] without them."""
    flat = stacked([getattr(norm, name, None) for layer in norms for norm in layer])
    return flat.reshape(len(norms), len(norms[0]), flat.shape[1])


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return float32 or bfloat16 zeros whose memory pages are allocated when they are first written."""
    if dtype == torch.float32:
        return torch.from_numpy(np.zeros(shape, np.float32))
    return torch.from_numpy(np.zeros(shape, np.int16)).view(dtype)
