"""Load and save checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from wordloom.run.checkpoint.contents import read_checkpoint
from wordloom.run.checkpoint.kinds import kind_of, require_kind
from wordloom.run.models.heads.classification import TextClassifier
from wordloom.run.models.language_model import LanguageModel
from wordloom.run.models.text_encoder import TextEncoder
from wordloom.run.models.translator import Translator

Loaded = TypeVar("Loaded")


def load(folder: str | Path, *, device: str = "auto", dtype: str = "auto") -> Any:
    """Load the model in ``folder``: one of Wordloom's, or a Hugging Face folder of a supported family.

    Returns a :class:`LanguageModel`, :class:`TextClassifier`, :class:`TextEncoder` or :class:`Translator`, or
    the class of another fine-tuning task; see :data:`wordloom.run.checkpoint.kinds.KINDS`.  ``dtype`` is auto
    (as stored), fp32, bf16 or fp16.

    Raises CheckpointError for a folder without a model, DeviceError for a device that does not exist.
    """
    checkpoint = read_checkpoint(folder)
    return kind_of(checkpoint).load(checkpoint, device, dtype)


def load_as(
    result: type[Loaded],
    folder: str | Path,
    *,
    device: str = "auto",
    dtype: str = "auto",
    purpose: str = "this command",
) -> Loaded:
    """Load the model in ``folder`` as a ``result``, such as :class:`LanguageModel`.

    Raises CheckpointError for a folder of another kind; ``purpose`` says in the message what needs a
    ``result``.
    """
    checkpoint = read_checkpoint(folder)
    model: Loaded = require_kind(checkpoint, result, purpose).load(checkpoint, device, dtype)
    return model


def next_command(folder: str | Path) -> str:
    """Return a command that tries the model in ``folder``; raises CheckpointError as :func:`load` does."""
    checkpoint = read_checkpoint(folder)
    return kind_of(checkpoint).command_for(checkpoint)


def save(
    lm: LanguageModel | TextClassifier | Translator | TextEncoder,
    folder: str | Path,
    *,
    overwrite: bool = False,
) -> None:
    """Write ``lm`` to ``folder``; raises CheckpointError for an existing checkpoint unless ``overwrite``."""
    lm.save_pretrained(folder, overwrite=overwrite)
