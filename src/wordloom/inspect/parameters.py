"""Tables of a model's parameters, their memory, and the cost of a token.

The tensors of the model itself are counted, on the meta device.  Even a large model needs no memory, and the
rows add up to the model's parameters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from wordloom.errors import ConfigError
from wordloom.models import context_limit, encodes, generation_limit, skeleton
from wordloom.models.building.cost import (
    Flops,
    attention_activation_bytes,
    flops_per_token,
    keys_per_query,
    kv_cache_bytes,
    kv_cache_bytes_per_token,
)
from wordloom.models.building.quantized import int8_bytes
from wordloom.nn import Attention, Rotary
from wordloom.nn.recurrent import Recurrent

PRECISIONS = {"fp32": 4, "bf16": 2}  # bytes per parameter


@dataclass(frozen=True)
class Component:
    """One module, or one module of every layer (with ``*`` in its name)."""

    name: str
    tensors: tuple[tuple[tuple[int, ...], str], ...]  # (shape, the component that it is tied to or "")
    parameters: int  # of one copy; a tied tensor counts only for the first component
    copies: int  # layers with this component

    @property
    def total(self) -> int:
        """The parameters of all copies."""
        return self.parameters * self.copies


@dataclass(frozen=True)
class KvCache:
    """The bytes of keys and values per token in each precision, for a number of key/value heads."""

    kind: str  # "multi-head", "grouped-query" or "multi-query"
    n_kv_heads: int
    is_this_model: bool
    bytes_per_token: dict[str, int]
    bytes_of_context: dict[str, int]  # of a text as long as the table's context


@dataclass(frozen=True)
class ParameterTable:
    """The parameters and costs of a model; ``sum(c.total for c in components) == total``."""

    components: tuple[Component, ...]
    total: int
    memory: dict[str, int]  # precision -> bytes of all parameters, in 8 bits with their scales
    context: int  # tokens of the text for which costs are stated
    keys: float  # of the mean query in such a text
    kv_cache: tuple[KvCache, ...]
    flops: Flops  # per token
    per: str = "token"  # the unit of flops and kv_cache: "token" or "source and target token"
    state: int = 0  # numbers in the state of a recurrent model, for a row of any length
    activations: dict[str, int] = field(default_factory=dict)  # precision -> bytes that attention keeps

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for ``--json``."""
        return {
            "components": [
                {"name": c.name, "parameters": c.parameters, "copies": c.copies, "total": c.total,
                 "tensors": [{"shape": list(s), "tied_to": owner or None} for s, owner in c.tensors]}
                for c in self.components
            ],
            "total": self.total,
            "memory_bytes": self.memory,
            "context": self.context,
            "keys_per_query": self.keys,
            "per": self.per,
            "kv_cache_bytes_per_token": [
                {"kind": k.kind, "n_kv_heads": k.n_kv_heads, "this_model": k.is_this_model,
                 **k.bytes_per_token}
                for k in self.kv_cache
            ],
            "kv_cache_bytes_of_context": [
                {"n_kv_heads": k.n_kv_heads, **k.bytes_of_context} for k in self.kv_cache
            ],
            "attention_activation_bytes": self.activations,
            "state_numbers": self.state,
            "flops_per_token": {
                "layers": self.flops.layers, "attention": self.flops.attention, "head": self.flops.head,
                "forward": self.flops.forward, "training": self.flops.training,
            },
        }  # fmt: skip


def parameter_table(model: Any, *, context: int | None = None) -> ParameterTable:
    """Return the table of ``model``, a module or a config that is built on the meta device.

    ``context`` is the number of keys per query for the cost of attention, by default max_seq_len.  A
    recurrent model has neither keys nor a limit.

    Raises ConfigError for a context below 1, and for one above max_seq_len unless a text may grow past it.
    """
    module = model if isinstance(model, nn.Module) else skeleton(model)
    longest = generation_limit(module.config)
    context = (context_limit(module.config) or 1) if context is None else context
    if longest is not None and context > longest:
        raise ConfigError(f"context {context} is above max_seq_len {longest}; give {longest} or less")
    flops = flops_per_token(module, context=context)
    components = tuple(_components(module))
    total = sum(p.numel() for p in module.parameters())
    memory = {name: total * size for name, size in PRECISIONS.items()}
    quantized = int8_bytes(module.config)
    if quantized is not None:
        memory["int8"] = quantized
    return ParameterTable(
        components=components,
        total=total,
        memory=memory,
        context=context,
        keys=_mean(
            [keys_per_query(m, context) for m in module.modules() if isinstance(m, Attention)], context
        ),
        kv_cache=tuple(_kv_caches(module, context)),
        activations={
            name: attention_activation_bytes(module, context=context, element_bytes=PRECISIONS[name])
            for name in ("fp32", "bf16")
        },
        flops=flops,
        per="source and target token" if hasattr(module, "encode") else "token",
        state=sum(
            sum(layer.state_dims)
            for name, layer in module.named_modules()
            if isinstance(layer, Recurrent)
            and not name.startswith("encoder_")  # decoding keeps no state of the encoder
        ),
    )


def _mean(numbers: list[float], otherwise: float) -> float:
    return sum(numbers) / len(numbers) if numbers else otherwise


def _components(model: nn.Module) -> Iterator[Component]:
    """Return rows in the order of the model file, with one row for the equal modules of all layers."""
    first_owner: dict[int, str] = {}
    copies: dict[Component, int] = {}
    for name, module in model.named_modules():
        tensors, parameters = [], 0
        for _, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            owner = first_owner.setdefault(id(parameter), name)
            tensors.append((tuple(parameter.shape), "" if owner == name else owner))
            parameters += parameter.numel() if owner == name else 0
        if tensors:
            row = Component(re.sub(r"\.\d+(?=\.|$)", ".*", name), tuple(tensors), parameters, 1)
            copies[row] = copies.get(row, 0) + 1
        if name == "token_embedding":
            copies.update((Component(kind, (), 0, 1), 1) for kind in _computed_positions(model))
    return (replace(row, copies=n) for row, n in copies.items())


def _computed_positions(model: nn.Module) -> Iterator[str]:
    """Yield names of positions without parameters, which get a row of zero parameters."""
    if any(isinstance(value, Rotary) for value in vars(model).values()):
        yield "rotary positions"
    positions = getattr(model.config, "positions", "")
    if positions.startswith("sinusoidal"):
        yield "sinusoidal positions"
    if positions == "one_hot":
        yield "one-hot positions"


def _kv_caches(model: nn.Module, context: int) -> Iterator[KvCache]:
    """Yield the cache of this model, and for comparison with other numbers of key/value heads."""
    attention = next((module for module in model.modules() if isinstance(module, Attention)), None)
    if attention is None or encodes(model.config):
        return
    H, own = attention.n_heads, attention.n_kv_heads
    # the model's own groups, or groups of four query heads or the next number that divides them
    groups = H // own if 1 < own < H else next((g for g in range(4, H) if H % g == 0), 1)
    for kv_heads in dict.fromkeys([H, H // groups, 1]):
        kind = "multi-head" if kv_heads == H else "multi-query" if kv_heads == 1 else "grouped-query"
        each, whole = {}, {}
        for name in ("fp32", "bf16"):  # keys and values have the precision of the computation
            size: dict[str, Any] = {"element_bytes": PRECISIONS[name], "n_kv_heads": kv_heads}
            each[name] = kv_cache_bytes_per_token(model, **size)
            whole[name] = kv_cache_bytes(model, context=context, **size)
        yield KvCache(kind, kv_heads, kv_heads == own, each, whole)
