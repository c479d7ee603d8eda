"""One paper, one file: config, block, model and ``init_weights``, to be read beside the paper.

``diff models/gpt2.py models/llama.py`` reads as the list of differences between the two papers.
:mod:`wordloom.models.families` holds the table of all families, ``checks`` what every file checks, and
``building`` what serves models of any family.
"""

from wordloom.models.bag_of_words import BagOfWords, BagOfWordsConfig
from wordloom.models.bert import Bert, BertConfig, Encoded
from wordloom.models.bert_generation import BertGeneration, BertGenerationConfig
from wordloom.models.building.build import build, config_from, skeleton
from wordloom.models.cbow import CBOW, CBOWConfig
from wordloom.models.families import (
    MODELS,
    PRESETS,
    Family,
    body_config,
    context_limit,
    encodes,
    family_of,
    generation_limit,
    translates,
)
from wordloom.models.gpt import GPT, GPTConfig
from wordloom.models.gpt2 import GPT2, GPT2Config
from wordloom.models.llama import Llama, LlamaConfig
from wordloom.models.protocols import CausalLM, Encoder, SequenceToSequence
from wordloom.models.rnn import RNN, RNNConfig
from wordloom.models.rnn_classifier import RNNClassifier, RNNClassifierConfig
from wordloom.models.roberta import Roberta, RobertaConfig
from wordloom.models.seq2seq import Seq2Seq, Seq2SeqConfig
from wordloom.models.task_model import TaskConfig, TaskModel
from wordloom.models.transformer import Transformer, TransformerConfig
from wordloom.nn.memory import Memory

__all__ = [
    "CBOW", "GPT", "GPT2", "MODELS", "PRESETS", "RNN", "BagOfWords", "BagOfWordsConfig", "Bert",
    "BertConfig", "BertGeneration", "BertGenerationConfig", "CBOWConfig", "CausalLM", "Encoded", "Encoder",
    "Family", "GPT2Config", "GPTConfig", "Llama", "LlamaConfig", "Memory", "RNNClassifier",
    "RNNClassifierConfig", "RNNConfig", "Roberta", "RobertaConfig", "Seq2Seq", "Seq2SeqConfig",
    "SequenceToSequence", "TaskConfig", "TaskModel", "Transformer", "TransformerConfig", "body_config",
    "build", "config_from", "context_limit", "encodes", "family_of", "generation_limit", "skeleton",
    "translates",
]  # fmt: skip
