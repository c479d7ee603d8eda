"""Check that initialisation fills every tensor: a tensor that no rule covers is an error."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from wordloom.errors import ConfigError

__all__ = ["fills_everything"]


def fills_everything(init_weights: Callable[..., None]) -> Callable[..., None]:
    """Decorate ``init_weights`` to run without gradients and to raise ConfigError if it skips a tensor.

    Every parameter and buffer must be written.  Inference tensors do not count writes and meta tensors hold
    nothing, so neither is checked.
    """

    @functools.wraps(init_weights)
    @torch.no_grad()
    def checked(model: Any, generator: torch.Generator | None = None) -> None:
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        before = {name: t._version for name, t in tensors.items() if not (t.is_inference() or t.is_meta)}
        init_weights(model, generator)
        skipped = [name for name, version in before.items() if tensors[name]._version == version]
        if skipped:
            raise ConfigError(
                f"init_weights of {type(model).__name__} has no rule for {', '.join(skipped)}; fill what was "
                "added to the model, or add it after initialisation"
            )

    return checked
