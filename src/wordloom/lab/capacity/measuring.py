"""Measure what a model knows of the facts, with its weights as they are and rounded to 8 bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from wordloom.lab.capacity.bits import Nats
from wordloom.lab.capacity.facts import Exposures, Facts
from wordloom.nn.evaluating import evaluating
from wordloom.nn.quantized import dequantize, quantize

ORDERS = 4  # orders of each person's attributes over which losses are averaged
_ROWS = 256  # in a forward pass


class Losses(NamedTuple):
    """The mean loss for each person in nats, summed over the tokens of each part of a row."""

    names: float
    markers: float
    values: float
    end: float

    @property
    def nats(self) -> Nats:
        """The losses that decide the bits of knowledge."""
        return Nats(self.names, self.values)


def measure(model: Any, facts: Facts, *, orders: int = ORDERS) -> Losses:
    """Return the losses of ``model`` on all people, each in ``orders`` orders that training does not use."""
    exposures, count = Exposures(facts, measuring=True), facts.people * orders
    total = torch.zeros(facts.predictions, dtype=torch.float64)  # [T]
    device = model.lm_head.weight.device
    with evaluating(model):
        for start in range(0, count, _ROWS):
            batch = exposures.batch(start, min(_ROWS, count - start))
            logits = model.lm_head(model.hidden(batch.tokens.to(device))).float()  # [B, T, V]
            targets = batch.targets.to(device).flatten()  # [B * T]
            nats = F.cross_entropy(logits.flatten(0, 1), targets, reduction="none")  # [B * T]
            total += nats.view_as(batch.targets).cpu().double().sum(0)  # [T]
    mean = total / count
    return Losses(
        names=float(mean[facts.places("names")].sum()),
        markers=float(mean[facts.places("markers")].sum()),
        values=float(mean[facts.places("values")].sum()),
        end=float(mean[facts.places("end")].sum()),
    )


@contextmanager
def rounded_to_int8(model: nn.Module) -> Iterator[None]:
    """Round the matrices of ``model`` to 8 bits within the block; positions, norms and biases stay float32.

    The rounding is that of models that are loaded in int8.
    """
    matrices = [
        parameter
        for name, parameter in model.named_parameters()
        if parameter.dim() == 2 and not name.startswith("position_embedding")
    ]
    before = [parameter.detach().clone() for parameter in matrices]
    try:
        for parameter in matrices:
            rows, columns = parameter.shape
            parameter.data.copy_(dequantize(quantize(parameter), rows, columns))
        yield
    finally:
        for parameter, exact in zip(matrices, before, strict=True):
            parameter.data.copy_(exact)


def used_parameters(model: Any, facts: Facts) -> int:
    """Return the number of parameters of ``model`` without the rows of tokens that never occur."""
    unused = facts.vocab_size - facts.used_tokens
    total = 0
    for parameter in model.parameters():
        is_by_token = parameter.shape[0] == facts.vocab_size
        total += parameter.numel() - (unused * parameter[0].numel() if is_by_token else 0)
    return total
