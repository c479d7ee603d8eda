"""Formats at the door: checkpoint folders that Hugging Face tools read as they are, both ways.

One total, reversible table of names and layouts per family (``gpt.py``, ``gpt2.py``, ``llama.py``);
nothing in here computes.  Never pickle: ``pytorch_model.bin`` is read with ``weights_only=True``.
"""

from wordloom.weights.configs import config_from_theirs, config_to_theirs, load_config
from wordloom.weights.folders import load_model, load_parameter, load_state, renaming_of, state_to_theirs
from wordloom.weights.from_bert import BertStart, config_from_bert, start_from_bert
from wordloom.weights.renaming import Renaming, Row
from wordloom.weights.saving import save_model
from wordloom.weights.starting import Started, start_from

__all__ = [
    "BertStart",
    "Renaming",
    "Row",
    "Started",
    "config_from_bert",
    "config_from_theirs",
    "config_to_theirs",
    "load_config",
    "load_model",
    "load_parameter",
    "load_state",
    "renaming_of",
    "save_model",
    "start_from",
    "start_from_bert",
    "state_to_theirs",
]
