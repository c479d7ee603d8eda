"""GPT-2 and GPT as transformers stores them (model_types ``gpt2`` and ``openai-gpt``).

Their blocks have equal rows: Conv1D layout [in, out], with q, k and v in one tensor.
"""

from __future__ import annotations

from typing import Any

from wordloom.models.gpt import GPTConfig
from wordloom.models.gpt2 import GPT2Config
from wordloom.weights.families.task_heads import heads_beside
from wordloom.weights.formats import ACTIVATION_NAMES, GPT_ALIASES, Format, Setting, Settings
from wordloom.weights.renaming import Ignored, Row, layer_rows

_QKV = tuple(f"blocks.{{i}}.attention.{name}" for name in ("q_proj", "k_proj", "v_proj"))

_BLOCK = (
    *layer_rows("transformer.h.{i}.ln_1", "blocks.{i}.attention_norm"),
    *layer_rows("transformer.h.{i}.attn.c_attn", *_QKV, layout="conv1d"),
    *layer_rows("transformer.h.{i}.attn.c_proj", "blocks.{i}.attention.o_proj", layout="conv1d"),
    *layer_rows("transformer.h.{i}.ln_2", "blocks.{i}.ffn_norm"),
    *layer_rows("transformer.h.{i}.mlp.c_fc", "blocks.{i}.feed_forward.up_proj", layout="conv1d"),
    *layer_rows("transformer.h.{i}.mlp.c_proj", "blocks.{i}.feed_forward.down_proj", layout="conv1d"),
)

_TABLE = (
    Row("transformer.wte.weight", ("token_embedding.weight",)),
    Row("transformer.wpe.weight", ("position_embedding.weight",)),
    *_BLOCK,
    *layer_rows("transformer.ln_f", "final_norm"),
    Row("lm_head.weight", ("lm_head.weight",)),
)

_IGNORED = (
    Ignored(r"h\.\d+\.attn\.bias", "a causal mask"),
    Ignored(r"h\.\d+\.attn\.masked_bias", "a mask value"),
    *heads_beside("gpt2"),
)


def _gpt_settings(vocab_size: int, max_seq_len: int, *middle: Setting, **others: Any) -> Settings:
    """Return the settings of GPT or GPT-2, with their defaults; ``middle`` are the settings that differ."""
    return Settings(
        Setting("vocab_size", "vocab_size", vocab_size),
        Setting("n_positions", "max_seq_len", max_seq_len),
        Setting("n_ctx", "max_seq_len", read=False),  # still read by converters
        Setting("n_embd", "dim", 768),
        Setting("n_layer", "n_layers", 12),
        Setting("n_head", "n_heads", 12),
        *middle,
        Setting("layer_norm_epsilon", "norm_eps", 1e-5),
        Setting("resid_pdrop", "dropout", 0.1),
        Setting("embd_pdrop", "embedding_dropout", 0.1),
        Setting("attn_pdrop", "attention_dropout", 0.1),
        Setting("tie_word_embeddings", "tie_embeddings", True),
        **others,
    )


_SETTINGS = _gpt_settings(
    50257,
    1024,
    Setting("n_inner", "hidden_dim"),
    Setting("activation_function", "activation", "gelu_new"),
    only={
        "is_causal": True,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
)


def _config_to(config: GPT2Config) -> dict[str, Any] | None:
    if not config.bias or config.activation not in ACTIVATION_NAMES:
        return None
    return _SETTINGS.write(config)


FORMAT = Format(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    prefixes=("transformer.",),
    table=_TABLE,
    ignored=_IGNORED,
    config_from=_SETTINGS.read,
    config_to=_config_to,
    aliases=GPT_ALIASES,
)


# -- GPT -------------------------------------------------------------------------------------------------

_GPT_TABLE = (
    Row("transformer.tokens_embed.weight", ("token_embedding.weight",)),
    Row("transformer.positions_embed.weight", ("position_embedding.weight",)),
    *_BLOCK,
    Row("lm_head.weight", ("lm_head.weight",)),
)

_GPT_IGNORED = (
    Ignored(r"h\.\d+\.attn\.bias", "a causal mask"),
    Ignored(r"position_ids", "position numbers"),
    *heads_beside("openai-gpt"),
)

_GPT_ACTIVATION_NAMES = {"gelu_tanh": "gelu", "relu": "relu", "silu": "silu"}
_GPT_SETTINGS = _gpt_settings(
    40478,
    512,
    Setting("afn", "activation", "gelu"),  # "gelu" is the tanh approximation in this family
    only={"is_causal": True},
    activations={theirs: ours for ours, theirs in _GPT_ACTIVATION_NAMES.items()}
    | {"gelu_new": "gelu_tanh", "swish": "silu"},
    activation_names=_GPT_ACTIVATION_NAMES,
)


def _gpt_config_to(config: GPTConfig) -> dict[str, Any] | None:
    c = config
    learned = c.positions == "learned" and not c.output_bias
    if not learned or c.activation not in _GPT_ACTIVATION_NAMES or c.hidden_dim not in (None, 4 * c.dim):
        return None
    return _GPT_SETTINGS.write(c)


GPT = Format(
    model_type="openai-gpt",
    architecture="OpenAIGPTLMHeadModel",
    prefixes=("transformer.",),
    table=_GPT_TABLE,
    ignored=_GPT_IGNORED,
    config_from=_GPT_SETTINGS.read,
    config_to=_gpt_config_to,
    aliases=GPT_ALIASES,
)
