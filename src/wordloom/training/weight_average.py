"""An exponential moving average of the weights, in float32.

Polyak & Juditsky 1992 average all steps equally; here old steps fade.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from wordloom.training.ranks import spread_as


@contextmanager
def restored_weights(model: nn.Module) -> Iterator[None]:
    """Restore the trained weights of ``model`` after the block, bit for bit."""
    own = [p.detach().clone() for p in _trained(model).values()]
    try:
        yield
    finally:
        with torch.no_grad():
            for p, weight in zip(_trained(model).values(), own, strict=True):
                p.copy_(weight)


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


class WeightAverage:
    """``average <- decay * average + (1 - decay) * weights`` after each step.

    In the first steps the decay is min(decay, (1 + n) / (10 + n)), so that the start is forgotten.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.updates = 0
        self.names = list(_trained(model))
        self.average = [p.detach().float().clone() for p in _trained(model).values()]

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        weights = [p.detach().float() for p in _trained(model).values()]
        torch._foreach_lerp_(self.average, weights, 1 - decay)
        self.updates += 1

    @torch.no_grad()
    def copy_to(self, model: nn.Module) -> None:
        """Make the average the weights of ``model``."""
        for p, average in zip(_trained(model).values(), self.average, strict=True):
            p.copy_(average)

    @torch.no_grad()
    def copy_saved(self, tensors: Mapping[str, Tensor], model: nn.Module) -> None:
        """Make the average in ``tensors``, of :meth:`state_tensors`, the weights of a whole ``model``."""
        parameters = dict(model.named_parameters())
        for name in self.names:
            parameters[name].copy_(tensors[f"average.{name}"])

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Put the average into ``model`` within the block."""
        with restored_weights(model):
            self.copy_to(model)
            yield

    def state_tensors(self) -> dict[str, Tensor]:
        tensors = {f"average.{name}": tensor for name, tensor in zip(self.names, self.average, strict=True)}
        return {**tensors, "average_updates": torch.tensor(self.updates)}

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        self.updates = int(tensors["average_updates"])
        for name, average in zip(self.names, self.average, strict=True):
            average.copy_(spread_as(average, tensors[f"average.{name}"]))
