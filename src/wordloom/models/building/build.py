"""Build a model, with memory or without, from its config, and a config from plain values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from wordloom.errors import ConfigError, did_you_mean
from wordloom.models.families import MODELS, family_of
from wordloom.nn.attention.setting import sequence_of_layers


class _NoDefaultInit(TorchFunctionMode):
    """Skip the values that PyTorch's layers draw when they are constructed.

    ``init_weights`` or a file sets them later.  On the meta device each draw would cost milliseconds, and the
    first one an import of seconds.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_):
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


def skeleton(config: Any) -> nn.Module:
    """Return the model of ``config`` on the meta device: every shape and name, no memory."""
    with torch.device("meta"), _NoDefaultInit():
        return MODELS[family_of(config)].model(config)


@contextmanager
def without_weights(wanted: bool = True) -> Iterator[None]:
    """Have :func:`build` and ``load_model`` return models on the meta device within the block, if ``wanted``.

    Of several ranks on a machine, one builds the model and sends its weights to the others.
    """
    before = _WITHOUT_WEIGHTS.set(wanted)
    try:
        yield
    finally:
        _WITHOUT_WEIGHTS.reset(before)


_WITHOUT_WEIGHTS = ContextVar("without_weights", default=False)


def are_weights_left_out() -> bool:
    """Return whether models are now built without weights."""
    return _WITHOUT_WEIGHTS.get()


def build(config: Any, *, generator: torch.Generator | None = None) -> Any:
    """Return the model of ``config``, initialised, on the CPU in float32."""
    if are_weights_left_out():
        return skeleton(config)
    with torch.device("cpu"), _NoDefaultInit():
        model: Any = MODELS[family_of(config)].model(config)
    model.init_weights(generator)
    return model


# Other libraries' names for our settings, so that the error can say ours.
_FOREIGN = {
    "n_embd": "dim", "hidden_size": "dim", "d_model": "dim", "n_layer": "n_layers", "num_layers": "n_layers",
    "num_hidden_layers": "n_layers", "n_head": "n_heads", "num_heads": "n_heads",
    "num_attention_heads": "n_heads", "num_key_value_heads": "n_kv_heads",
    "n_query_groups": "n_kv_heads", "block_size": "max_seq_len",
    "n_positions": "max_seq_len", "max_position_embeddings": "max_seq_len", "intermediate_size": "hidden_dim",
    "n_inner": "hidden_dim", "ffn_dim": "hidden_dim", "rms_norm_eps": "norm_eps",
    "layer_norm_epsilon": "norm_eps",
    "resid_pdrop": "dropout", "embd_pdrop": "embedding_dropout", "attn_pdrop": "attention_dropout",
    "tie_word_embeddings": "tie_embeddings", "tie_weights": "tie_embeddings",
    "embedding_dim": "dim", "emb_dim": "dim", "rnn_type": "cell", "proj_size": "projection",
    "wdrop": "weight_drop", "hidden_act": "activation", "activation_function": "activation",
}  # fmt: skip

_FOREIGN_RNN = {
    "hidden_size": "hidden_dim", "d_model": "hidden_dim", "nhid": "hidden_dim", "emsize": "dim",
}  # fmt: skip
_FOREIGN_BERT = {
    "hidden_dropout_prob": "dropout", "attention_probs_dropout_prob": "attention_dropout",
    "layer_norm_eps": "norm_eps", "add_pooling_layer": "pooler", "n_segments": "type_vocab_size",
    "num_token_types": "type_vocab_size",
}  # fmt: skip
_FOREIGN_BY_FAMILY = {
    "bert": _FOREIGN_BERT,
    "roberta": _FOREIGN_BERT,
    "bert_generation": {**_FOREIGN_BERT, "pad_token_id": "padding_idx"},
    "rnn": _FOREIGN_RNN,
    "rnn_classifier": _FOREIGN_RNN,
    "seq2seq": {
        "hidden_size": "hidden_dim", "d_model": "hidden_dim", "rnn_size": "hidden_dim",
        "word_vec_size": "dim", "input_feed": "input_feeding", "global_attention": "attention",
        "teacher_forcing_ratio": "teacher_forcing",
    },
    "transformer": {
        "nhead": "n_heads", "encoder_attention_heads": "n_heads", "num_encoder_layers": "n_layers",
        "encoder_layers": "n_layers", "num_decoder_layers": "n_decoder_layers",
        "decoder_layers": "n_decoder_layers", "dim_feedforward": "hidden_dim",
        "encoder_ffn_dim": "hidden_dim", "norm_first": "norm_place", "layer_norm_eps": "norm_eps",
        "scale_embedding": "scale_embeddings", "share_encoder_decoder_embeddings": "share_embeddings",
        "relu_dropout": "activation_dropout",
    },
}  # fmt: skip


# Settings of other tools for the labels, which are read from the training rows here.
_LABEL_SETTINGS = ("num_labels", "n_classes", "num_classes", "id2label", "label2id")


def config_from(family: str, **settings: Any) -> Any:
    """Return the config of ``family`` from plain values; raise ConfigError for an unknown or mistyped one."""
    if family not in MODELS or family == "task_model":  # task models are built from a body's config
        known = [name for name in MODELS if name != "task_model"]
        raise ConfigError(f"unknown model family {family!r}; {did_you_mean(family, known)}")
    allowed = {field.name: field for field in fields(MODELS[family].config)}
    if hasattr(MODELS[family].config, "patterns") and isinstance(settings.get("attention"), list):
        n_layers = settings.get("n_layers", allowed["n_layers"].default)
        settings["attention"] = sequence_of_layers(settings["attention"], n_layers)
    for key, value in settings.items():
        if key not in allowed:
            ours = _FOREIGN_BY_FAMILY.get(family, {}).get(key, _FOREIGN.get(key))
            if ours in allowed:
                raise ConfigError(f"unknown model setting '{key}'; it is called '{ours}' here")
            if key in _LABEL_SETTINGS:
                raise ConfigError(
                    f"unknown model setting '{key}'; the labels are read from the training rows"
                )
            owners = [name for name in MODELS if key in {f.name for f in fields(MODELS[name].config)}]
            elsewhere = f" ('{key}' belongs to {', '.join(owners)})" if owners else ""
            hint = did_you_mean(key, allowed) + elsewhere
            raise ConfigError(f"unknown setting '{key}' of model family '{family}'; {hint}")
        _check_type(key, value, str(allowed[key].type))
    return MODELS[family].config(**settings)


def _check_type(key: str, value: Any, declared: str) -> None:
    kinds: dict[str, Any] = {
        "int": int,
        "float": (int, float),
        "bool": bool,
        "str": str,
        "None": type(None),
        "Mapping[str, Any]": dict,
    }
    names = [name.strip() for name in declared.split("|")]
    for name in names:
        if isinstance(value, kinds[name]) and (name == "bool" or not isinstance(value, bool)):
            return
    raise ConfigError(f"model setting '{key}' takes {' or '.join(names)}, not {value!r}")
