"""Put low-rank adapters into a built model, choose among them, and merge them into its weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from wordloom.errors import ConfigError, did_you_mean
from wordloom.models.rnn_classifier import RNNClassifierConfig
from wordloom.models.task_model import SUMMARIES, TaskConfig
from wordloom.nn.lora import LoraLinear, LoraSettings, LowRank
from wordloom.nn.quantized import Int8Linear

DEFAULT_TARGETS = ("*_proj",)  # all matrices of the blocks


def head_modules(config: Any) -> tuple[str, ...]:
    """Return the modules of a model of ``config`` that are trained whole beside an adapter.

    These are the head of a fine-tuning task and, if the head reads an encoder's pooled vector, the pooler.
    """
    if isinstance(config, TaskConfig):
        pooled = config.encodes and config.task in SUMMARIES
        return ("body.pooler", "classifier") if pooled else ("classifier",)
    return ("classifier",) if isinstance(config, RNNClassifierConfig) else ()


def linear_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the linear layers of ``model`` by name; a layer with adapters counts once."""
    found: dict[str, nn.Module] = {}
    inside: set[int] = set()
    for name, module in model.named_modules():
        if isinstance(module, LoraLinear):
            inside |= {id(child) for child in module.modules()} - {id(module)}
        if isinstance(module, LoraLinear | nn.Linear | Int8Linear) and id(module) not in inside:
            found[name] = module
    return found


def lora_layers(model: nn.Module) -> dict[str, LoraLinear]:
    """Return the layers of ``model`` that have adapters, by name."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, LoraLinear)}


def matching_layers(model: nn.Module, targets: Sequence[str]) -> list[str]:
    """Return the names of the linear layers that one of ``targets`` matches.

    A target is the last part of a name (``q_proj``), its last parts (``attention.q_proj``), or a pattern with
    ``*`` for any text (``blocks.0.*``).

    Raises ConfigError for a target that matches none.
    """
    names = list(linear_layers(model))
    chosen: set[str] = set()
    for target in targets:
        found = {name for name in names if fnmatchcase(name, target) or fnmatchcase(name, f"*.{target}")}
        if not found:
            ends = dict.fromkeys(name.rpartition(".")[2] for name in names)
            raise ConfigError(f"lora target {target!r} matches no linear layer; {did_you_mean(target, ends)}")
        chosen |= found
    return [name for name in names if name in chosen]


def add_adapter(
    model: Any,
    settings: LoraSettings,
    layers: Iterable[str],
    *,
    name: str = "default",
    generator: torch.Generator | None = None,
) -> None:
    """Give the linear layers called ``layers`` an adapter, make it the active one, and train it.

    A head (:func:`head_modules`) is trained whole. All other parameters of ``model`` lose ``requires_grad``.

    Raises ConfigError for an adapter ``name`` that the model has already, and for a layer of the head.
    """
    if name in adapter_names(model):
        raise ConfigError(f"the model has an adapter '{name}' already; choose another name")
    if not name or "." in name:
        raise ConfigError(f"an adapter cannot be called {name!r}; give a name without a dot")
    layers, heads = list(layers), head_modules(model.config)
    if in_head := [layer for layer in layers if layer in heads]:
        raise ConfigError(
            f"{in_head[0]} belongs to the head, which is trained whole; take it out of the lora targets"
        )
    model.requires_grad_(False)
    for head in heads:
        model.get_submodule(head).requires_grad_(True)
    extend_adapter(model, settings, layers, name=name, generator=generator)
    choose_adapter(model, name)


def extend_adapter(
    model: Any,
    settings: LoraSettings,
    layers: Iterable[str],
    *,
    name: str,
    generator: torch.Generator | None = None,
) -> None:
    """Give further linear layers the adapter ``name``, with settings of their own.

    Raises ConfigError for a layer that shares its weight with an embedding.
    """
    shared = _shared_weights(model)
    for layer_name in layers:
        layer = model.get_submodule(layer_name)
        if not isinstance(layer, LoraLinear):
            if layer_name in shared:
                raise ConfigError(
                    f"{layer_name} shares its weight with {shared[layer_name]}, which an adapter would not "
                    "change; take it out of the lora targets"
                )
            parent, _, last = layer_name.rpartition(".")
            layer = LoraLinear(layer).train(layer.training)
            setattr(model.get_submodule(parent), last, layer)
        adapter = LowRank(layer.base, settings).to(_device(layer))
        adapter.init_weights(layer.base, generator)
        layer.adapters[name] = adapter.train(layer.training)


def _device(layer: LoraLinear) -> torch.device:
    return next(iter([*layer.base.parameters(), *layer.base.buffers()])).device


def _shared_weights(model: nn.Module) -> dict[str, str]:
    """Return the linear layers that share their weight, each with the module that it shares it with."""
    owners: dict[int, str] = {}
    shared = {}
    for name, module in model.named_modules():
        weight = getattr(module, "packed", getattr(module, "weight", None))
        if not isinstance(weight, torch.Tensor):
            continue
        owner = owners.setdefault(id(weight), name)
        if owner != name:
            shared[name] = owner
    return shared


def adapter_names(model: nn.Module) -> list[str]:
    """Return the names of the adapters in ``model``."""
    return list(dict.fromkeys(name for layer in lora_layers(model).values() for name in layer.adapters))


def choose_adapter(model: nn.Module, name: str | None) -> None:
    """Make the adapter ``name`` the active one, or none.

    A layer without this adapter computes its base.  Raises ConfigError for an unknown name.
    """
    known = adapter_names(model)
    if name is not None and name not in known:
        hint = did_you_mean(name, known) if known else "it has none"
        raise ConfigError(f"the model has no adapter '{name}'; {hint}")
    for layer in lora_layers(model).values():
        layer.active = name if name is not None and name in layer.adapters else None
        for each, adapter in layer.adapters.items():
            adapter.requires_grad_(each == name)


@torch.no_grad()
def merge_adapter(model: Any, name: str) -> None:
    """Add the adapter ``name`` to the weights, in float32, and take all adapters out of ``model``.

    Raises ConfigError for an unknown name, and for a base in 8 bits, which would have to be rounded again.
    """
    choose_adapter(model, name)
    for layer_name, layer in lora_layers(model).items():
        parent, _, last = layer_name.rpartition(".")
        if layer.active is not None:
            if not isinstance(layer.base, nn.Linear):
                raise ConfigError("an adapter cannot be merged into weights in 8 bits; load the base in fp32")
            adapter = layer.adapters[name]
            assert isinstance(adapter, LowRank)
            layer.base.weight.copy_(adapter.merged(layer.base))
        setattr(model.get_submodule(parent), last, layer.base)
