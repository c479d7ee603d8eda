"""Run batches in parallel on a CPU, each on a share of the threads.

A single batch leaves cores idle in Python, in small operations and at the end of large ones.  Two batches,
each on half of the threads, keep the cores busy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from wordloom.kernels.threads import set_own_threads
from wordloom.nn.evaluating import evaluating

Item = TypeVar("Item")
Result = TypeVar("Result")


def side_by_side(model: Any, call: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Return ``call(item)`` for each item, in order; on a CPU, several calls run in parallel.

    ``model`` is in evaluation mode meanwhile.  An error of the first item that fails is raised when the
    calls that have begun are done.
    """
    threads = torch.get_num_threads()
    workers = min(threads, len(items))
    if workers < 2 or next(model.parameters()).device.type != "cpu":
        return [call(item) for item in items]
    share = threads // workers
    try:
        with (
            evaluating(model),
            ThreadPoolExecutor(workers, "wordloom-batch", set_own_threads, (share,)) as executor,
        ):
            try:
                return list(executor.map(call, items))
            except BaseException:
                executor.shutdown(cancel_futures=True)
                raise
    finally:
        torch.set_num_threads(threads)  # where the number is not kept by thread
