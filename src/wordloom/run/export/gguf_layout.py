"""The settings and the names of tensors that llama.cpp reads, from our GPT-2 and LLaMA.

A LLaMA whose layers attend to bands is written as the architecture ``granite_swa``, the only one of llama.cpp
that is a LLaMA with a sliding window per layer.  Its scales are set to 1, and its attention sinks, which it
requires, to minus infinity, so that they get no attention.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wordloom.errors import CheckpointError
from wordloom.models import family_of
from wordloom.models.gpt2 import GPT2Config
from wordloom.models.llama import LlamaConfig
from wordloom.nn import halves_to_pairs
from wordloom.nn.attention.kinds import Band
from wordloom.nn.positions import Rotary

_OUTSIDE = {
    "token_embedding": "token_embd", "position_embedding": "position_embd", "final_norm": "output_norm",
    "lm_head": "output",
}  # fmt: skip
_IN_BLOCK = {
    "attention_norm": "attn_norm", "attention.q_proj": "attn_q", "attention.k_proj": "attn_k",
    "attention.v_proj": "attn_v", "attention.o_proj": "attn_output", "ffn_norm": "ffn_norm",
    "feed_forward.gate_proj": "ffn_gate", "feed_forward.up_proj": "ffn_up",
    "feed_forward.down_proj": "ffn_down",
}  # fmt: skip
_QKV = ("attention.q_proj", "attention.k_proj", "attention.v_proj")


class Setting(NamedTuple):
    """A key of the file, behind the name of the architecture, and its value."""

    key: str
    value: Any


class Layout(NamedTuple):
    """The name of an architecture in llama.cpp, and the settings of the model behind that name."""

    architecture: str
    settings: list[Setting]


def layout_of(config: Any) -> Layout:
    """Return the layout of a model; raises CheckpointError for one that llama.cpp would compute otherwise."""
    if type(config) is GPT2Config:
        return _gpt2(config)
    if type(config) is LlamaConfig:
        return _llama(config)
    raise CheckpointError(
        f"GGUF is for gpt2 and llama, and this is a model of family '{family_of(config)}', which llama.cpp "
        "does not run"
    )


def tensors_of(model: Any, layout: Layout) -> Iterator[tuple[str, Tensor]]:
    """Yield the name and the values of each tensor that llama.cpp expects; tied weights once."""
    c, parameters = model.config, dict(model.named_parameters())  # a tied head is the embedding
    for name, tensor in parameters.items():
        if not name.startswith("blocks."):
            part, _, kind = name.rpartition(".")
            yield f"{_OUTSIDE[part]}.{kind}", tensor
            continue
        _, block, rest = name.split(".", 2)
        part, _, kind = rest.rpartition(".")
        place = f"blk.{block}.{{}}.{kind}"
        if isinstance(c, GPT2Config) and part in _QKV:
            if part == _QKV[0]:
                fused = [parameters[f"blocks.{block}.{each}.{kind}"] for each in _QKV]
                yield place.format("attn_qkv"), torch.cat(fused)
        elif isinstance(c, LlamaConfig) and part in _QKV[:2]:
            pairs = halves_to_pairs(tensor, head_dim=c.head_width)  # llama.cpp rotates neighbours
            yield place.format(_IN_BLOCK[part]), pairs
        else:
            yield place.format(_IN_BLOCK[part]), tensor
    yield from _further_tensors(c, layout)


def _further_tensors(config: Any, layout: Layout) -> Iterator[tuple[str, Tensor]]:
    """Yield tensors that llama.cpp requires and the model does not have."""
    c = config
    if isinstance(c, GPT2Config):
        if not c.bias:
            yield "output_norm.bias", torch.zeros(c.dim)
            widths = {"attn_norm": c.dim, "attn_qkv": 3 * c.dim, "attn_output": c.dim, "ffn_norm": c.dim,
                      "ffn_up": c.hidden_dim or 4 * c.dim, "ffn_down": c.dim}  # fmt: skip
            for i in range(c.n_layers):
                yield from ((f"blk.{i}.{name}.bias", torch.zeros(width)) for name, width in widths.items())
        return
    if layout.architecture == "granite_swa":
        for i in range(c.n_layers):
            yield f"blk.{i}.attn_sinks.weight", torch.full((c.n_heads,), -math.inf)
    if _scaling(c) == "llama3":
        plain = Rotary(head_dim=c.head_width, theta=c.rope_theta).frequencies()
        scaled = Rotary(head_dim=c.head_width, theta=c.rope_theta, scaling=c.rope_scaling).frequencies()
        yield "rope_freqs.weight", plain / scaled


def _scaling(config: LlamaConfig) -> str:
    scaling = config.rope_scaling or {}
    return str(scaling.get("rope_type", scaling.get("type", "default")))


def _gpt2(c: GPT2Config) -> Layout:
    _require_activation(c.activation, "gelu_tanh")
    if {str(pattern) for pattern in c.patterns} != {"full"}:
        raise CheckpointError(f"llama.cpp's GPT-2 has no attention '{c.attention}', only full")
    return Layout("gpt2", [
        *_shape(c, c.n_heads, c.hidden_dim or 4 * c.dim),
        Setting("attention.layer_norm_epsilon", c.norm_eps),
    ])  # fmt: skip


def _llama(c: LlamaConfig) -> Layout:
    _require_activation(c.activation, "silu")
    windows = _windows(c)
    settings = [
        *_shape(c, c.kv_heads, c.ffn_dim),
        Setting("vocab_size", c.vocab_size),
        Setting("attention.layer_norm_rms_epsilon", c.norm_eps),
        Setting("attention.key_length", c.head_width),
        Setting("attention.value_length", c.head_width),
        Setting("rope.dimension_count", c.head_width),
        Setting("rope.freq_base", float(c.rope_theta)),
    ]
    scaling = _scaling(c)
    if scaling == "dynamic":
        raise CheckpointError("llama.cpp has no rope scaling 'dynamic', only linear and llama3")
    if scaling == "linear":
        assert c.rope_scaling is not None
        settings += [
            Setting("rope.scaling.type", "linear"),
            Setting("rope.scaling.factor", float(c.rope_scaling["factor"])),
        ]
    if not any(windows):
        return Layout("llama", settings)
    settings += [
        Setting("attention.sliding_window", max(windows)),
        Setting("attention.sliding_window_pattern", [bool(width) for width in windows]),
        Setting("attention.scale", 1 / math.sqrt(c.head_width)),
        Setting("logit_scale", 1.0),
        Setting("residual_scale", 1.0),
        Setting("embedding_scale", 1.0),
    ]
    return Layout("granite_swa", settings)


def _shape(c: Any, kv_heads: int, hidden_dim: int) -> list[Setting]:
    return [
        Setting("context_length", c.max_seq_len),
        Setting("embedding_length", c.dim),
        Setting("block_count", c.n_layers),
        Setting("feed_forward_length", hidden_dim),
        Setting("attention.head_count", c.n_heads),
        Setting("attention.head_count_kv", kv_heads),
    ]


def _windows(c: LlamaConfig) -> list[int]:
    """Return the width of the band of each layer, 0 for a layer that attends to all; all bands are equal."""
    widths = []
    for pattern in c.patterns:
        kinds: tuple[Any, ...] = getattr(pattern, "kinds", ())
        text = str(pattern)
        if text == "full":
            widths.append(0)
        elif len(kinds) == 1 and type(kinds[0]) is Band:
            widths.append(kinds[0].width if kinds[0].width < c.max_seq_len else 0)
        else:
            raise CheckpointError(
                f"llama.cpp has no attention '{text}'; allowed: full, and bands of one width"
            )
    if len(different := sorted({width for width in widths if width})) > 1:
        raise CheckpointError(
            f"llama.cpp has one width for all bands, and the layers have {', '.join(map(str, different))}"
        )
    return widths


def _require_activation(given: str, allowed: str) -> None:
    if given != allowed:
        raise CheckpointError(f"llama.cpp has no activation '{given}' here, only {allowed}")
