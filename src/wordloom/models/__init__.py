"""One file, one paper: Config, Block, Model and init_weights, to be read beside the paper.

``diff models/gpt2.py models/llama.py`` reads as the list of differences between the two papers.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from wordloom.errors import ConfigError, did_you_mean
from wordloom.models import bert, bert_generation, gpt, gpt2, llama, rnn, roberta, transformer
from wordloom.models.bag_of_words import BagOfWords, BagOfWordsConfig
from wordloom.models.bert import Bert, BertConfig, Encoded
from wordloom.models.bert_generation import BertGeneration, BertGenerationConfig
from wordloom.models.gpt import GPT, GPTConfig
from wordloom.models.gpt2 import GPT2, GPT2Config
from wordloom.models.llama import Llama, LlamaConfig
from wordloom.models.memory import Memory
from wordloom.models.rnn import RNN, RNNConfig
from wordloom.models.rnn_classifier import RNNClassifier, RNNClassifierConfig
from wordloom.models.roberta import Roberta, RobertaConfig
from wordloom.models.seq2seq import Seq2Seq, Seq2SeqConfig
from wordloom.models.task_model import TaskConfig, TaskModel
from wordloom.models.transformer import Transformer, TransformerConfig
from wordloom.nn.cache import Cache

__all__ = [
    "GPT",
    "GPT2",
    "MODELS",
    "PRESETS",
    "RNN",
    "BagOfWords",
    "BagOfWordsConfig",
    "Bert",
    "BertConfig",
    "BertGeneration",
    "BertGenerationConfig",
    "CausalLM",
    "Encoded",
    "Encoder",
    "Family",
    "GPT2Config",
    "GPTConfig",
    "Llama",
    "LlamaConfig",
    "Memory",
    "RNNClassifier",
    "RNNClassifierConfig",
    "RNNConfig",
    "Roberta",
    "RobertaConfig",
    "Seq2Seq",
    "Seq2SeqConfig",
    "SequenceToSequence",
    "TaskConfig",
    "TaskModel",
    "Transformer",
    "TransformerConfig",
    "body_config",
    "build",
    "config_from",
    "context_limit",
    "encodes",
    "skeleton",
    "translates",
]


class CausalLM(Protocol):
    """What every model that predicts the next token offers."""

    config: Any
    lm_head: nn.Linear

    def hidden(
        self,
        tokens: Tensor,
        *,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
        attend: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor: ...
    def forward(self, tokens: Tensor, **where: Any) -> Tensor: ...
    def new_cache(self, batch: int, length: int) -> Cache: ...
    def init_weights(self, generator: torch.Generator | None = None) -> None: ...
    def tie_weights(self) -> None: ...


class SequenceToSequence(Protocol):
    """What every model that turns one sequence into another offers.

    ``config.source_vocab_size`` is the encoder's vocabulary (None: the same), ``config.vocab_size`` the
    decoder's.
    """

    config: Any
    lm_head: nn.Linear

    def encode(self, source: Tensor, *, attend: Tensor | None = None) -> Memory: ...
    def hidden(self, prefix: Tensor, memory: Memory, *, cache: Cache | None = None) -> Tensor: ...
    def forward(self, source: Tensor, prefix: Tensor, *, attend: Tensor | None = None) -> Tensor: ...
    def new_cache(self, batch: int, length: int) -> Cache: ...
    def init_weights(self, generator: torch.Generator | None = None) -> None: ...
    def tie_weights(self) -> None: ...


class Encoder(Protocol):
    """What every model that reads texts in both directions offers."""

    config: Any

    def forward(
        self,
        tokens: Tensor,
        *,
        segments: Tensor | None = None,
        attend: Tensor | None = None,
        documents: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Encoded: ...
    def init_weights(self, generator: torch.Generator | None = None) -> None: ...
    def tie_weights(self) -> None: ...


class Family(NamedTuple):
    """A config class and the model it builds."""

    config: type
    model: type[nn.Module]


MODELS: dict[str, Family] = {
    "gpt": Family(GPTConfig, GPT),
    "gpt2": Family(GPT2Config, GPT2),
    "llama": Family(LlamaConfig, Llama),
    "rnn": Family(RNNConfig, RNN),
    "seq2seq": Family(Seq2SeqConfig, Seq2Seq),
    "transformer": Family(TransformerConfig, Transformer),
    "bert": Family(BertConfig, Bert),
    "roberta": Family(RobertaConfig, Roberta),
    "bert_generation": Family(BertGenerationConfig, BertGeneration),
    "bag_of_words": Family(BagOfWordsConfig, BagOfWords),
    "rnn_classifier": Family(RNNClassifierConfig, RNNClassifier),
    "task_model": Family(TaskConfig, TaskModel),
}

PRESETS: dict[str, Any] = {
    **gpt.PRESETS,
    **gpt2.PRESETS,
    **llama.PRESETS,
    **rnn.PRESETS,
    **transformer.PRESETS,
    **bert.PRESETS,
    **roberta.PRESETS,
    **bert_generation.PRESETS,
}

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

_FOREIGN_OF_RNN = {
    "hidden_size": "hidden_dim", "d_model": "hidden_dim", "nhid": "hidden_dim", "emsize": "dim",
}  # fmt: skip
_FOREIGN_OF_BERT = {
    "hidden_dropout_prob": "dropout", "attention_probs_dropout_prob": "attention_dropout",
    "layer_norm_eps": "norm_eps", "add_pooling_layer": "pooler", "n_segments": "type_vocab_size",
    "num_token_types": "type_vocab_size",
}  # fmt: skip
_FOREIGN_OF = {
    "bert": _FOREIGN_OF_BERT,
    "roberta": _FOREIGN_OF_BERT,
    "bert_generation": {**_FOREIGN_OF_BERT, "pad_token_id": "padding_idx"},
    "rnn": _FOREIGN_OF_RNN,
    "rnn_classifier": _FOREIGN_OF_RNN,
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


# What other tools ask for beside the data, which says it here.
_OF_LABELS = ("num_labels", "n_classes", "num_classes", "id2label", "label2id")


def family_of(config: Any) -> str:
    """The name under which ``config``'s class stands in MODELS."""
    return next(name for name, family in MODELS.items() if family.config is type(config))


def config_from(family: str, **settings: Any) -> Any:
    """The config of ``family`` from plain values; raises ConfigError naming what is unknown or mistyped."""
    if family not in MODELS or family == "task_model":  # a body and a head, which a task puts on it
        known = [name for name in MODELS if name != "task_model"]
        raise ConfigError(f"unknown model family {family!r}; {did_you_mean(family, known)}")
    allowed = {field.name: field for field in fields(MODELS[family].config)}
    for key, value in settings.items():
        if key not in allowed:
            ours = _FOREIGN_OF.get(family, {}).get(key, _FOREIGN.get(key))
            if ours in allowed:
                raise ConfigError(f"unknown model setting '{key}'; it is called '{ours}' here")
            if key in _OF_LABELS:
                raise ConfigError(f"unknown model setting '{key}'; the labels are those of the training rows")
            having = [name for name in MODELS if key in {f.name for f in fields(MODELS[name].config)}]
            elsewhere = f" ('{key}' belongs to {', '.join(having)})" if having else ""
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


def context_limit(config: Any) -> int | None:
    """How many tokens a model of ``config`` can read: ``max_seq_len``; None, any number, if recurrent."""
    return getattr(config, "max_seq_len", None)


def body_config(config: Any) -> Any:
    """The config of what stands below the head of a :class:`TaskConfig`; any other config itself."""
    return config.body if isinstance(config, TaskConfig) else config


def encodes(config: Any) -> bool:
    """Whether a model of ``config`` reads texts in both directions (:class:`Encoder`)."""
    return isinstance(config, BertConfig)


def translates(config: Any) -> bool:
    """Whether a model of ``config`` turns one sequence into another (:class:`SequenceToSequence`)."""
    return hasattr(config, "source_vocab_size")


class _Undrawn(TorchFunctionMode):
    """Layers begin without the values that they would draw, which are drawn anew or read from a file.

    On the meta device each such draw costs milliseconds, and the first of them an import of seconds.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_):
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


def skeleton(config: Any) -> nn.Module:
    """The model of ``config`` on the meta device: every shape and name, no memory."""
    with torch.device("meta"), _Undrawn():
        return MODELS[family_of(config)].model(config)


def build(config: Any, *, generator: torch.Generator | None = None) -> Any:
    """The model of ``config``, initialised (nothing twice), on the CPU in float32."""
    with torch.device("cpu"), _Undrawn():
        model: Any = MODELS[family_of(config)].model(config)
    model.init_weights(generator)
    return model
