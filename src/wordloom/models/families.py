"""The table of model families, the table of presets, and the questions that a config answers."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

from wordloom.models import bert, bert_generation, gpt, gpt2, llama, rnn, roberta, transformer
from wordloom.models.bag_of_words import BagOfWords, BagOfWordsConfig
from wordloom.models.bert import Bert, BertConfig
from wordloom.models.bert_generation import BertGeneration, BertGenerationConfig
from wordloom.models.gpt import GPT, GPTConfig
from wordloom.models.gpt2 import GPT2, GPT2Config
from wordloom.models.llama import Llama, LlamaConfig
from wordloom.models.rnn import RNN, RNNConfig
from wordloom.models.rnn_classifier import RNNClassifier, RNNClassifierConfig
from wordloom.models.roberta import Roberta, RobertaConfig
from wordloom.models.seq2seq import Seq2Seq, Seq2SeqConfig
from wordloom.models.task_model import TaskConfig, TaskModel
from wordloom.models.transformer import Transformer, TransformerConfig

__all__ = [
    "MODELS",
    "PRESETS",
    "Family",
    "body_config",
    "context_limit",
    "encodes",
    "family_of",
    "translates",
]


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


def family_of(config: Any) -> str:
    """Return the name of ``config``'s family in MODELS."""
    return next(name for name, family in MODELS.items() if family.config is type(config))


def body_config(config: Any) -> Any:
    """Return the config of the model below the head of a :class:`TaskConfig`; any other config unchanged."""
    return config.body if isinstance(config, TaskConfig) else config


def context_limit(config: Any) -> int | None:
    """Return the most tokens that a model of ``config`` can read; None for recurrent models."""
    return getattr(config, "max_seq_len", None)


def encodes(config: Any) -> bool:
    """Return whether a model of ``config`` reads texts in both directions (:class:`Encoder`)."""
    return isinstance(config, BertConfig)


def translates(config: Any) -> bool:
    """Return whether a model of ``config`` is an encoder-decoder (:class:`SequenceToSequence`)."""
    return hasattr(config, "source_vocab_size")
