"""Write a model that was made from another checkpoint, with all that belongs to that one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from wordloom.errors import CheckpointError
from wordloom.files import abandoned
from wordloom.run.models.sentence_folder import pooling_files, pooling_of
from wordloom.weights import save_model
from wordloom.weights.configs import TOKEN_IDS
from wordloom.weights.tensors import complete, read_json

# The files of tokenizers, in all known formats; they are copied unchanged.
_READERS = ("*token*.json", "vocab*", "merges.txt", "encoder.json", "*.model", "chat_template*")


def save_derived(
    model: tuple[Any, Mapping[str, Tensor]],
    out: Path,
    *,
    source: Path,
    facts: Mapping[str, Any],
    name: str,
    overwrite: bool,
) -> None:
    """Write ``model``, a (config, state), into ``out``, with the tokenizer and settings of ``source``.

    The JSON file ``name`` has the ``facts`` of how the model was made, and ``recipe.toml`` is copied.

    Raises CheckpointError as :func:`wordloom.weights.save_model`, and for an ``out`` with other files or with
    a run, which ``--resume`` would go on with from its own checkpoints.
    """
    check_out(out)
    files = {name: json.dumps(facts, indent=1) + "\n", **copied_recipe(source)}
    if (pooling := pooling_of(source)) is not None:
        files |= pooling_files(model[0].dim, pooling)
    generation, config_json = source / "generation_config.json", read_json(source / "config.json")
    beside = config_json.get("source_tokenizer")
    save_model(
        model,
        out,
        tokenizer=_CopiedTokenizer(source, config_json.get("vocabulary")),
        source_tokenizer=None
        if beside is None
        else _CopiedTokenizer(source / str(beside), config_json.get("source_vocabulary")),
        generation=read_json(generation) if generation.exists() else None,
        files=files,
        overwrite=overwrite,
    )


def copied_recipe(source: Path) -> dict[str, str]:
    """Return the recipe of ``source`` by its file name, if any; a run has it beside its checkpoints."""
    in_run = source.parent.name == "checkpoints"
    recipe = (source.parent.parent if in_run else source) / "recipe.toml"
    return {recipe.name: recipe.read_text(encoding="utf-8")} if recipe.exists() else {}


def check_out(out: Path) -> None:
    """Raise CheckpointError for a folder with other files or a run, where a new model cannot be written."""
    if (out / "checkpoints").is_dir():
        raise CheckpointError(f"{out} holds a run, which --resume would go on with; choose another --out")
    if not out.is_dir():
        return
    complete(out)
    if set(out.iterdir()) - abandoned(out) and not (out / "config.json").exists():
        raise CheckpointError(f"{out} holds files that are no checkpoint; choose another --out")


class _CopiedTokenizer:
    """A stand-in for the tokenizer of a checkpoint: saving it copies the files unchanged."""

    vocab_size = 0  # it fits the model it comes from

    def __init__(self, folder: Path, vocabulary: dict[str, Any] | None) -> None:
        self.folder, self.vocabulary_facts = folder, vocabulary
        facts = read_json(folder / "config.json") if (folder / "config.json").exists() else {}
        self.bos_id, self.eos_id, self.pad_id = (facts.get(key) for key in TOKEN_IDS)

    def save_pretrained(self, place: Path) -> None:
        place.mkdir(exist_ok=True)
        known = {path for pattern in _READERS for path in self.folder.glob(pattern)}
        for path in filter(Path.is_file, sorted(known)):
            shutil.copy(path, place / path.name)
