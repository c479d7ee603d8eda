"""Adapters in the folders of peft: ``adapter_config.json`` and ``adapter_model.safetensors``.

The tensors are called ``base_model.model.<module of transformers>.lora_A.weight`` [r, in],
``.lora_B.weight`` [out, r] and ``.lora_magnitude_vector`` [out].  Where transformers keeps several of our
matrices in a module, such as GPT-2's c_attn, their adapters are stored as one whose B is block-diagonal.

The head of a fine-tuning task is stored whole, as ``base_model.model.<module of transformers>.weight`` and
``.bias``, and ``modules_to_save`` names it.  If the model differs from its base, for example by the head,
``model_config.json`` holds its config.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from wordloom.errors import CheckpointError
from wordloom.files import replacement
from wordloom.models import TaskConfig, body_config, encodes, translates
from wordloom.models.building.lora import (
    adapter_names,
    choose_adapter,
    extend_adapter,
    head_modules,
    linear_layers,
    lora_layers,
)
from wordloom.models.rnn_classifier import RNNClassifierConfig
from wordloom.nn.lora import LoraSettings, LowRank
from wordloom.weights.configs import ADAPTER_CONFIG, config_to_own_json, load_config
from wordloom.weights.loading import renaming_of, weights_fingerprint
from wordloom.weights.peft_config import HEADS, read_peft_config
from wordloom.weights.renaming import Row, listed
from wordloom.weights.tensors import complete

CONFIG, TENSORS = ADAPTER_CONFIG, "adapter_model.safetensors"
MODEL_CONFIG = "model_config.json"  # of a model that differs from its base
_PREFIX = "base_model.model."
_KINDS = {"lora_A.weight": "A", "lora_B.weight": "B", "lora_magnitude_vector": "m"}
_OF_TRAINING = ".lora_velora_embed"  # read by the backward pass of VeLoRA alone
_BASE = "base_fingerprint"  # in the metadata of the tensors
_TASK_TYPES = {
    "classification": "SEQ_CLS",
    "regression": "SEQ_CLS",
    "token_classification": "TOKEN_CLS",
    "question_answering": "QUESTION_ANS",
}


class LoadedAdapter(NamedTuple):
    """The number of layers that the adapter ``name`` changes, of all linear layers.

    ``head`` names the modules that were read whole.
    """

    name: str
    layers: int
    of: int
    head: tuple[str, ...] = ()

    def line(self) -> str:
        """Return the report as a line."""
        whole = f", and the head: {', '.join(self.head)}" if self.head else ""
        return f"adapter     {self.name}: {self.layers} of {self.of} linear modules{whole}"


class _Module(NamedTuple):
    """A module of transformers and our layers whose weights it holds."""

    theirs: str
    layers: tuple[str, ...]
    row: Row


def is_adapter(folder: str | Path) -> bool:
    """Return whether ``folder`` holds an adapter."""
    complete(Path(folder))
    return (Path(folder) / CONFIG).is_file()


def base_of(folder: str | Path) -> str | None:
    """Return the base model that an adapter's folder names, or None."""
    return read_peft_config(Path(folder)).base_model_name_or_path or None


# ----------------------------------------------------------------------------------------------- writing


def save_adapter(
    model: Any,
    folder: str | Path,
    *,
    name: str = "default",
    base: str | Path | None = None,
    overwrite: bool = False,
) -> None:
    """Write the adapter ``name`` of ``model`` and its head into ``folder``.

    ``base`` is the folder of the base model; the adapter stores its absolute path.

    Raises CheckpointError if the folder holds an adapter and ``overwrite`` is False, and for a module of
    transformers of which only a part is adapted.
    """
    folder = Path(folder)
    if is_adapter(folder) and not overwrite:
        raise CheckpointError(f"{folder} holds an adapter already; choose another folder, or --force")
    tensors, chosen = _stored(model, name)
    heads = _stored_head(model)
    config = _adapter_config(model, chosen, heads, base)
    differs = bool(heads) if base is None else model.config != load_config(base)
    metadata = {"format": "pt"} | ({} if base is None else {_BASE: weights_fingerprint(base)})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacement(folder, last=CONFIG, stale=[MODEL_CONFIG]) as new:
            whole = {f"{_PREFIX}{theirs}": tensor for theirs, tensor in heads.items()}
            save_file(tensors | whole, new / TENSORS, metadata=metadata)
            _sort_metadata(new / TENSORS)
            if differs:
                own = json.dumps(config_to_own_json(model.config), indent=2) + "\n"
                (new / MODEL_CONFIG).write_text(own, encoding="utf-8")
            (new / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder} could not be written: {error}") from error


def _sort_metadata(path: Path) -> None:
    """Sort the metadata of a safetensors file, which is written in another order in each process."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8 bytes
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])


def _stored(model: Any, name: str) -> tuple[dict[str, Tensor], dict[str, LoraSettings]]:
    """Return the tensors under peft's names, and the settings of each module of transformers."""
    adapters = {
        layer_name: adapter
        for layer_name, layer in lora_layers(model).items()
        for each, adapter in layer.adapters.items()
        if each == name and isinstance(adapter, LowRank)
    }
    if not adapters:
        raise CheckpointError(f"the model has no adapter '{name}' to save")
    check_storable(model, adapters)
    tensors: dict[str, Tensor] = {}
    chosen: dict[str, LoraSettings] = {}
    for module in _modules(model):
        parts = [adapters[layer] for layer in module.layers if layer in adapters]
        if not parts:
            continue
        chosen[module.theirs] = _joined(parts[0].settings, len(parts))
        stored = {
            "lora_A.weight": _inputs(module.row, torch.cat(tuple(part.A for part in parts))),
            "lora_B.weight": _outputs(module.row, _block_diagonal([part.B for part in parts])),
        }
        norms: list[Tensor] = [part.m for part in parts if part.m is not None]
        if norms:
            stored["lora_magnitude_vector"] = _outputs(module.row, torch.cat(norms))
        for end, tensor in stored.items():
            tensors[f"{_PREFIX}{module.theirs}.{end}"] = tensor.detach().to("cpu").contiguous()
    return tensors, chosen


def check_storable(model: Any, layers: Collection[str]) -> None:
    """Raise CheckpointError if ``layers`` are a part of a module of transformers, which peft adapts whole."""
    for module in _modules(model):
        adapted = [layer for layer in module.layers if layer in layers]
        if 0 < len(adapted) < len(module.layers):
            raise CheckpointError(
                f"peft adapts {module.theirs} as a whole, and the adapter changes {len(adapted)} of its "
                f"{len(module.layers)} matrices ({', '.join(module.layers)}); adapt all or none"
            )


def _stored_head(model: Any) -> dict[str, Tensor]:
    """Return the tensors of the head under transformers' names."""
    state = dict(model.named_parameters())
    return {row.theirs: row.stored(state).to("cpu").contiguous() for row in _head_rows(model.config)}


def _head_rows(config: Any) -> list[Row]:
    """Return the rows of the table of names that hold the head."""
    heads = tuple(f"{name}." for name in head_modules(config))
    if not heads:
        return []
    rows = renaming_of(config).rows
    return [row for row in rows if row.ours and all(name.startswith(heads) for name in row.ours)]


def _joined(settings: LoraSettings, n: int) -> LoraSettings:
    """Return the settings of n adapters that are stored as one, with the scale of each."""
    factor = math.sqrt(n) if settings.rank_stabilised else n
    return replace(settings, rank=n * settings.rank, alpha=factor * settings.alpha)


def _block_diagonal(blocks: list[Tensor]) -> Tensor:
    joined: Tensor = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
    return joined


def _outputs(row: Row, tensor: Tensor) -> Tensor:
    """Reorder the rows of ``tensor`` [out, ..] as transformers orders the outputs."""
    return _along(row, 0).join([tensor])


def _inputs(row: Row, tensor: Tensor) -> Tensor:
    """Reorder the columns of ``tensor`` [.., in] as transformers orders the inputs."""
    return _along(row, 1).join([tensor])


def _along(row: Row, axis: int) -> Row:
    """Return the row of a factor of the weight in ``row``, which orders the outputs (0) or the inputs (1)."""
    return Row(row.theirs, ("",), halves=axis if row.halves == axis else None)


def _adapter_config(
    model: Any, chosen: Mapping[str, LoraSettings], heads: Collection[str], base: str | Path | None
) -> dict[str, Any]:
    """Return peft's LoraConfig: the commonest settings, and the ranks and alphas of modules that differ."""
    common = Counter(chosen.values()).most_common(1)[0][0]
    others = {_pattern(name): each for name, each in chosen.items() if each != common}
    return {
        "peft_type": "LORA",
        "task_type": _task_type(model.config),
        "base_model_name_or_path": None if base is None else str(Path(base).resolve()),
        "r": common.rank,
        "lora_alpha": common.alpha,
        "lora_dropout": common.dropout,
        "use_rslora": common.rank_stabilised,
        "use_dora": common.dora,
        "target_modules": _targets(model, chosen),
        "rank_pattern": {pattern: each.rank for pattern, each in others.items()},
        "alpha_pattern": {pattern: each.alpha for pattern, each in others.items()},
        "fan_in_fan_out": any(module.row.layout == "conv1d" for module in _modules(model)),
        "bias": "none",
        "modules_to_save": sorted(set(map(_module_to_save, heads))) or None,
        "init_lora_weights": True,
        "inference_mode": True,
    }


def _pattern(module: str) -> str:
    """Return the regular expression by which peft finds a module."""
    return f"^{re.escape(module)}$"


def _module_to_save(theirs: str) -> str:
    """Return peft's name for the module of a head's tensor: "pooler" for ``bert.pooler.dense.weight``.

    It is the last part of the module's name, without the layers that transformers has in the module.
    """
    parts = theirs.split(".")[:-1]
    return parts[-2] if parts[-1] in ("dense", "out_proj") else parts[-1]


def _task_type(config: Any) -> str | None:
    """Return peft's type of the task; None where peft has none, and its general class is to be used."""
    if isinstance(config, TaskConfig):
        other = None if config.encodes else "SEQ_CLS"  # multiple choice, which a causal model reads as a text
        return _TASK_TYPES.get(config.task, other)
    if isinstance(config, RNNClassifierConfig):
        return None
    if encodes(config):
        return None if config.masked_lm_head else "FEATURE_EXTRACTION"
    return "SEQ_2_SEQ_LM" if translates(config) else "CAUSAL_LM"


def _targets(model: Any, adapted: Collection[str]) -> list[str]:
    """Return the last parts of the modules' names if these name no other module, else whole names.

    Encoders get whole names, because transformers may add a pooler, whose last part is that of other modules.
    """
    if encodes(body_config(model.config)):
        return sorted(adapted)
    ends = {name.rpartition(".")[2] for name in adapted}
    others = {module.theirs for module in _modules(model)}.difference(adapted)
    return sorted(adapted if any(name.rpartition(".")[2] in ends for name in others) else ends)


# ----------------------------------------------------------------------------------------------- reading


def load_adapter(
    model: Any,
    folder: str | Path,
    *,
    name: str = "default",
    base: str | Path | None = None,
    replace_existing: bool = False,
) -> LoadedAdapter:
    """Put the adapter of ``folder`` into ``model``, make it the active one, and return its size.

    ``base`` is the folder that ``model`` was loaded from.  It must have the weights that the adapter was
    trained on, if the adapter says which.  ``replace_existing`` replaces an adapter of this name.

    A head in the folder replaces that of the model.

    Raises CheckpointError for a folder without an adapter, another kind of adapter than LoRA, tensors that no
    module of the model has, missing tensors, another shape, an adapter of another base, and a second head.
    """
    folder = Path(folder)
    config = read_peft_config(folder)
    tensors, trained_on = _read(folder)
    if name in adapter_names(model) and not replace_existing:
        raise CheckpointError(f"the model has an adapter '{name}' already; choose another name")
    if base is not None and trained_on not in (None, weights_fingerprint(base)):
        raise CheckpointError(
            f"{folder} was trained on another base than {base}, whose weights differ; take the base that "
            f"{CONFIG} names: {config.base_model_name_or_path}"
        )
    bare = renaming_of(model.config).bare
    modules = {bare(module.theirs): module for module in _modules(model)}
    tensors = {bare(key.removeprefix(_PREFIX)): tensor for key, tensor in tensors.items()}
    head = {bare(row.theirs): row for row in _head_rows(model.config)}
    whole = {key: tensors.pop(key) for key in head if key in tensors}
    if whole and set(adapter_names(model)) - {name}:
        raise CheckpointError(
            f"{folder} holds a head, and the model has that of the adapter '{adapter_names(model)[0]}'; load "
            "each of them into a model of its own"
        )
    found = _by_module(folder, tensors, modules)
    layers = 0
    for key, parts in found.items():
        module = modules[key]
        settings = config.settings({module.theirs, key})
        _check_parts(model, module, settings, parts, folder)
        _put(model, module, _divided(settings, parts, len(module.layers)), parts, name)
        layers += len(module.layers)
    read = [ours for key, tensor in whole.items() for ours in _put_head(model, head[key], tensor, folder)]
    choose_adapter(model, name)
    heads = dict.fromkeys(ours.rpartition(".")[0] for ours in read)
    return LoadedAdapter(name, layers, len(linear_layers(model)), tuple(heads))


def _read(folder: Path) -> tuple[dict[str, Tensor], str | None]:
    """Return the tensors of a folder, and the fingerprint of the base if they name it."""
    path = folder / TENSORS
    if not path.is_file():
        raise CheckpointError(f"{folder} has {CONFIG} and lacks {TENSORS}")
    try:
        with safe_open(path, framework="pt") as file:
            names = [name for name in file.keys() if not name.endswith(_OF_TRAINING)]  # noqa: SIM118
            tensors, trained_on = {name: file.get_tensor(name) for name in names}, file.metadata() or {}
    except SafetensorError as error:
        raise CheckpointError(f"{path} cannot be read: {error}; copy it again") from None
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise CheckpointError(
                f"{path} stores {name} as {str(tensor.dtype).removeprefix('torch.')}, and an adapter has "
                "floating-point numbers; save the adapter again"
            )
    return tensors, trained_on.get(_BASE)


def _by_module(
    folder: Path, tensors: Mapping[str, Tensor], modules: Mapping[str, _Module]
) -> dict[str, dict[str, Tensor]]:
    """Return the tensors A, B and perhaps m of each module of transformers."""
    found: dict[str, dict[str, Tensor]] = {}
    unknown = []
    for key, tensor in tensors.items():
        end = next((end for end in _KINDS if key.endswith(f".{end}")), None)
        theirs = key.removesuffix(f".{end}") if end else key
        if end is None or theirs not in modules:
            unknown.append(key)
        else:
            found.setdefault(theirs, {})[_KINDS[end]] = tensor
    if not found:
        raise CheckpointError(
            f"{folder} changes 0 of {len(modules)} modules of this model: its tensors are for "
            f"{listed(unknown, most=3) or 'none'}, and the modules here are {listed(modules, most=3)}"
        )
    if unknown:
        head = any(part in HEADS for key in unknown for part in key.split("."))
        advice = "; the head needs a base that has it" if head else ""
        raise CheckpointError(
            f"{folder} has tensors that this model has no place for: {listed(unknown, most=3)}{advice}"
        )
    return found


def _check_parts(
    model: Any, module: _Module, settings: LoraSettings, parts: Mapping[str, Tensor], folder: Path
) -> None:
    """Raise CheckpointError unless ``parts`` are the tensors that ``module`` and ``settings`` need."""
    layers = [model.get_submodule(layer) for layer in module.layers]
    outputs, inputs = sum(layer.out_features for layer in layers), layers[0].in_features
    expected: dict[str, tuple[int, ...]] = {"A": (settings.rank, inputs), "B": (outputs, settings.rank)}
    if settings.dora:
        expected["m"] = (outputs,)
    names = {kind: end.removesuffix(".weight") for end, kind in _KINDS.items()}
    for kind in sorted(expected.keys() - parts.keys()):
        raise CheckpointError(f"{folder} lacks {names[kind]} of {module.theirs}")
    for kind in parts.keys() - expected.keys():
        raise CheckpointError(
            f"{folder} holds {names[kind]} of {module.theirs}, and use_dora is false in its {CONFIG}; set it "
            "to true, or save the adapter again"
        )
    for kind, shape in expected.items():
        if parts[kind].shape != shape:
            raise CheckpointError(
                f"{folder} has {names[kind]} of {module.theirs} of {list(parts[kind].shape)}, and this base "
                f"with r {settings.rank} needs {list(shape)}; it belongs to another base, or the r of "
                f"{CONFIG} was changed"
            )


def _divided(settings: LoraSettings, parts: Mapping[str, Tensor], n: int) -> LoraSettings:
    """Return the settings of the adapter of each of n matrices in a module with ``settings``."""
    if n == 1 or not _is_block_diagonal(parts["B"], n):
        return settings
    factor = math.sqrt(n) if settings.rank_stabilised else n
    return replace(settings, rank=settings.rank // n, alpha=settings.alpha / factor)


def _is_block_diagonal(B: Tensor, n: int) -> bool:
    """Return whether B [out, r] is n blocks along its diagonal and zero elsewhere."""
    if B.shape[1] % n:
        return False
    blocks = [part.chunk(n, dim=1) for part in B.chunk(n)]
    return all(not blocks[i][j].any() for i in range(n) for j in range(n) if i != j)


def _put(
    model: Any,
    module: _Module,
    settings: LoraSettings,
    parts: Mapping[str, Tensor],
    name: str,
) -> None:
    """Put the adapter of one module of transformers into our layers; ``settings`` are those of a layer."""
    n = len(module.layers)
    A, B = _along(module.row, 1).split(parts["A"])[0], _ours(module.row, parts["B"]).chunk(n)
    values = [{"A": A, "B": rows} for rows in B]
    if n > 1 and settings.rank * n == A.shape[0]:  # block-diagonal
        values = [{"A": A.chunk(n)[i], "B": rows.chunk(n, dim=1)[i]} for i, rows in enumerate(B)]
    if settings.dora:
        norms = _ours(module.row, parts["m"]).chunk(n)
        values = [{**each, "m": norm} for each, norm in zip(values, norms, strict=True)]
    extend_adapter(model, settings, module.layers, name=name)
    for layer_name, own in zip(module.layers, values, strict=True):
        adapter = lora_layers(model)[layer_name].adapters[name]
        for key, value in own.items():
            with torch.no_grad():
                getattr(adapter, key).copy_(value)


def _put_head(model: Any, row: Row, tensor: Tensor, folder: Path) -> tuple[str, ...]:
    """Copy a tensor of the head into ``model``, and return the names of its parameters."""
    for name, value in zip(row.ours, row.split(tensor), strict=True):
        target: Tensor = model.get_parameter(name)
        if target.shape != value.shape:
            raise CheckpointError(
                f"{folder} has {row.theirs} of {list(value.shape)} where the model's has "
                f"{list(target.shape)}; it belongs to a model with other labels"
            )
        with torch.no_grad():
            target.copy_(value)
    return row.ours


def _ours(row: Row, tensor: Tensor) -> Tensor:
    return _along(row, 0).split(tensor)[0]


def _modules(model: Any) -> list[_Module]:
    """Return the modules of transformers that hold the weights of our linear layers.

    The names of an encoder without a head are those in transformers' class without a head.
    """
    layers, renaming = linear_layers(model), renaming_of(model.config)
    alone = _task_type(model.config) == "FEATURE_EXTRACTION"
    found = []
    for row in renaming.rows:
        ours = tuple(name.removesuffix(".weight") for name in row.ours)
        if row.theirs.endswith(".weight") and ours and all(name in layers for name in ours):
            theirs = row.theirs.removesuffix(".weight")
            found.append(_Module(renaming.bare(theirs) if alone else theirs, ours, row))
    return found
