"""Build a model from its config, with memory or without."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from wordloom.models.families import MODELS, family_of

__all__ = ["build", "skeleton"]


class _NoDefaultInit(TorchFunctionMode):
    """Skip the values that PyTorch's layers draw when they are constructed.

    ``init_weights`` or a file sets them later.  On the meta device each draw would cost milliseconds, and the
    first one an import of seconds.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_):
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


def skeleton(config: Any) -> nn.Module:
    """Return the model of ``config`` on the meta device: every shape and name, no memory."""
    with torch.device("meta"), _NoDefaultInit():
        return MODELS[family_of(config)].model(config)


def build(config: Any, *, generator: torch.Generator | None = None) -> Any:
    """Return the model of ``config``, initialised, on the CPU in float32."""
    with torch.device("cpu"), _NoDefaultInit():
        model: Any = MODELS[family_of(config)].model(config)
    model.init_weights(generator)
    return model
