"""A stand-in for an Apple GPU: tensors that say they are on "mps:0" and are computed on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

__all__ = ["AppleGPU"]

_MPS = torch.device("mps", 0)
# These take tensors of two devices.
_MIXES = ("__getitem__", "__setitem__", "copy_", "to", "_has_compatible_shallow_copy_type")


class _OnMPS(torch.Tensor):
    """A tensor that counts as on "mps:0"; it lies on the CPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl


class AppleGPU(TorchFunctionMode):
    """Inside, ``model.to("mps:0")`` works, and three things fail as they do there: a float64 tensor, an
    operation on tensors of both devices, and ``numpy()`` of a tensor that was not moved to the CPU."""

    def __enter__(self) -> AppleGPU:
        self._overwrites = torch.__future__.get_overwrite_module_params_on_conversion()
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        return super().__enter__()  # type: ignore[no-any-return]

    def __exit__(self, *raised: Any) -> None:
        torch.__future__.set_overwrite_module_params_on_conversion(self._overwrites)
        super().__exit__(*raised)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        if name in ("device", "_parse_to"):  # these read the name of a device
            return function(*args, **(kwargs or {}))
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        on_mps = any(isinstance(x, _OnMPS) for x in given)
        if function == torch.Tensor.device.__get__:  # type: ignore[attr-defined]
            return _MPS if on_mps else torch.device("cpu")
        if on_mps and name in ("numpy", "__array__"):
            raise TypeError("can't convert mps:0 device type tensor to numpy. Use Tensor.cpu() first")
        apart = any(x.dim() and not isinstance(x, _OnMPS) for x in given)
        if on_mps and apart and name not in _MIXES:
            raise RuntimeError("Expected all tensors to be on the same device, but found mps:0 and cpu!")
        if name == "to" and isinstance(args[1], torch.Tensor):  # its dtype and device
            on_mps = isinstance(args[1], _OnMPS)
        wanted = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.device)]
        wanted += [torch.device(x) for x in (*args[1:2], (kwargs or {}).get("device")) if _names_device(x)]
        if name == "cpu" or any(device.type == "cpu" for device in wanted):
            to_mps = False
        else:
            to_mps = on_mps or any(device.type == "mps" for device in wanted)
        args, kwargs = tree_map_only(
            (str, torch.device), lambda x: "cpu" if _names_mps(x) else x, (args, kwargs or {})
        )
        made = function(*args, **kwargs)
        return tree_map_only(torch.Tensor, _on_mps if to_mps else _on_cpu, made)


def _names_device(x: Any) -> bool:
    return isinstance(x, str) and x.split(":")[0] in ("cpu", "mps")


def _names_mps(x: Any) -> bool:
    return str(x).split(":")[0] == "mps"


def _on_mps(x: torch.Tensor) -> torch.Tensor:
    if x.dtype == torch.float64:
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype: the MPS framework has none")
    return x if isinstance(x, _OnMPS) else x.as_subclass(_OnMPS)


def _on_cpu(x: torch.Tensor) -> torch.Tensor:
    return x.as_subclass(torch.Tensor) if isinstance(x, _OnMPS) else x
