"""Evaluation mode, and float64 on devices without it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Run ``model`` without dropout and gradients; each module then returns to its own mode."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def widened(x: Tensor) -> Tensor:
    """Return ``x`` in float64: on its device, or on the CPU for Apple GPUs, which have no float64."""
    return (x.cpu() if x.device.type == "mps" else x).double()
