"""Checkpoint folders as Hugging Face tools read and write them.  :func:`load_model` takes five steps:

1. ``configs.load_config``: config.json -> our config, by the family's settings (``families/``).
2. ``models.skeleton``: the model of that config, without memory.
3. ``tensors.open_tensors``: names, shapes and dtypes of the stored tensors, from safetensors or
   pytorch_model.bin (read with ``weights_only=True``, so that no code in it runs).
4. ``loading.renaming_of`` and ``Renaming.match``: stored names -> ours, by the family's table
   (``families/``).
5. ``loading.load_model``: check shapes, tied copies and hashes, then copy tensor by tensor.

:func:`save_model` takes them in reverse; ``pretrained`` copies weights into other models.
"""

from wordloom.weights.configs import config_from_json, config_to_json, load_config
from wordloom.weights.loading import load_model, load_parameter, load_state, renaming_of, stored_state
from wordloom.weights.pretrained import (
    BertStart,
    PretrainedStart,
    config_from_bert,
    start_from,
    start_from_bert,
)
from wordloom.weights.renaming import Renaming, Row
from wordloom.weights.saving import save_model

__all__ = [
    "BertStart",
    "PretrainedStart",
    "Renaming",
    "Row",
    "config_from_bert",
    "config_from_json",
    "config_to_json",
    "load_config",
    "load_model",
    "load_parameter",
    "load_state",
    "renaming_of",
    "save_model",
    "start_from",
    "start_from_bert",
    "stored_state",
]
