"""Models of a base and an adapter, which may have a head that the base lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from wordloom.errors import CheckpointError
from wordloom.models import body_config, build, family_of, skeleton
from wordloom.models.building.lora import head_modules
from wordloom.weights.adapters import MODEL_CONFIG, LoadedAdapter, load_adapter
from wordloom.weights.configs import config_from_json, load_config
from wordloom.weights.loading import load_model
from wordloom.weights.pretrained import start_from
from wordloom.weights.tensors import read_json


def adapted_config(base: str | Path, adapter: str | Path) -> Any:
    """Return the config of the model of ``base`` with ``adapter``; raise CheckpointError if there is none."""
    path = Path(adapter) / MODEL_CONFIG
    if not path.is_file():
        return load_config(base)
    try:
        return config_from_json(read_json(path))
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None


def load_adapted_model(
    base: str | Path, adapter: str | Path, *, device: str | torch.device = "cpu"
) -> tuple[Any, LoadedAdapter]:
    """Return the model of ``base`` in float32 with the active ``adapter``, and the size of the adapter.

    Raises CheckpointError as :func:`load_adapter`, and for an adapter without the head that its model has.
    """
    config, model, fresh = adapted_config(base, adapter), None, tuple[str, ...]()
    if config == load_config(base):
        model = load_model(base, dtype=torch.float32, device=device)
    else:
        model = build(config, generator=torch.Generator())
        fresh = start_from(model, base).fresh
        model = model.to(device).eval()
    loaded = load_adapter(model, adapter, base=base)
    read = {name.removeprefix("body.") for name in loaded.head}
    if missing := sorted(set(fresh) - read):
        raise CheckpointError(f"neither {adapter} nor its base {base} holds {', '.join(missing)}")
    return model, loaded


def untrained_parts(config: Any, base: str | Path) -> tuple[str, ...]:
    """Return the modules of a model of ``config`` that the folder ``base`` lacks, and that are no head.

    An adapter over ``base`` has no place for them.

    Raises CheckpointError if ``base`` holds a model of another family.
    """
    stored = load_config(base)
    ours, theirs = body_config(config), body_config(stored)
    if type(ours) is not type(theirs):
        raise CheckpointError(f"{base} holds a {family_of(theirs)}, and the run trains a {family_of(ours)}")
    heads = {name.removeprefix("body.") for name in head_modules(config)}
    return tuple(sorted(_modules(config) - _modules(stored) - heads))


def _modules(config: Any) -> set[str]:
    """Return the modules with weights in a model of ``config``, by their names in its body."""
    return {name.rpartition(".")[0].removeprefix("body.") for name in skeleton(config).state_dict()}
