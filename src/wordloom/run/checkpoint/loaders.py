"""The loaders of :mod:`wordloom.run.checkpoint.kinds`: each returns the model of a checkpoint, ready for use.

Every loader takes ``device`` and ``dtype`` as :func:`wordloom.load` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from wordloom.errors import DeviceError
from wordloom.run.checkpoint.contents import Checkpoint
from wordloom.run.checkpoint.dtypes import choose_dtype
from wordloom.run.models.heads.classification import TextClassifier
from wordloom.run.models.heads.head import TokenizedHead
from wordloom.run.models.language_model import LanguageModel
from wordloom.run.models.text_encoder import TextEncoder
from wordloom.run.models.text_readers import text_reader
from wordloom.run.models.tokenizers import folder_tokenizer
from wordloom.run.models.translator import Translator
from wordloom.run.models.vocabularies import read_vocabularies
from wordloom.training.precision import choose_device
from wordloom.weights import load_model
from wordloom.weights.configs import TOKEN_IDS
from wordloom.weights.tensors import read_json

__all__ = [
    "Loader",
    "load_bag_of_words",
    "load_classifier",
    "load_encoder",
    "load_language_model",
    "load_translator",
    "loader_of_head",
]

Loader = Callable[[Checkpoint, str, str], Any]


def _model(checkpoint: Checkpoint, device: str, dtype: torch.dtype | None) -> Any:
    return load_model(checkpoint.folder, dtype=dtype, device=choose_device(device)).eval()


def load_language_model(checkpoint: Checkpoint, device: str, dtype: str) -> LanguageModel:
    folder, model = checkpoint.folder, _model(checkpoint, device, choose_dtype(dtype))
    return LanguageModel(
        model=model,
        tokenizer=folder_tokenizer(folder, model.config.vocab_size),
        config=model.config,
        folder=folder,
        generation_defaults=_generation_defaults(folder),
    )


def load_encoder(checkpoint: Checkpoint, device: str, dtype: str) -> TextEncoder:
    folder, model = checkpoint.folder, _model(checkpoint, device, choose_dtype(dtype))
    tokenizer = folder_tokenizer(folder, model.config.vocab_size)
    return TextEncoder(model=model, tokenizer=tokenizer, config=model.config, folder=folder)


def load_classifier(checkpoint: Checkpoint, device: str, dtype: str) -> TextClassifier:
    folder, model = checkpoint.folder, _model(checkpoint, device, choose_dtype(dtype))
    reader = text_reader(folder, model.config)
    return TextClassifier(model=model, reader=reader, config=model.config, folder=folder)


def load_bag_of_words(checkpoint: Checkpoint, device: str, dtype: str) -> TextClassifier:
    if choose_dtype(dtype) not in (None, torch.float32):
        raise DeviceError(f"a bag of words computes in fp32, not in {dtype}; leave the dtype out")
    return load_classifier(checkpoint, device, "fp32")


def loader_of_head(result: type[TokenizedHead[Any]]) -> Loader:
    """Return the loader of a model with a head, which makes a ``result`` such as ``TextRegressor``."""

    def load_head(checkpoint: Checkpoint, device: str, dtype: str) -> TokenizedHead[Any]:
        folder, model = checkpoint.folder, _model(checkpoint, device, choose_dtype(dtype))
        return result.of(folder, model, folder_tokenizer(folder, model.config.vocab_size))

    return load_head


def load_translator(checkpoint: Checkpoint, device: str, dtype: str) -> Translator:
    folder, model = checkpoint.folder, _model(checkpoint, device, choose_dtype(dtype))
    path = folder / "generation_config.json"
    defaults = read_json(path) if path.exists() else {}
    settings = defaults if path.exists() else read_json(folder / "config.json")  # as transformers does
    tokens: dict[str, Any]
    if (folder / "tokenizer.json").exists():
        sides = read_vocabularies(folder, model.config)
        tokens = {
            "tokenizer": sides.target,
            "source_tokenizer": sides.source,
            "source_eos_id": sides.source.eos_id,
            "eos_id": sides.target.eos_id,
            "pad_id": sides.target.pad_id,
            "start_id": sides.target.pad_id if sides.start_id is None else sides.start_id,
            "source_start_id": sides.source_start_id,
        }
    else:
        tokens = {"tokenizer": None, "source_tokenizer": None, **_stored_ids(folder, defaults)}
    return Translator(
        model=model,
        config=model.config,
        forced_eos_id=settings.get("forced_eos_token_id"),
        folder=folder,
        generation_defaults=defaults,
        **tokens,
    )


def _generation_defaults(folder: Path) -> dict[str, Any]:
    """Return the settings in generation_config.json, or without that file the token ids in config.json."""
    path = folder / "generation_config.json"
    if not path.exists():
        config = read_json(folder / "config.json")
        return {key: config[key] for key in TOKEN_IDS if config.get(key) is not None}
    return read_json(path)


def _stored_ids(folder: Path, defaults: Mapping[str, Any]) -> dict[str, int]:
    """Return the ids that begin, end and pad texts, by ``defaults`` and config.json; -1 for an unknown id."""
    settings = read_json(folder / "config.json")
    settings |= {key: value for key, value in defaults.items() if value is not None}
    eos, pad, start = (
        token if isinstance(token := settings.get(f"{role}_token_id"), int) else -1
        for role in ("eos", "pad", "decoder_start")
    )
    return {"source_eos_id": eos, "eos_id": eos, "pad_id": pad, "start_id": pad if start < 0 else start}
