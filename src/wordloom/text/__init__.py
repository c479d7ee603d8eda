"""Tokenizers: one :class:`Tokenizer` class over the ``tokenizers`` library, with six kinds to train.

A ``tokenizer.json`` defines a tokenizer completely; everything here reads that definition.
``tokenizers`` and ``tiktoken`` are imported when first used.
"""

from wordloom.text.encoding import Encoding, Specials
from wordloom.text.report import TokenizerReport, compare_tokenizers
from wordloom.text.streaming import StreamDecoder
from wordloom.text.tokenizer import Tokenizer
from wordloom.text.training.train import TOKENIZERS, TrainingReport

__all__ = [
    "TOKENIZERS",
    "Encoding",
    "Specials",
    "StreamDecoder",
    "Tokenizer",
    "TokenizerReport",
    "TrainingReport",
    "compare_tokenizers",
]
