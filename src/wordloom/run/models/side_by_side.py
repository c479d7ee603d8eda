"""Pieces of work on a CPU side by side: each by one thread, where one after another would be by all threads.

A batch leaves cores waiting wherever its work is not divided among them: in Python, in small operations, at
the ends of those that are.  Two batches, each on half of the threads, keep them busy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from wordloom.kernels.threads import set_own_threads
from wordloom.nn.evaluating import evaluating

__all__ = ["side_by_side"]

Item = TypeVar("Item")
Made = TypeVar("Made")


def side_by_side(model: Any, call: Callable[[Item], Made], items: Sequence[Item]) -> list[Made]:
    """``call`` of each item, in their order: on a CPU by threads that share those PyTorch has.

    ``model`` is what they compute with, and is in evaluation mode meanwhile.  What a call raises is raised
    here, of the first item that fails, when the others that were begun are done.
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
        torch.set_num_threads(threads)  # where it is not kept apart by thread
