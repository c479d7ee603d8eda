"""Train many toy models together with Adam."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from wordloom.errors import ConfigError
from wordloom.lab.superposition.inputs import Inputs
from wordloom.lab.superposition.model import ToyModels, losses

#: Called after each step with the number of finished steps.
OnStep = Callable[[int], None]


def train(
    models: ToyModels,
    draw: Callable[[], Inputs],
    importance: Tensor,
    *,
    steps: int,
    learning_rate: float,
    on_step: OnStep | None = None,
) -> None:
    """Train ``models`` in place with Adam; the learning rate falls to 0 by half a cosine.

    Adam scales each parameter by its own gradients, and the sum of all losses is minimised.  Each model is
    therefore trained as if it were alone.

    Args:
        draw: returns the inputs of the next step.
        importance: [n], or [I, n] for each model.
        steps: the number of steps, 1 or more.
        learning_rate: the learning rate of the first step.
        on_step: called after each step.

    Raises ConfigError if ``steps`` is below 1.
    """
    if steps < 1:
        raise ConfigError(f"steps must be 1 or more, not {steps}")
    optimizer = torch.optim.Adam(models.parameters(), lr=learning_rate)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * 0.5 * (1 + math.cos(math.pi * step / steps))
        optimizer.zero_grad()
        torch.autograd.backward(losses(models, draw(), importance).sum())
        optimizer.step()
        if on_step is not None:
            on_step(step + 1)
