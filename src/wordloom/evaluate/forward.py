"""Run a model over batches: the loop of every evaluation, and the loss of an objective."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from wordloom.data.batches.causal import to_device
from wordloom.data.batches.labelled import LabelBatch, LabelBatches
from wordloom.errors import EvaluationError, NonFiniteError
from wordloom.evaluate.score import RatioStatistics, Score
from wordloom.models.building.quantized import is_quantized
from wordloom.nn.evaluating import evaluating
from wordloom.objectives import Objective

Result = TypeVar("Result")

_DTYPE_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "fp64"}


def dtype_name(model: Any) -> str:
    """Return the short name of the dtype of ``model``, for signatures."""
    if isinstance(model, nn.Module) and is_quantized(model):
        return "int8"
    return _DTYPE_NAMES.get(next(model.parameters()).dtype, "other")


def forward_passes(
    model: Any, batches: Iterable[Any], call: Callable[[Any], Result]
) -> Iterator[tuple[Any, Result]]:
    """Yield each batch with the result of ``call`` for it.

    ``call`` receives the batch on the device of ``model`` and runs in evaluation mode without gradients. The
    yielded batch is the original one.
    """
    device = next(model.parameters()).device
    for batch in batches:
        with evaluating(model):
            result = call(to_device(batch, device))
        yield batch, result


def outputs(model: Any, batches: Iterable[Any]) -> Iterator[tuple[Any, Tensor]]:
    """Yield each batch with the model's output for its ``inputs``, in float64 on the CPU."""
    for batch, output in forward_passes(model, batches, lambda moved: model(*moved.inputs)):
        yield batch, output.cpu().double()


def row_outputs(model: Any, batches: LabelBatches) -> Iterator[tuple[NDArray[np.int64], LabelBatch, Tensor]]:
    """Read all rows once: yield the row numbers of each batch, the batch and the model's output."""
    spans = list(batches.passes())
    passes = outputs(model, (batches.batch(*span) for span in spans))
    for span, (batch, output) in zip(spans, passes, strict=True):
        yield batches.rows(*span), batch, output


def check_finite(values: Tensor | NDArray[Any], name: str = "probability") -> None:
    """Raise NonFiniteError unless all ``values`` are finite; ``name`` is the quantity in the message."""
    if not (torch.isfinite(values) if isinstance(values, Tensor) else np.isfinite(values)).all():
        raise NonFiniteError(f"the model gives no finite {name}; its weights are damaged")


def evaluate_batches(
    model: Any,
    objective: Objective,
    batches: Iterable[Any],
    *,
    name: str = "loss",
    settings: Mapping[str, object] | None = None,
    reduce: Callable[[Tensor], Tensor] | None = None,
    unscored: Iterable[Any] = (),
) -> Score:
    """Return the total of the objective over its count, each summed over ``batches``.

    From 20 batches on, the score has an interval over batches.  ``settings`` go into the signature.
    ``reduce`` sums a float64 tensor over ranks that each hold a part of the batches (an all-reduce).  The
    model also reads ``unscored``: ranks that share out its weights must call it equally often.  The caller's
    autocast sets the precision.

    Raises EvaluationError if nothing is scored.
    """
    statistics = RatioStatistics()
    for _ in forward_passes(model, unscored, lambda batch: objective(model, batch)):
        pass
    for _, loss in forward_passes(model, batches, lambda batch: objective(model, batch)):
        statistics += RatioStatistics.of_one(float(loss.total), float(loss.count))
    if reduce is not None:
        sums = reduce(torch.tensor(astuple(statistics), dtype=torch.float64))
        statistics = RatioStatistics(int(sums[0]), *sums[1:].tolist())
    if not statistics.y:
        raise EvaluationError("no item of the batches is scored; give at least one batch with targets")
    return statistics.score(name, settings or {}, "batches")
