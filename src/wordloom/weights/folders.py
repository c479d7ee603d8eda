"""Checkpoint folders as Hugging Face tools read and write them: weights in, weights out."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from wordloom.errors import CheckpointError, did_you_mean
from wordloom.models import TaskConfig, family_of, skeleton
from wordloom.weights.configs import OWN, format_of, load_config
from wordloom.weights.families.task_heads import is_head, renaming_of_head
from wordloom.weights.integrity import check_files
from wordloom.weights.renaming import Matched, Renaming, Row, listed, require_equal
from wordloom.weights.tensors import StoredTensors, open_tensors, read_json

__all__ = ["load_model", "load_parameter", "load_state", "renaming_of", "state_to_theirs"]

log = logging.getLogger(__name__)


# Settings that None leaves to a default, and the attributes that say what it is.
RESOLVED = {
    "n_kv_heads": "kv_heads",
    "head_dim": "head_width",
    "n_decoder_layers": "decoder_layers",
    "mlm_activation": "mlm_head_activation",
}

# Settings of which the weights know nothing, or whose difference shows in a shape.
_FREE = ("max_seq_len", "hidden_dim", "source_vocab_size", "teacher_forcing")


def renaming_of(config: Any, *, own: bool | None = None) -> Renaming:
    """The table of the model of ``config``.

    ``own`` (None: whatever ``config`` is saved as) chooses our names instead of transformers'.
    """
    form = format_of(config)
    names = skeleton(config).state_dict().keys()
    if isinstance(config, TaskConfig):
        ours = form.config_to(config.body) is None if own is None else own
        body = renaming_of(config.body, own=ours)
        return renaming_of_head(config, names, body, None if ours else form.model_type)
    tied = ("lm_head.weight", "token_embedding.weight") if getattr(config, "tie_embeddings", False) else None
    n_layers = getattr(config, "n_layers", 0)
    if form.config_to(config) is None if own is None else own:
        rows = [Row(name, (name,)) for name in names]
        return Renaming.of(rows, names=names, n_layers=n_layers, tied=tied)
    if form.renaming is not None:
        return form.renaming(config, names)
    return Renaming.of(
        form.table,
        names=names,
        n_layers=n_layers,
        tied=tied,
        prefixes=form.prefixes,
        ignored=form.ignored,
    )


def state_to_theirs(model: nn.Module) -> dict[str, Tensor]:
    """The weights of ``model`` under the names and in the layout that :func:`save_model` writes."""
    return renaming_of(model.config).to_theirs(model.state_dict())


def load_model(
    folder: str | Path, *, dtype: torch.dtype | None = None, device: str | torch.device = "cpu"
) -> nn.Module:
    """The model of a checkpoint folder with its weights, in evaluation mode.

    ``dtype`` None keeps every tensor as it is stored.  Files are memory-mapped and copied tensor by
    tensor into a model that has no memory of its own yet, so the weights are held once.

    Raises CheckpointError, before any weight is read, when a file is missing, truncated or corrupt,
    when names are missing or unknown, and when a shape is not the config's.
    """
    folder = Path(folder)
    config = load_config(folder)
    model = skeleton(config)
    renaming, stored, matched = _verified(folder, config, model)
    state: dict[str, Tensor] = {}
    for row in renaming.rows:
        parts = row.split(stored.read(matched.found[row.theirs]))
        for name, part in zip(row.ours, parts, strict=True):
            state[name] = part.to(device, dtype, copy=True, memory_format=torch.contiguous_format)
    for copy, original in (renaming.tied_ours or {}).items():
        state[copy] = state[original]
    model.load_state_dict(state, assign=True)
    model.tie_weights()  # type: ignore[operator]
    return model.eval()


def load_parameter(folder: str | Path, name: str) -> Tensor:
    """One parameter of a checkpoint folder by our name, such as ``token_embedding.weight``, on the CPU and as
    it is stored, mapped from its file.  No other weight is read; of a tied one, the original.

    Raises CheckpointError as :func:`load_model`, and for a name that the model does not have.
    """
    folder = Path(folder)
    config = load_config(folder)
    model = skeleton(config)
    renaming, stored, matched = _matched(folder, config, model)
    original = (renaming.tied_ours or {}).get(name, name)
    for row in renaming.rows:
        if original in row.ours:
            return row.split(stored.read(matched.found[row.theirs]))[row.ours.index(original)]
    hint = did_you_mean(name, model.state_dict())
    raise CheckpointError(f"the {family_of(config)} in {folder} has no parameter '{name}'; {hint}")


@torch.no_grad()
def load_state(model: nn.Module, folder: str | Path) -> None:
    """Copy the weights of a folder into ``model``, bit for bit.

    Raises CheckpointError, before anything is overwritten, as :func:`load_model`; also when the folder
    holds another model, and when a weight would be rounded (stored float32, wanted bfloat16).
    """
    folder = Path(folder)
    config = load_config(folder)
    _require_same(config, model.config, folder)
    renaming, stored, matched = _verified(folder, config, model)
    state = model.state_dict()
    for row in renaming.rows:
        entry = stored.entries[matched.found[row.theirs]]
        for name in row.ours:
            if torch.promote_types(getattr(torch, entry.dtype), state[name].dtype) != state[name].dtype:
                raise CheckpointError(
                    f"{folder} stores {row.theirs} as {entry.dtype}, which {state[name].dtype} cannot hold "
                    "exactly; build the model in the stored precision"
                )
    for row in renaming.rows:
        parts = row.split(stored.read(matched.found[row.theirs]))
        for name, part in zip(row.ours, parts, strict=True):
            state[name].copy_(part)


def _require_same(stored: Any, config: Any, folder: Path) -> None:
    """Raise CheckpointError unless both configs compute the same from equal weights.

    Dropout and the length of a context may change; sizes show in the shapes, which are compared anyway.
    """
    if type(stored) is not type(config):
        raise CheckpointError(f"{folder} holds a {family_of(stored)}, the model is a {family_of(config)}")
    for field in fields(config):
        if field.name.endswith("dropout") or field.name in _FREE:
            continue
        name = RESOLVED.get(field.name, field.name)
        given, wanted = getattr(stored, name), getattr(config, name)
        if given != wanted:
            raise CheckpointError(f"{folder} has {field.name} {given!r}, the model has {wanted!r}")


def _verified(folder: Path, config: Any, model: nn.Module) -> tuple[Renaming, StoredTensors, Matched]:
    """Check everything before a weight is used: names, shapes, tied copies, the hashes of a run's files."""
    check_files(folder)
    renaming, stored, matched = _matched(folder, config, model)
    for copy, original in matched.duplicates.items():
        name = matched.found[original]
        require_equal(stored.read(copy), stored.read(name), f"{folder}: {copy}", name)
    for row in renaming.rows:
        if not row.ours:  # zeros are due
            row.split(stored.read(matched.found[row.theirs]))
    if matched.ignored:
        kinds = sorted(set(matched.ignored.values()))
        # masks and the like are computed anew; a head is something learnt that is left behind
        level = logging.WARNING if any(map(is_head, kinds)) else logging.INFO
        advice = _advice_on_heads(folder, kinds)
        _tell_once(level, f"{folder}: {len(matched.ignored)} tensors not used: {listed(kinds)}{advice}")
    return renaming, stored, matched


def _matched(folder: Path, config: Any, model: nn.Module) -> tuple[Renaming, StoredTensors, Matched]:
    """The folder's tensors with names, shapes and types that are the model's; no weight is read."""
    model_type = read_json(folder / "config.json")["model_type"]
    renaming = renaming_of(config, own=str(model_type).startswith(OWN))
    stored = open_tensors(folder)
    try:
        matched = renaming.match(stored.entries)
    except CheckpointError as error:
        advice = _advice_on_heads(folder, {renaming.ignored_as(name) or "" for name in stored.entries})
        raise CheckpointError(
            f"the weights in {folder} do not fit its config.json: it {error}{advice}"
        ) from None
    _check_entries(folder, renaming, stored, matched, model)
    return renaming, stored, matched


def _advice_on_heads(folder: Path, kinds: Iterable[str]) -> str:
    """How to load a task head among the stored ``kinds`` of tensors, where config.json names no class."""
    heads = sorted(filter(is_head, kinds))
    if not heads or read_json(folder / "config.json").get("architectures"):
        return ""
    return f'; to load {listed(heads)}, name its class as "architectures" in config.json'


@cache
def _tell_once(level: int, message: str) -> None:
    log.log(level, "%s", message)


def _check_entries(
    folder: Path, renaming: Renaming, stored: StoredTensors, matched: Matched, model: nn.Module
) -> None:
    shapes = {name: tensor.to("meta") for name, tensor in model.state_dict().items()}
    expected = renaming.to_theirs(shapes)
    wrong = []
    for row in renaming.rows:
        entry, want = stored.entries[matched.found[row.theirs]], tuple(expected[row.theirs].shape)
        if entry.shape != want:
            wrong.append(f"{row.theirs} is {list(entry.shape)}, expected {list(want)}")
        if entry.dtype not in ("float64", "float32", "float16", "bfloat16"):
            raise CheckpointError(
                f"{entry.file} stores {row.theirs} as {entry.dtype}; quantised weights are not read here: "
                "use the float32, float16 or bfloat16 checkpoint"
            )
    if wrong:
        raise CheckpointError(f"the weights in {folder} do not fit its config.json: {listed(wrong, most=5)}")
