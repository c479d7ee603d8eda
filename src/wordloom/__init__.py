"""Wordloom: train, evaluate, generate from and look inside language models of your own.

>>> import wordloom
>>> lm = wordloom.load("runs/quickstart")              # doctest: +SKIP
>>> print(lm.generate("It was a dark and"))            # doctest: +SKIP
>>> wordloom.train("quickstart", out="runs/mine")      # doctest: +SKIP

Importing this module imports no torch: each name below is fetched when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wordloom.lazy import lazy_names
from wordloom.version import __version__

__all__ = [
    "CheckpointError",
    "Corpus",
    "LanguageModel",
    "Recipe",
    "Sampling",
    "TextClassifier",
    "TextEncoder",
    "Tokenizer",
    "Trainer",
    "WordloomError",
    "__version__",
    "build",
    "load",
    "load_recipe",
    "save",
    "train",
]

if TYPE_CHECKING:
    from wordloom.data import Corpus
    from wordloom.errors import CheckpointError, WordloomError
    from wordloom.generate import Sampling
    from wordloom.models import build
    from wordloom.recipe import Recipe, load_recipe
    from wordloom.run import LanguageModel, TextClassifier, TextEncoder, load, save, train
    from wordloom.text import Tokenizer
    from wordloom.training import Trainer

__getattr__, __dir__ = lazy_names(__name__, __file__)
