"""The loss of an objective over batches, which training evaluates while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from wordloom.errors import EvaluationError
from wordloom.evaluate.forward import forward_passes
from wordloom.evaluate.score import RatioStatistics, Score, signature
from wordloom.objectives import Objective

__all__ = ["evaluate_batches"]


def evaluate_batches(
    model: Any,
    objective: Objective,
    batches: Iterable[Any],
    *,
    name: str = "loss",
    settings: Mapping[str, object] | None = None,
    reduce: Callable[[Tensor], Tensor] | None = None,
) -> Score:
    """Return the total of the objective over its count, each summed over ``batches``.

    From 20 batches on, the score has an interval over batches.  Batches are moved to the model's device.
    ``settings`` go into the signature.  ``reduce`` sums a float64 tensor over ranks that each hold a part of
    the batches (an all-reduce).  The caller's autocast sets the precision.

    Raises EvaluationError if nothing is scored.
    """
    sums = torch.zeros(6, dtype=torch.float64)
    for _, loss in forward_passes(model, batches, lambda batch: objective(model, batch)):
        x, y = float(loss.total), float(loss.count)
        sums += torch.tensor([1.0, x, y, x * x, x * y, y * y], dtype=torch.float64)
    if reduce is not None:
        sums = reduce(sums)
    units, *totals = sums.tolist()
    statistics = RatioStatistics(int(units), *totals)
    if not statistics.y:
        raise EvaluationError("no item of the batches is scored; give at least one batch with targets")
    interval = statistics.interval()
    ci = f"{statistics.units}-batches" if interval else "no"
    return Score(name, statistics.ratio, interval, signature(name, **(settings or {}), ci=ci))
