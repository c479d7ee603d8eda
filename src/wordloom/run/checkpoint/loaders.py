"""Checkpoint folders: what they hold, reports on what is read from them, and loaders of their models.

:mod:`wordloom.run.checkpoint.kinds` names the loader of each kind.  Each takes ``device`` and ``dtype`` as
:func:`wordloom.load` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch

from wordloom.data.files.source import Columns
from wordloom.data.rows.labelled import Column
from wordloom.errors import CheckpointError, DeviceError, WordloomError, did_you_mean
from wordloom.models.building.lora import merge_adapter
from wordloom.models.building.quantized import quantize_model, require_int8
from wordloom.recipe import Recipe
from wordloom.recipe.data import ChatData
from wordloom.run.models.heads.classification import TextClassifier
from wordloom.run.models.language_model import LanguageModel
from wordloom.run.models.text_readers import text_reader
from wordloom.run.models.tokenizers import folder_tokenizer, read_vocabularies
from wordloom.run.models.translator import Translator
from wordloom.run.prepare import recipe_of
from wordloom.training.precision import choose_device
from wordloom.weights import load_config, load_model
from wordloom.weights.adapted import adapted_config, load_adapted_model
from wordloom.weights.adapters import base_of, is_adapter
from wordloom.weights.configs import TOKEN_IDS
from wordloom.weights.tensors import open_tensors, read_json

ColumnNames: TypeAlias = Sequence[Column] | None


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder and the model's config from its ``config.json``.

    The folder of an adapter names the folder of its ``base``; the config is that of both together.
    """

    folder: Path
    config: Any
    base: Path | None = None

    @property
    def model_folder(self) -> Path:
        """The folder with the model's ``config.json`` and weights."""
        return self.base or self.folder

    @cached_property
    def recipe(self) -> Recipe | None:
        """The recipe of the run that wrote the folder; None if the folder has no ``recipe.toml``."""
        return recipe_of(self.folder)

    @property
    def field(self) -> str | None:
        """The field of rows that holds a document's text, if the recipe names one."""
        return getattr(self.recipe and self.recipe.data, "field", None)

    @property
    def validation_recipe(self) -> Recipe:
        """The recipe, which names the validation data; raises CheckpointError without a ``recipe.toml``."""
        if self.recipe is None:
            raise CheckpointError(f"{self.folder} has no recipe.toml that names validation data; give a file")
        return self.recipe


def read_checkpoint(folder: str | Path) -> Checkpoint:
    """Read the config of the model in ``folder``; raises CheckpointError if there is none.

    It is also raised for an adapter whose base is not where the folder says.
    """
    folder = Path(folder)
    if not is_adapter(folder) or (folder / "config.json").exists():
        return Checkpoint(folder, load_config(folder))
    named = base_of(folder)
    if named is None:
        raise CheckpointError(f"{folder} holds an adapter and does not name its base model")
    base = next((path for path in (Path(named), folder / named) if (path / "config.json").is_file()), None)
    if base is None:
        raise CheckpointError(
            f"{folder} holds an adapter of {named}, where no model is; put the base model there, or correct "
            "base_model_name_or_path in its adapter_config.json"
        )
    return Checkpoint(folder, adapted_config(base, folder), base)


def with_adapter(checkpoint: Checkpoint, adapter: str | Path) -> Checkpoint:
    """Return the checkpoint with the adapter in the folder ``adapter``; raises CheckpointError for two."""
    if checkpoint.base is not None:
        raise CheckpointError(
            f"{checkpoint.folder} is an adapter itself; name its base model, or leave one out"
        )
    return Checkpoint(Path(adapter), adapted_config(checkpoint.folder, adapter), checkpoint.folder)


class Reporter(Protocol):
    """Receives lines for the user and the progress of long work."""

    def say(self, line: str) -> None:
        """Show one line."""

    def progress(self, total: float) -> AbstractContextManager[Callable[[float, str], None]]:
        """Return a context whose ``advance(amount, state)`` moves a bar of length ``total``."""


class Request(NamedTuple):
    """A checkpoint, the ``sources`` that a command reads, and the ``reporter`` that shows its progress.

    ``unwritten`` receives the errors of :meth:`write`.
    """

    checkpoint: Checkpoint
    sources: Sequence[str]
    reporter: Reporter
    unwritten: list[str]

    def write(self, path: Path, write: Callable[[Path], object]) -> None:
        """Write a file and report it; an error is kept, so that the scores are printed first."""
        try:
            write(path)
        except (OSError, WordloomError) as error:
            reason = error.strerror if isinstance(error, OSError) else None
            self.unwritten.append(f"'{path}' is not written: {reason or error}")
        else:
            self.reporter.say(f"wrote {path}")

    def report_columns(self, names: str) -> None:
        """Report the columns that are read; the recipe of the checkpoint names those that were not given."""
        recipe = self.checkpoint.folder / "recipe.toml"
        self.reporter.say(f"columns: {names} (by default those in {recipe})")


def report_columns(request: Request, read: Iterable[Columns]) -> None:
    """Report the columns of texts and answers."""
    for columns in read:
        texts = ", ".join(map(repr, columns.texts))
        what, answer = ("label", columns.label) if columns.score is None else ("score", columns.score)
        request.report_columns(f"text {texts}; {what} {answer!r}")


# -- loaders ---------------------------------------------------------------------------------------------

Loader = Callable[[Checkpoint, str, str], Any]

_DTYPES = {
    "auto": None, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16,
    "int8": torch.float32,  # weights are read in float32, and then quantized
}  # fmt: skip


def _model(checkpoint: Checkpoint, device: str, dtype: str) -> Any:
    """Return the model; raises DeviceError for an unknown device or dtype."""
    if dtype not in _DTYPES:
        hint = did_you_mean(dtype, _DTYPES) if isinstance(dtype, str) else f"allowed: {', '.join(_DTYPES)}"
        raise DeviceError(f"unknown dtype {dtype!r}; {hint}")
    if checkpoint.base is None and dtype == "int8":
        require_int8(checkpoint.config)
        model = load_model(checkpoint.folder, mapped=True).eval()
        quantize_model(model)
        return model.to(choose_device(device))
    if checkpoint.base is None:
        model = load_model(checkpoint.folder, dtype=_DTYPES[dtype], device=choose_device(device)).eval()
    else:
        model, adapter = load_adapted_model(checkpoint.base, checkpoint.folder, device=choose_device(device))
        merge_adapter(model, adapter.name)  # in float32
        model.to(_DTYPES[dtype] or stored_dtype(checkpoint.base))
    if dtype == "int8":
        quantize_model(model)
    return model


def stored_dtype(folder: Path) -> torch.dtype:
    """Return the precision of the weights in ``folder``, the widest of several."""
    found = [getattr(torch, entry.dtype) for entry in open_tensors(folder).entries.values()]
    return max(found, key=lambda dtype: dtype.itemsize)


def loader_of(result: Any) -> Loader:
    """Return the loader of a ``result`` made from a model and its tokenizer, such as a ``TextEncoder``."""

    def load(checkpoint: Checkpoint, device: str, dtype: str) -> Any:
        return _with_tokenizer(result, checkpoint, _model(checkpoint, device, dtype))

    return load


def _with_tokenizer(result: Any, checkpoint: Checkpoint, model: Any) -> Any:
    """Return a ``result`` of the model and the tokenizer of its folder, or of its base."""
    tokenizer = folder_tokenizer(checkpoint.folder, model.config.vocab_size)
    if tokenizer is None and checkpoint.base is not None:
        tokenizer = folder_tokenizer(checkpoint.base, model.config.vocab_size)
    return result.of(checkpoint.folder, model, tokenizer)


def load_language_model(checkpoint: Checkpoint, device: str, dtype: str) -> LanguageModel:
    return language_model_of(checkpoint, _model(checkpoint, device, dtype))


def language_model_of(checkpoint: Checkpoint, model: Any) -> LanguageModel:
    """Return ``model`` with what the folder says besides weights: tokenizer, system message and settings."""
    lm: LanguageModel = _with_tokenizer(LanguageModel, checkpoint, model)
    data = None if checkpoint.recipe is None else checkpoint.recipe.data
    lm.system = data.system if isinstance(data, ChatData) else None
    paths = [folder / "generation_config.json" for folder in (checkpoint.folder, checkpoint.model_folder)]
    path = next((path for path in paths if path.exists()), None)
    if path is not None:
        lm.generation_defaults = read_json(path)
    else:
        config = read_json(checkpoint.model_folder / "config.json")
        lm.generation_defaults = {key: config[key] for key in TOKEN_IDS if config.get(key) is not None}
    return lm


def load_classifier(checkpoint: Checkpoint, device: str, dtype: str) -> TextClassifier:
    folder, model = checkpoint.folder, _model(checkpoint, device, dtype)
    reader = text_reader(folder, model.config)
    return TextClassifier(model=model, reader=reader, config=model.config, folder=folder)


def load_bag_of_words(checkpoint: Checkpoint, device: str, dtype: str) -> TextClassifier:
    if dtype in ("bf16", "fp16", "int8"):
        raise DeviceError(f"a bag of words computes in fp32, not in {dtype}; leave the dtype out")
    return load_classifier(checkpoint, device, "fp32" if dtype == "auto" else dtype)


def load_translator(checkpoint: Checkpoint, device: str, dtype: str) -> Translator:
    folder, model = checkpoint.model_folder, _model(checkpoint, device, dtype)  # an adapter has no tokenizers
    path, stored = folder / "generation_config.json", read_json(folder / "config.json")
    defaults = read_json(path) if path.exists() else {}
    settings = defaults if path.exists() else stored  # as transformers does
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
        stored |= {key: value for key, value in defaults.items() if value is not None}
        eos, pad, start = (
            token if isinstance(token := stored.get(f"{role}_token_id"), int) else -1  # -1: not known
            for role in ("eos", "pad", "decoder_start")
        )
        tokens = dict.fromkeys(("tokenizer", "source_tokenizer"))
        tokens |= {"source_eos_id": eos, "eos_id": eos, "pad_id": pad}
        tokens["start_id"] = pad if start < 0 else start
    return Translator(
        model=model,
        config=model.config,
        forced_eos_id=settings.get("forced_eos_token_id"),
        folder=checkpoint.folder,
        generation_defaults=defaults,
        **tokens,
    )
