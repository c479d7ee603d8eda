"""Give a model weights in 8 bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from wordloom.errors import ConfigError
from wordloom.models.building.build import skeleton
from wordloom.models.families import family_of
from wordloom.nn.attention import Attention
from wordloom.nn.quantized import Int8Embedding, Int8Linear

KEPT_DTYPE = torch.bfloat16  # of keys and values
_CAUSAL = ("gpt", "gpt2", "llama")
QUANTIZED_FAMILIES = (*_CAUSAL, "transformer", "bert_generation")


def quantize_model(model: Any) -> None:
    """Replace the linear layers of ``model`` and its token embeddings by layers with weights in 8 bits.

    Norms, biases and learned positions stay float32.  A head that shares the embedding's weights goes on
    sharing them.  Weights are replaced one by one, so those that are mapped from a file are never all in
    memory.  A model that only continues text keeps its keys and values in bfloat16, which are then half as
    large as in float32.

    Raises ConfigError for a family whose models have no such layers.
    """
    family = family_of(model.config)
    require_int8(model.config)
    embeddings: dict[int, Int8Embedding] = {}  # by the weight that they were made from
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Embedding) and name.endswith(("token_embedding", "source_embedding")):
            known = embeddings.setdefault(id(module.weight), Int8Embedding(module))
            _replace(model, name, known)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear):
            shared = embeddings.get(id(module.weight))
            _replace(model, name, Int8Linear(module, None if shared is None else shared.packed))
        elif isinstance(module, Attention) and family in _CAUSAL:
            module.kept_dtype = KEPT_DTYPE
    for parameter in model.parameters():  # of their own, where the model's were mapped from its files
        parameter.data = parameter.data.to(torch.float32, copy=True)
    model.float()  # buffers


def require_int8(config: Any) -> None:
    """Raise ConfigError for a family whose models have no weights in 8 bits."""
    family = family_of(config)
    if family not in QUANTIZED_FAMILIES:
        raise ConfigError(
            f"dtype 'int8' is for models of these families: {', '.join(QUANTIZED_FAMILIES)}; this is a "
            f"{family}; use fp32 or bf16"
        )


def int8_bytes(config: Any) -> int | None:
    """Return the bytes that :func:`quantize_model` leaves of the weights of a model of ``config``.

    This is None for a family that has no 8 bits.
    """
    if family_of(config) not in QUANTIZED_FAMILIES:
        return None
    model = skeleton(config)
    quantize_model(model)
    packed = {
        id(module.packed): module.packed
        for module in model.modules()
        if isinstance(module, Int8Linear | Int8Embedding)
    }
    return sum(weight.nbytes for weight in (*model.parameters(), *packed.values()))


def is_quantized(model: nn.Module) -> bool:
    """Return whether ``model`` has weights in 8 bits."""
    return any(isinstance(module, Int8Linear) for module in model.modules())


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module.train(model.training))
