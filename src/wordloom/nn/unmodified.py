"""Checks that a layer is exactly the one that a fast path was written for.

A fast path reads the tensors of a layer and does not call it.  The result is right only if the layer would
compute the known formula from those tensors and do nothing else.  A subclass, an adapter, a parametrization,
a hook, or a weight that is quantized or sharded changes what the layer computes, so it must be called.
"""

from __future__ import annotations

from torch import nn
from torch.nn.modules import module as torch_module

from wordloom.kernels.acceptance import plain

# Hooks that PyTorch keeps for all modules; it never replaces these dictionaries.
FORWARD_HOOKS = (torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks)
_ALL_HOOKS = (
    *FORWARD_HOOKS, torch_module._global_backward_hooks, torch_module._global_backward_pre_hooks,
)  # fmt: skip


def modification(module: nn.Module | None, kind: type[nn.Module]) -> str:
    """Return why ``module`` must be called, or "" if it is an unmodified ``kind`` or None.

    Only the module itself is checked, not its children.
    """
    if module is None:
        return ""
    if type(module) is not kind:
        name = type(module).__name__
        if name == kind.__name__:
            name = f"{type(module).__module__}.{name}"
        return f"{name} instead of {kind.__name__}"
    for name in ("forward", "weight", "bias"):
        if name in vars(module):
            return f"{kind.__name__}.{name} is replaced"
    m = module
    if m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks:
        return f"{kind.__name__} has hooks"
    if any(_ALL_HOOKS):
        return "a hook is set on all modules"
    for name, parameter in module._parameters.items():
        if not plain(parameter):
            return f"{kind.__name__}.{name} is a {type(parameter).__name__}"
    return ""
