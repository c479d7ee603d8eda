"""A trained model from its folder: model, tokenizer, and what one does with them."""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from wordloom.errors import CheckpointError, DeviceError
from wordloom.models import TaskConfig, encodes, family_of, translates
from wordloom.recipe import load_recipe
from wordloom.recipe.data import CausalData
from wordloom.run.checkpoint.dtypes import choose_dtype
from wordloom.run.checkpoint.headed import is_headed, load_headed, task_in
from wordloom.run.models.language_model import LanguageModel
from wordloom.run.models.text_classifier import TextClassifier
from wordloom.run.models.text_encoder import TextEncoder
from wordloom.run.models.text_readers import text_reader
from wordloom.run.models.tokenizers import folder_tokenizer
from wordloom.run.models.translator import Translator
from wordloom.run.models.vocabularies import read_vocabularies
from wordloom.training.precision import choose_device
from wordloom.weights import load_config, load_model
from wordloom.weights.configs import TOKEN_IDS, format_of
from wordloom.weights.tensors import read_json

__all__ = [
    "LanguageModel",
    "is_classifier",
    "is_encoder",
    "is_translator",
    "load",
    "load_classifier",
    "load_encoder",
    "load_language_model",
    "load_translator",
    "next_command",
    "save",
]

log = logging.getLogger(__name__)


def load(folder: str | Path, *, device: str = "auto", dtype: str = "auto") -> Any:
    """The model in ``folder``: ours, or a Hugging Face folder of a family we have.

    A :class:`LanguageModel`, a :class:`~wordloom.run.models.text_classifier.TextClassifier`, a
    :class:`~wordloom.run.models.translator.Translator`, a
    :class:`~wordloom.run.models.text_encoder.TextEncoder`, or for a head
    of another task than classification what :func:`wordloom.run.checkpoint.headed.load_headed` makes.
    ``dtype`` is auto (as stored), fp32, bf16 or fp16.  Raises CheckpointError for a folder that is not a
    model, DeviceError for a device that is not there.
    """
    if is_headed(folder):
        return load_headed(folder, device=device, dtype=dtype)
    if is_classifier(folder):
        return load_classifier(folder, device=device, dtype=dtype)
    if is_translator(folder):
        return load_translator(folder, device=device, dtype=dtype)
    if is_encoder(folder):
        return load_encoder(folder, device=device, dtype=dtype)
    return load_language_model(folder, device=device, dtype=dtype)


def is_classifier(folder: str | Path) -> bool:
    """Whether the model in ``folder`` tells classes apart; raises CheckpointError as :func:`load`."""
    config = load_config(folder)
    if isinstance(config, TaskConfig):
        return config.task == "classification"
    return not format_of(config).generates and not encodes(config)


def is_translator(folder: str | Path) -> bool:
    """Whether the model in ``folder`` turns one text into another; raises CheckpointError as :func:`load`."""
    return translates(load_config(folder))


def next_command(folder: str | Path) -> str:
    """The command that tries the model in ``folder``; raises CheckpointError as :func:`load`."""
    name = shlex.quote(str(folder))
    if is_classifier(folder) or is_headed(folder):
        return f"wordloom predict {name} FILE"
    if is_translator(folder):
        return f"wordloom translate {name} FILE"
    if is_encoder(folder):
        return f"wordloom {'predict' if load_config(folder).masked_lm_head else 'embed'} {name} FILE"
    recipe = Path(folder) / "recipe.toml"
    data = load_recipe(str(recipe)).data if recipe.exists() else None
    if isinstance(data, CausalData) and data.label_prefix:
        return f'wordloom generate {name} --prompt "<LABEL>" --specials interpret'
    return f'wordloom generate {name} --prompt "..."'


def load_classifier(folder: str | Path, *, device: str = "auto", dtype: str = "auto") -> TextClassifier:
    """As :func:`load`, for classifiers; raises CheckpointError for a language model."""
    folder = Path(folder)
    kept = choose_dtype(dtype)
    if not is_classifier(folder):
        what = "an encoder" if is_encoder(folder) else "a translator" if is_translator(folder) else ""
        what = f"a model for {task_in(folder)}" if is_headed(folder) else what
        raise CheckpointError(
            f"{folder} holds {what or 'a language model'}, which tells no classes apart; train a classifier "
            'with train.objective = "classification"'
        )
    if family_of(load_config(folder)) == "bag_of_words":
        if kept not in (None, torch.float32):
            raise DeviceError(f"a bag of words computes in fp32, not in {dtype}; leave the dtype out")
        kept = torch.float32
    model: Any = load_model(folder, dtype=kept, device=choose_device(device))
    reader = text_reader(folder, model.config)
    return TextClassifier(model=model.eval(), reader=reader, config=model.config, folder=folder)


def load_language_model(folder: str | Path, *, device: str = "auto", dtype: str = "auto") -> LanguageModel:
    """As :func:`load`, for models that write text; raises CheckpointError for a classifier."""
    folder, kept = Path(folder), choose_dtype(dtype)
    if is_classifier(folder):
        raise CheckpointError(
            f"{folder} holds a classifier, which tells classes apart and writes no text; use "
            f"`{next_command(folder)}`"
        )
    if is_headed(folder):
        raise CheckpointError(
            f"{folder} holds a model for {task_in(folder)}, which writes no text; use "
            f"`{next_command(folder)}`"
        )
    if is_encoder(folder):
        raise CheckpointError(
            f"{folder} holds an encoder, which reads texts and writes none; use `{next_command(folder)}`"
        )
    if is_translator(folder):
        raise CheckpointError(
            f"{folder} holds a model that turns one text into another, and continues none; use "
            f"`{next_command(folder)}`"
        )
    place = choose_device(device)
    model: Any = load_model(folder, dtype=kept, device=place)
    model.eval()
    tokenizer = folder_tokenizer(folder, model.config.vocab_size)
    return LanguageModel(
        model=model,
        tokenizer=tokenizer,
        config=model.config,
        folder=folder,
        generation_defaults=_generation_defaults(folder),
    )


def _generation_defaults(folder: Path) -> dict[str, Any]:
    """The settings in generation_config.json; in a folder without that file, the token ids in config.json."""
    path = folder / "generation_config.json"
    if path.exists():
        return _read_object(path)
    config = read_json(folder / "config.json")
    return {key: config[key] for key in TOKEN_IDS if config.get(key) is not None}


def _read_object(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``; raises CheckpointError for anything else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON ({error}); mend or remove it") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds no JSON object; mend or remove it")
    return value


def save(
    lm: LanguageModel | TextClassifier | Translator | TextEncoder,
    folder: str | Path,
    *,
    overwrite: bool = False,
) -> None:
    """Write ``lm`` to ``folder``; an existing checkpoint is kept unless ``overwrite``."""
    lm.save_pretrained(folder, overwrite=overwrite)


def is_encoder(folder: str | Path) -> bool:
    """Whether the model in ``folder`` reads in both directions; raises CheckpointError as
    :func:`wordloom.load`."""
    return encodes(load_config(folder))


def load_encoder(folder: str | Path, *, device: str = "auto", dtype: str = "auto") -> TextEncoder:
    """As :func:`wordloom.load`, for encoders; raises CheckpointError for another model."""
    folder, kept = Path(folder), choose_dtype(dtype)
    if not is_encoder(folder):
        raise CheckpointError(f"{folder} holds no encoder: its model reads in one direction")
    model: Any = load_model(folder, dtype=kept, device=choose_device(device))
    tokenizer = folder_tokenizer(folder, model.config.vocab_size)
    return TextEncoder(model=model.eval(), tokenizer=tokenizer, config=model.config, folder=folder)


def load_translator(folder: str | Path, *, device: str = "auto", dtype: str = "auto") -> Translator:
    """The model in ``folder``, ours or a Marian one with a ``tokenizer.json``; ``dtype`` as :func:`load`.

    Raises CheckpointError for a folder that is no model of this kind.
    """
    folder = Path(folder)
    if not translates(load_config(folder)):
        raise CheckpointError(
            f"{folder} holds no model that turns one text into another; train one with "
            'train.objective = "translation"'
        )
    model: Any = load_model(folder, dtype=choose_dtype(dtype), device=choose_device(device))
    generation = folder / "generation_config.json"  # where there is none, transformers asks config.json
    defaults = read_json(generation) if generation.exists() else {}
    settings = defaults if generation.exists() else read_json(folder / "config.json")
    given: dict[str, Any]
    if (folder / "tokenizer.json").exists():
        found = read_vocabularies(folder, model.config)
        given = {
            "tokenizer": found.target,
            "source_tokenizer": found.source,
            "source_eos_id": found.source.eos_id,
            "eos_id": found.target.eos_id,
            "pad_id": found.target.pad_id,
            "start_id": found.target.pad_id if found.start_id is None else found.start_id,
            "source_start_id": found.source_start_id,
        }
    else:
        given = {"tokenizer": None, "source_tokenizer": None, **_stored_ids(folder, defaults)}
    return Translator(
        model=model.eval(),
        config=model.config,
        forced_eos_id=settings.get("forced_eos_token_id"),
        folder=folder,
        generation_defaults=defaults,
        **given,
    )


def _stored_ids(folder: Path, defaults: Mapping[str, Any]) -> dict[str, int]:
    """The ids that begin, end and pad texts by ``defaults`` and config.json; -1 for one that they lack."""
    known = read_json(folder / "config.json") | {
        key: value for key, value in defaults.items() if value is not None
    }
    eos, pad, start = (
        token if isinstance(token := known.get(f"{role}_token_id"), int) else -1
        for role in ("eos", "pad", "decoder_start")
    )
    return {"source_eos_id": eos, "eos_id": eos, "pad_id": pad, "start_id": pad if start < 0 else start}
