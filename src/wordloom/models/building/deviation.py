"""Check that a model is exactly what its config builds.

A fast path reads the weights of a model and skips its modules, so it would ignore a hook, a replaced layer or
a changed setting.  It therefore takes only a model that differs from a fresh one in its weights alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from wordloom.kernels.acceptance import plain
from wordloom.models.building.build import skeleton
from wordloom.models.building.quantized import is_quantized, quantize_model
from wordloom.nn import Rotary
from wordloom.nn.unmodified import FORWARD_HOOKS

# Attributes that PyTorch keeps on a module, and three that do not change what inference computes.
_INTERNAL = {*vars(nn.Module()), "_compiled_call_impl", "product_dtype", "_sinusoidal"}


class _Built(NamedTuple):
    """A module as the config builds it."""

    kind: type
    settings: dict[str, Any]  # attributes that are neither PyTorch's own nor tensors nor modules
    known: frozenset[str]  # the names of all attributes that it may have
    shapes: dict[str, torch.Size | None]  # of its parameters
    buffers: set[str]
    parts: dict[str, _Built | None]


# model -> its config, whether its weights have 8 bits, and its parts
_built: WeakKeyDictionary[nn.Module, tuple[Any, bool, _Built]] = WeakKeyDictionary()


def deviation(model: Any) -> str:
    """Return the first difference between ``model`` and what its config builds; "" if there is none.

    ``model`` is of a class in :data:`wordloom.models.MODELS`.  Every module must have the type, settings and
    parameter shapes of a fresh model, and no forward hook.  Every parameter must be a plain tensor.
    """
    if any(FORWARD_HOOKS):
        return "a forward hook is set on all modules"
    config, in_8_bits, built = _built.get(model, (None, False, None))
    if built is None or config is not model.config or in_8_bits != is_quantized(model):
        usual, in_8_bits = skeleton(model.config), is_quantized(model)
        if in_8_bits:
            quantize_model(usual)
        built = _described(usual)
        _built[model] = model.config, in_8_bits, built
    return _difference(model, built, "model", in_training=model.training)


def _described(module: nn.Module) -> _Built:
    settings = {
        name: vars(value) if type(value) is Rotary else value
        for name, value in vars(module).items()
        if name not in _INTERNAL
    }
    return _Built(
        type(module),
        settings,
        frozenset({*settings, *_INTERNAL}),
        {name: None if p is None else p.shape for name, p in module._parameters.items()},
        set(module._buffers),
        {name: None if part is None else _described(part) for name, part in module._modules.items()},
    )


def _difference(module: nn.Module | None, built: _Built | None, name: str, *, in_training: bool) -> str:
    """Return how ``module``, called ``name``, or a part of it differs from ``built``; "" if it does not."""
    if built is None:
        return "" if module is None else f"{name} is new"
    if module is None:
        return f"{name} is missing"
    if type(module) is not built.kind:
        return f"{name} is a {type(module).__name__}, not a {built.kind.__name__}"
    own = vars(module)
    if own["_forward_hooks"] or own["_forward_pre_hooks"]:
        return f"{name} has a forward hook"
    if not own.keys() <= built.known:
        return f"{name}.{min(own.keys() - built.known)} is new"
    for key, usual in built.settings.items():
        if key not in own:
            return f"{name}.{key} is missing"
        value = own[key]
        if value is not usual and type(value) is Rotary:
            value = vars(value)
        if value is not usual and (type(value) is not type(usual) or value != usual):
            return f"{name}.{key} is {value}, not {usual}"
    parameters: dict[str, Tensor | None] = own["_parameters"]
    if parameters.keys() != built.shapes.keys() or own["_buffers"].keys() != built.buffers:
        return f"{name} has other parameters or buffers"
    for key, parameter in parameters.items():
        shape = built.shapes[key]
        if parameter is None:
            if shape is not None:
                return f"{name}.{key} is missing"
        elif not plain(parameter):
            return f"{name}.{key} is a {type(parameter).__name__}"
        elif parameter.shape != shape:
            return f"{name}.{key} has shape {list(parameter.shape)}, not {shape and list(shape)}"
    parts: dict[str, nn.Module | None] = own["_modules"]
    for key in parts.keys() | built.parts.keys():
        if key not in parts or key not in built.parts:
            return f"{name}.{key} is {'missing' if key in built.parts else 'new'}"
        reason = _difference(parts[key], built.parts[key], f"{name}.{key}", in_training=in_training)
        if reason:
            return reason
    return f"{name} is in training mode" if module.training and not in_training else ""
