"""LLaMA as transformers stores it (model_type ``llama``): the layout is ours, rotary pairs are halves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wordloom.errors import CheckpointError, did_you_mean
from wordloom.models.llama import LlamaConfig
from wordloom.nn.positions import ROPE_SCALINGS
from wordloom.weights.families.task_heads import heads_beside
from wordloom.weights.formats import ACTIVATION_NAMES, Format, Setting, Settings, refuse_unless
from wordloom.weights.renaming import Ignored, Row, layer_rows

_TABLE = (
    Row("model.embed_tokens.weight", ("token_embedding.weight",)),
    Row("model.layers.{i}.input_layernorm.weight", ("blocks.{i}.attention_norm.weight",)),
    *(
        row
        for name in ("q_proj", "k_proj", "v_proj", "o_proj")
        for row in layer_rows(f"model.layers.{{i}}.self_attn.{name}", f"blocks.{{i}}.attention.{name}")
    ),
    Row("model.layers.{i}.post_attention_layernorm.weight", ("blocks.{i}.ffn_norm.weight",)),
    *(
        row
        for name in ("gate_proj", "up_proj", "down_proj")
        for row in layer_rows(f"model.layers.{{i}}.mlp.{name}", f"blocks.{{i}}.feed_forward.{name}")
    ),
    Row("model.norm.weight", ("final_norm.weight",)),
    Row("lm_head.weight", ("lm_head.weight",)),
)

_IGNORED = (
    Ignored(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq", "rotary frequencies"),
    Ignored(r"rotary_emb\.inv_freq", "rotary frequencies"),
    *heads_beside("llama"),
)

_SETTINGS = Settings(
    Setting("vocab_size", "vocab_size", 32000),
    Setting("max_position_embeddings", "max_seq_len", 2048),
    Setting("hidden_size", "dim", 4096),
    Setting("num_hidden_layers", "n_layers", 32),
    Setting("num_attention_heads", "n_heads", 32),
    Setting("num_key_value_heads", "n_kv_heads", written="kv_heads"),
    Setting("head_dim", "head_dim", written="head_width"),
    Setting("intermediate_size", "hidden_dim", 11008, written="ffn_dim"),
    Setting("hidden_act", "activation", "silu"),
    Setting("attention_bias", "attention_bias", False),
    Setting("mlp_bias", "feed_forward_bias", False),
    Setting("attention_dropout", "attention_dropout", 0.0),
    Setting("rms_norm_eps", "norm_eps", 1e-6),
    only={"is_causal": True},
    # recent configs spell the tanh approximation so; GPT-2's say gelu_new
    activation_names=ACTIVATION_NAMES | {"gelu_tanh": "gelu_pytorch_tanh"},
)


def _config_from(theirs: Mapping[str, Any]) -> dict[str, Any]:
    settings = _SETTINGS.read(theirs)
    theta, scaling = _rope_from(theirs)
    return settings | {
        "attention_dropout": settings["attention_dropout"] or 0.0,
        "rope_theta": theta,
        "rope_scaling": scaling,
        "tie_embeddings": theirs.get("tie_word_embeddings", False),
    }


def _rope_from(theirs: Mapping[str, Any]) -> tuple[float, dict[str, Any] | None]:
    """Return rope_theta and our ``rope_scaling``, from ``rope_parameters`` or the two older keys.

    Defaults and precedence are those of transformers 5's ``convert_rope_params_to_dict``.
    """
    parameters = theirs.get("rope_scaling") or theirs.get("rope_parameters") or {}
    if not isinstance(parameters, Mapping):
        raise CheckpointError(f"rope_parameters must be a table of settings, not {parameters!r}")
    scaling = dict(parameters)
    kind = scaling.pop("rope_type", None) or scaling.get("type", "default")
    scaling.pop("type", None)
    if kind not in ROPE_SCALINGS:
        raise CheckpointError(f"unsupported rope_type {kind!r}; {did_you_mean(str(kind), ROPE_SCALINGS)}")
    refuse_unless({**theirs, **scaling}, partial_rotary_factor=1.0)
    scaling.pop("partial_rotary_factor", None)
    theta = _first_set(scaling.pop("rope_theta", None), theirs.get("rope_theta", 10000.0))
    context = theirs.get("max_position_embeddings", 2048)
    if kind == "dynamic":  # transformers reads only the model's context
        scaling["original_max_position_embeddings"] = context
    elif kind == "llama3":
        key = "original_max_position_embeddings"
        scaling[key] = _first_set(theirs.get(key), scaling.get(key), context)
    if kind == "default":
        return theta, None
    return theta, {"rope_type": kind, **scaling}


def _first_set(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _rope_to(config: LlamaConfig) -> dict[str, Any] | None:
    """Return ``rope_parameters``, or None if transformers would rotate differently."""
    scaling = dict(config.rope_scaling or {})
    kind = scaling.pop("rope_type", None) or scaling.get("type", "default")
    scaling.pop("type", None)
    if kind == "dynamic" and scaling.pop("original_max_position_embeddings", None) != config.max_seq_len:
        return None
    return {"rope_type": kind, "rope_theta": config.rope_theta, **(scaling if kind != "default" else {})}


def _config_to(config: LlamaConfig) -> dict[str, Any] | None:
    c = config
    rope = _rope_to(c)
    # transformers refuses a dim that the heads do not divide, head_dim given or not
    if rope is None or c.activation not in ACTIVATION_NAMES or c.dim % c.n_heads:
        return None
    scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
    return {
        **_SETTINGS.write(c),
        "rope_parameters": rope,
        # for readers older than transformers 5, which would silently fall back to 10,000
        "rope_theta": c.rope_theta,
        "rope_scaling": scaling if scaling["rope_type"] != "default" else None,
        "tie_word_embeddings": c.tie_embeddings,
    }


FORMAT = Format(
    model_type="llama",
    architecture="LlamaForCausalLM",
    prefixes=("model.", "transformer."),
    table=_TABLE,
    ignored=_IGNORED,
    config_from=_config_from,
    config_to=_config_to,
)
