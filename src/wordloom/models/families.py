"""The table of model families, the table of presets, and the questions that a config answers."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

from wordloom.models import (
    bag_of_words,
    bert,
    bert_generation,
    cbow,
    gpt,
    gpt2,
    llama,
    rnn,
    rnn_classifier,
    roberta,
    seq2seq,
    task_model,
    transformer,
)


class Family(NamedTuple):
    """A config class and the model it builds."""

    config: type
    model: type[nn.Module]


MODELS: dict[str, Family] = {
    "gpt": Family(gpt.GPTConfig, gpt.GPT),
    "gpt2": Family(gpt2.GPT2Config, gpt2.GPT2),
    "llama": Family(llama.LlamaConfig, llama.Llama),
    "rnn": Family(rnn.RNNConfig, rnn.RNN),
    "cbow": Family(cbow.CBOWConfig, cbow.CBOW),
    "seq2seq": Family(seq2seq.Seq2SeqConfig, seq2seq.Seq2Seq),
    "transformer": Family(transformer.TransformerConfig, transformer.Transformer),
    "bert": Family(bert.BertConfig, bert.Bert),
    "roberta": Family(roberta.RobertaConfig, roberta.Roberta),
    "bert_generation": Family(bert_generation.BertGenerationConfig, bert_generation.BertGeneration),
    "bag_of_words": Family(bag_of_words.BagOfWordsConfig, bag_of_words.BagOfWords),
    "rnn_classifier": Family(rnn_classifier.RNNClassifierConfig, rnn_classifier.RNNClassifier),
    "task_model": Family(task_model.TaskConfig, task_model.TaskModel),
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
    return config.body if isinstance(config, task_model.TaskConfig) else config


def context_limit(config: Any) -> int | None:
    """Return the most tokens that a model of ``config`` can read; None for recurrent models."""
    return getattr(config, "max_seq_len", None)


def generation_limit(config: Any) -> int | None:
    """Return the most tokens of a text that a model can generate; None: any number."""
    return None if getattr(config, "generates_on", False) else context_limit(config)


def encodes(config: Any) -> bool:
    """Return whether a model of ``config`` reads texts in both directions (:class:`Encoder`)."""
    return isinstance(config, bert.BertConfig)


def translates(config: Any) -> bool:
    """Return whether a model of ``config`` is an encoder-decoder (:class:`SequenceToSequence`)."""
    return hasattr(config, "source_vocab_size")
