"""Initialisation that covers everything: what no rule fills is an error, not memory as it was found."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from wordloom.errors import ConfigError

__all__ = ["fills_everything"]


def fills_everything(init_weights: Callable[..., None]) -> Callable[..., None]:
    """Decorate ``init_weights`` so that it raises ConfigError if it leaves a tensor as it was.

    It runs without gradients, and every parameter and buffer must be written to.  Inference tensors, which do
    not count their changes, and tensors on the meta device, which hold nothing, are not checked.
    """

    @functools.wraps(init_weights)
    @torch.no_grad()
    def checked(model: Any, generator: torch.Generator | None = None) -> None:
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        before = {name: t._version for name, t in tensors.items() if not (t.is_inference() or t.is_meta)}
        init_weights(model, generator)
        left = [name for name, version in before.items() if tensors[name]._version == version]
        if left:
            raise ConfigError(
                f"init_weights of {type(model).__name__} has no rule for {', '.join(left)}; fill what was "
                "added to the model, or add it after initialisation"
            )

    return checked
