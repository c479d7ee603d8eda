"""LLaMA as transformers stores it: the layout is ours, rotary pairs are halves.

Its model_type is ``llama`` for full attention, ``mistral`` for one band in all layers, and ``ministral`` for
layers with that band and full ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wordloom.errors import CheckpointError, did_you_mean
from wordloom.models.llama import LlamaConfig
from wordloom.nn.attention.kinds import Band
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

_LLAMA = {
    "max_position_embeddings": 2048,
    "num_key_value_heads": None,
    "intermediate_size": 11008,
}
_MISTRAL = {
    "max_position_embeddings": 131072,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
}


def _settings(defaults: Mapping[str, Any], *more: Setting) -> Settings:
    return Settings(
        Setting("vocab_size", "vocab_size", 32000),
        Setting("max_position_embeddings", "max_seq_len", defaults["max_position_embeddings"]),
        Setting("hidden_size", "dim", 4096),
        Setting("num_hidden_layers", "n_layers", 32),
        Setting("num_attention_heads", "n_heads", 32),
        Setting("num_key_value_heads", "n_kv_heads", defaults["num_key_value_heads"], written="kv_heads"),
        Setting("head_dim", "head_dim", written="head_width"),
        Setting("intermediate_size", "hidden_dim", defaults["intermediate_size"], written="ffn_dim"),
        Setting("hidden_act", "activation", "silu"),
        *more,
        Setting("attention_dropout", "attention_dropout", 0.0),
        Setting("rms_norm_eps", "norm_eps", 1e-6),
        only={"is_causal": True},
        # recent configs spell the tanh approximation so; GPT-2's say gelu_new
        activation_names=ACTIVATION_NAMES | {"gelu_tanh": "gelu_pytorch_tanh"},
    )


_SETTINGS = {
    "llama": _settings(
        _LLAMA,
        Setting("attention_bias", "attention_bias", False),
        Setting("mlp_bias", "feed_forward_bias", False),
    ),
    "mistral": _settings(_MISTRAL),
    "ministral": _settings(_MISTRAL),
}
_WINDOW = 4096  # of a Mistral whose config.json names none; null is full attention


def _config_from(theirs: Mapping[str, Any]) -> dict[str, Any]:
    model_type = theirs.get("model_type", "llama")
    settings = _SETTINGS[model_type].read(theirs)
    theta, scaling = _rope_from(theirs)
    return settings | {
        "attention": "full" if model_type == "llama" else _attention_from(theirs, settings["n_layers"]),
        "attention_dropout": settings["attention_dropout"] or 0.0,
        "rope_theta": theta,
        "rope_scaling": scaling,
        "tie_embeddings": theirs.get("tie_word_embeddings", False),
    }


def _attention_from(theirs: Mapping[str, Any], n_layers: int) -> str:
    """Return the attention of a Mistral, whose layers have one window, or of a Ministral with both kinds."""
    window = theirs.get("sliding_window", _WINDOW)
    if window is not None and (type(window) is not int or window < 1):
        raise CheckpointError(f"sliding_window can be a whole number from 1 or null, not {window!r}")
    banded = "full" if window is None else f"band:{window}"
    kinds = theirs.get("layer_types")
    if kinds is None or theirs["model_type"] == "mistral":
        return banded
    patterns = {"sliding_attention": banded, "full_attention": "full"}
    if not isinstance(kinds, list) or any(kind not in patterns for kind in map(str, kinds)):
        raise CheckpointError(f"layer_types can be a list of {' and '.join(patterns)}, not {kinds!r}")
    if len(kinds) != n_layers:
        raise CheckpointError(f"layer_types lists {len(kinds)} of {n_layers} layers")
    return ",".join(patterns[kind] for kind in kinds)


def _attention_to(config: LlamaConfig) -> dict[str, Any] | None:
    """Return the keys of the family that has the config's attention; None if transformers has none."""
    texts = list(map(str, config.patterns))  # approximations have kinds that are no bands
    bands = [kind for pattern in config.patterns for kind in pattern.kinds if type(kind) is Band]
    if set(texts) == {"full"}:
        return {"model_type": "llama"}
    if config.attention_bias or config.feed_forward_bias or not bands:
        return None
    band = bands[0]
    if set(texts) == {str(band)}:
        return {
            "model_type": "mistral",
            "architectures": ["MistralForCausalLM"],
            "sliding_window": band.width,
        }
    kinds = {str(band): "sliding_attention", "full": "full_attention"}
    if any(text not in kinds for text in texts):
        return None
    return {
        "model_type": "ministral",
        "architectures": ["MinistralForCausalLM"],
        "sliding_window": band.width,
        "layer_types": [kinds[text] for text in texts],
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
    rope, attention = _rope_to(c), _attention_to(c)
    # transformers refuses a dim that the heads do not divide, head_dim given or not
    if rope is None or attention is None or c.activation not in ACTIVATION_NAMES or c.dim % c.n_heads:
        return None
    scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
    return {
        **attention,
        **_SETTINGS[attention["model_type"]].write(c),
        "rope_parameters": rope,
        # for readers older than transformers 5, which would silently fall back to 10,000
        "rope_theta": c.rope_theta,
        "rope_scaling": scaling if scaling["rope_type"] != "default" else None,
        "tie_word_embeddings": c.tie_embeddings,
    }


FORMAT = Format(
    model_type="llama",
    other_types=("mistral", "ministral"),
    writes_patterns=True,
    architecture="LlamaForCausalLM",
    prefixes=("model.", "transformer."),
    table=_TABLE,
    ignored=_IGNORED,
    config_from=_config_from,
    config_to=_config_to,
)
