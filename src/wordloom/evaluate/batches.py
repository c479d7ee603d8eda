"""The loss of an objective over batches: what training asks for while it runs."""

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
    """The objective's total over its count, summed over ``batches``; interval over batches, from 20 on.

    Batches are brought to the model's device.  ``settings`` go into the signature.  ``reduce`` sums a
    float64 tensor over ranks that each hold a part of the batches (an all-reduce).  Runs in the precision of
    the caller's autocast; the model is left as it was.

    Raises EvaluationError when nothing is scored.
    """
    sums = torch.zeros(6, dtype=torch.float64)
    for _, loss in forward_passes(model, batches, lambda batch: objective(model, batch)):
        x, y = float(loss.total), float(loss.count)
        sums += torch.tensor([1.0, x, y, x * x, x * y, y * y], dtype=torch.float64)
    if reduce is not None:
        sums = reduce(sums)
    units, *rest = sums.tolist()
    statistics = RatioStatistics(int(units), *rest)
    if not statistics.y:
        raise EvaluationError("no item of these batches is scored; give at least one batch with targets")
    interval = statistics.interval()
    by = f"{statistics.units}-batches" if interval else "no"
    return Score(name, statistics.ratio, interval, signature(name, **(settings or {}), ci=by))
