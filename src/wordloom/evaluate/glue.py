"""The metrics of the GLUE tasks (Wang et al. 2018, arXiv:1804.07461, table 1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["GLUE", "GlueTask", "glue_task"]


class GlueTask(NamedTuple):
    """The metrics of a task, the leading one first, and the label that F1 scores."""

    metrics: tuple[str, ...]
    positive: str | None = None


GLUE: Mapping[str, GlueTask] = {
    "glue-cola": GlueTask(("matthews", "accuracy")),
    "glue-mrpc": GlueTask(("f1", "accuracy"), positive="1"),
    "glue-rte": GlueTask(("accuracy",)),
    "glue-sst2": GlueTask(("accuracy",)),
    "glue-stsb": GlueTask(("pearson", "spearman")),
}


def glue_task(source: str) -> GlueTask | None:
    """Return the task of a named set, or of a part such as ``glue-mrpc/dev``; None outside GLUE."""
    return GLUE.get(source.partition("/")[0])
