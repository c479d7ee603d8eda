"""GPT-2 as transformers stores it (model_type ``gpt2``): Conv1D layout [in, out], q, k, v in one tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wordloom.models.checks.settings import dropout_or
from wordloom.models.gpt2 import GPT2Config
from wordloom.weights.families.task_heads import heads_beside
from wordloom.weights.formats import (
    ACTIVATION_NAMES,
    GPT_ALIASES,
    Format,
    activation_from,
    refuse_unless,
)
from wordloom.weights.renaming import Ignored, Row

__all__ = ["BLOCK", "FORMAT", "dropouts_from"]


def _layer(theirs: str, *ours: str, layout: str) -> tuple[Row, Row]:
    """Return the rows of a layer's weight and bias."""
    weight = Row(f"{theirs}.weight", tuple(f"{name}.weight" for name in ours), layout)
    return weight, Row(f"{theirs}.bias", tuple(f"{name}.bias" for name in ours), layout)


_QKV = tuple(f"blocks.{{i}}.attention.{name}" for name in ("q_proj", "k_proj", "v_proj"))

BLOCK = (
    *_layer("transformer.h.{i}.ln_1", "blocks.{i}.attention_norm", layout="linear"),
    *_layer("transformer.h.{i}.attn.c_attn", *_QKV, layout="conv1d"),
    *_layer("transformer.h.{i}.attn.c_proj", "blocks.{i}.attention.o_proj", layout="conv1d"),
    *_layer("transformer.h.{i}.ln_2", "blocks.{i}.ffn_norm", layout="linear"),
    *_layer("transformer.h.{i}.mlp.c_fc", "blocks.{i}.feed_forward.up_proj", layout="conv1d"),
    *_layer("transformer.h.{i}.mlp.c_proj", "blocks.{i}.feed_forward.down_proj", layout="conv1d"),
)

_TABLE = (
    Row("transformer.wte.weight", ("token_embedding.weight",)),
    Row("transformer.wpe.weight", ("position_embedding.weight",)),
    *BLOCK,
    *_layer("transformer.ln_f", "final_norm", layout="linear"),
    Row("lm_head.weight", ("lm_head.weight",)),
)

_IGNORED = (
    Ignored(r"h\.\d+\.attn\.bias", "a causal mask"),
    Ignored(r"h\.\d+\.attn\.masked_bias", "a mask value"),
    *heads_beside("gpt2"),
)


def dropouts_from(theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the three dropouts of a GPT or GPT-2; transformers' defaults are 0.1."""
    return {
        "dropout": theirs.get("resid_pdrop", 0.1),
        "embedding_dropout": theirs.get("embd_pdrop", 0.1),
        "attention_dropout": theirs.get("attn_pdrop", 0.1),
    }


def _config_from(theirs: Mapping[str, Any]) -> dict[str, Any]:
    refuse_unless(
        theirs,
        is_causal=True,
        scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
        add_cross_attention=False,
    )
    return {
        "vocab_size": theirs.get("vocab_size", 50257),
        "max_seq_len": theirs.get("n_positions", 1024),
        "dim": theirs.get("n_embd", 768),
        "n_layers": theirs.get("n_layer", 12),
        "n_heads": theirs.get("n_head", 12),
        "hidden_dim": theirs.get("n_inner"),
        "activation": activation_from(theirs, "activation_function", "gelu_new"),
        "norm_eps": theirs.get("layer_norm_epsilon", 1e-5),
        "tie_embeddings": theirs.get("tie_word_embeddings", True),
        **dropouts_from(theirs),
    }


def _config_to(config: GPT2Config) -> dict[str, Any] | None:
    c = config
    if not c.bias or c.activation not in ACTIVATION_NAMES:
        return None
    return {
        "vocab_size": c.vocab_size,
        "n_positions": c.max_seq_len,
        "n_ctx": c.max_seq_len,  # still read by converters
        "n_embd": c.dim,
        "n_layer": c.n_layers,
        "n_head": c.n_heads,
        "n_inner": c.hidden_dim,
        "activation_function": ACTIVATION_NAMES[c.activation],
        "layer_norm_epsilon": c.norm_eps,
        "resid_pdrop": c.dropout,
        "embd_pdrop": dropout_or(c.embedding_dropout, c.dropout),
        "attn_pdrop": dropout_or(c.attention_dropout, c.dropout),
        "tie_word_embeddings": c.tie_embeddings,
    }


FORMAT = Format(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    prefixes=("transformer.",),
    table=_TABLE,
    ignored=_IGNORED,
    config_from=_config_from,
    config_to=_config_to,
    aliases=GPT_ALIASES,
)
