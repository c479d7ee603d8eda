"""GPT as transformers stores it (model_type ``openai-gpt``): the rows of GPT-2's blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wordloom.models.checks.settings import dropout_or
from wordloom.models.gpt import GPTConfig
from wordloom.weights.families.gpt2 import BLOCK, dropouts_from
from wordloom.weights.families.task_heads import heads_beside
from wordloom.weights.formats import GPT_ALIASES, Format, activation_from, refuse_unless
from wordloom.weights.renaming import Ignored, Row

__all__ = ["FORMAT"]

_TABLE = (
    Row("transformer.tokens_embed.weight", ("token_embedding.weight",)),
    Row("transformer.positions_embed.weight", ("position_embedding.weight",)),
    *BLOCK,
    Row("lm_head.weight", ("lm_head.weight",)),
)

_IGNORED = (
    Ignored(r"h\.\d+\.attn\.bias", "a causal mask"),
    Ignored(r"position_ids", "position numbers"),
    *heads_beside("openai-gpt"),
)

# Theirs -> ours: "gelu" is the tanh approximation in this family.
_ACTIVATIONS = {"gelu": "gelu_tanh", "gelu_new": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
_ACTIVATION_NAMES = {"gelu_tanh": "gelu", "relu": "relu", "silu": "silu"}


def _config_from(theirs: Mapping[str, Any]) -> dict[str, Any]:
    refuse_unless(theirs, is_causal=True)
    return {
        "vocab_size": theirs.get("vocab_size", 40478),
        "max_seq_len": theirs.get("n_positions", 512),
        "dim": theirs.get("n_embd", 768),
        "n_layers": theirs.get("n_layer", 12),
        "n_heads": theirs.get("n_head", 12),
        "activation": activation_from(theirs, "afn", "gelu", _ACTIVATIONS),
        "norm_eps": theirs.get("layer_norm_epsilon", 1e-5),
        "tie_embeddings": theirs.get("tie_word_embeddings", True),
        **dropouts_from(theirs),
    }


def _config_to(config: GPTConfig) -> dict[str, Any] | None:
    c = config
    learned = c.positions == "learned" and not c.output_bias
    if not learned or c.activation not in _ACTIVATION_NAMES or c.hidden_dim not in (None, 4 * c.dim):
        return None
    return {
        "vocab_size": c.vocab_size,
        "n_positions": c.max_seq_len,
        "n_ctx": c.max_seq_len,
        "n_embd": c.dim,
        "n_layer": c.n_layers,
        "n_head": c.n_heads,
        "afn": _ACTIVATION_NAMES[c.activation],
        "layer_norm_epsilon": c.norm_eps,
        "resid_pdrop": c.dropout,
        "embd_pdrop": dropout_or(c.embedding_dropout, c.dropout),
        "attn_pdrop": dropout_or(c.attention_dropout, c.dropout),
        "tie_word_embeddings": c.tie_embeddings,
    }


FORMAT = Format(
    model_type="openai-gpt",
    architecture="OpenAIGPTLMHeadModel",
    prefixes=("transformer.",),
    table=_TABLE,
    ignored=_IGNORED,
    config_from=_config_from,
    config_to=_config_to,
    aliases=GPT_ALIASES,
)
