"""Where a model's parameters are, and what they and one token cost.

Counted from the tensors of the model itself on the meta device: a model of any size takes no memory, and
the rows add up to its parameters because they are its parameters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from wordloom.errors import ConfigError
from wordloom.models import context_limit, encodes, skeleton
from wordloom.models.building.cost import Flops, flops_per_token, kv_cache_bytes_per_token
from wordloom.nn import Attention, Rotary
from wordloom.nn.recurrent import Recurrent

__all__ = ["PRECISIONS", "Component", "KvCache", "ParameterTable", "parameter_table"]

# Bytes per parameter.  int8 is the weights alone: a quantised model adds a scale per row or group.
PRECISIONS = {"fp32": 4, "bf16": 2, "int8": 1}


@dataclass(frozen=True)
class Component:
    """One module, or the same module of every layer (``*`` in its name)."""

    name: str
    tensors: tuple[
        tuple[tuple[int, ...], str], ...
    ]  # (shape, the component it is tied to or ""): weight, bias
    parameters: int  # of one copy; a tensor tied to an earlier component is counted there alone
    copies: int

    @property
    def total(self) -> int:
        return self.parameters * self.copies


@dataclass(frozen=True)
class KvCache:
    """Bytes per token that decoding keeps, per precision, for a number of key/value heads."""

    kind: str  # "multi-head", "grouped-query" or "multi-query"
    n_kv_heads: int
    is_this_model: bool
    bytes_per_token: dict[str, int]


@dataclass(frozen=True)
class ParameterTable:
    """What :func:`parameter_table` finds; ``sum(c.total for c in components) == total``."""

    components: tuple[Component, ...]
    total: int
    memory: dict[str, int]  # precision -> bytes of all parameters
    context: int  # keys per query that flops and the cache's size are stated for
    kv_cache: tuple[KvCache, ...]
    flops: Flops  # per token, too
    per: str = "token"  # or "source and target token": what flops and kv_cache are counted for
    state: int = 0  # numbers that a recurrent model keeps of a row, however long it is

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for ``--json``."""
        return {
            "components": [
                {"name": c.name, "parameters": c.parameters, "copies": c.copies, "total": c.total,
                 "tensors": [{"shape": list(s), "tied_to": owner or None} for s, owner in c.tensors]}
                for c in self.components
            ],
            "total": self.total,
            "memory_bytes": self.memory,
            "context": self.context,
            "per": self.per,
            "kv_cache_bytes_per_token": [
                {"kind": k.kind, "n_kv_heads": k.n_kv_heads, "this_model": k.is_this_model,
                 **k.bytes_per_token}
                for k in self.kv_cache
            ],
            "state_numbers": self.state,
            "flops_per_token": {
                "layers": self.flops.layers, "attention": self.flops.attention, "head": self.flops.head,
                "forward": self.flops.forward, "training": self.flops.training,
            },
        }  # fmt: skip


def parameter_table(model: Any, *, context: int | None = None) -> ParameterTable:
    """The table of ``model``, a module or a config (built on the meta device).

    ``context`` is the number of keys per query that attention is counted with; None: max_seq_len.  A
    recurrent model has neither keys nor limit.

    Raises ConfigError for a context below 1 or past max_seq_len.
    """
    module = model if isinstance(model, nn.Module) else skeleton(model)
    longest = context_limit(module.config)
    context = (longest or 1) if context is None else context
    if longest is not None and context > longest:
        raise ConfigError(f"context {context} is past the model's max_seq_len {longest}; give one up to that")
    flops = flops_per_token(module, context=context)
    components = tuple(_components(module))
    total = sum(p.numel() for p in module.parameters())
    return ParameterTable(
        components=components,
        total=total,
        memory={name: total * size for name, size in PRECISIONS.items()},
        context=context,
        kv_cache=tuple(_kv_caches(module)),
        flops=flops,
        per="source and target token" if hasattr(module, "encode") else "token",
        state=sum(
            sum(layer.state_dims)
            for name, layer in module.named_modules()
            if isinstance(layer, Recurrent)
            and not name.startswith("encoder_")  # which keeps none in decoding
        ),
    )


def _components(model: nn.Module) -> Iterator[Component]:
    """Rows in the order of the model file, the layers folded into one row per kind and shape."""
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
    """Positions that no tensor holds: a row of zero, so that nobody looks for them."""
    if any(isinstance(value, Rotary) for value in vars(model).values()):
        yield "rotary positions"
    positions = getattr(model.config, "positions", "")
    if positions.startswith("sinusoidal"):
        yield "sinusoidal positions"
    if positions == "one_hot":
        yield "one-hot positions"


def _kv_caches(model: nn.Module) -> Iterator[KvCache]:
    """This model's cache beside what the other ways to share keys would make of it."""
    attention = next((module for module in model.modules() if isinstance(module, Attention)), None)
    if attention is None or encodes(model.config):
        return
    H, own = attention.n_heads, attention.n_kv_heads
    # the model's own grouping, else groups of four query heads or the next number that divides them
    groups = H // own if 1 < own < H else next((g for g in range(4, H) if H % g == 0), 1)
    for kv_heads in dict.fromkeys([H, H // groups, 1]):
        kind = "multi-head" if kv_heads == H else "multi-query" if kv_heads == 1 else "grouped-query"
        sizes = {
            name: kv_cache_bytes_per_token(model, element_bytes=size, n_kv_heads=kv_heads)
            for name, size in PRECISIONS.items()
            if name != "int8"  # keys and values are kept in the precision the model computes in
        }
        yield KvCache(kind, kv_heads, kv_heads == own, sizes)
