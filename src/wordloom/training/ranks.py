"""The ranks of a run: one process each, which torchrun starts on one or more machines."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from wordloom.errors import RankError

Item = TypeVar("Item")


class Part(NamedTuple):
    """Samples ``start`` to ``start + count`` (excluded) of a step, which a rank reads at once.

    An ``idle`` part repeats a sample of the step: its loss does not count, and keeps the rank in step with
    others that have more samples.
    """

    start: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which a part does not need
    idle: bool = False


@dataclass(frozen=True)
class Ranks:
    """This process among the ``size`` of the run.

    Attributes:
        rank: the number of this process, from 0.
        size: how many processes train together.
        group: the process group of their messages; None: the one that all join at the start.
    """

    rank: int = 0
    size: int = 1
    group: Any = None

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that logs and writes the run's files."""
        return self.rank == 0

    def parts(self, samples: int, most: int | None = None) -> list[Part]:
        """Return the parts of this rank of a step of ``samples``, each of ``most`` samples or fewer.

        Ranks have as many parts as one another, and together each sample once.
        """
        start, stop = (samples * rank // self.size for rank in (self.rank, self.rank + 1))
        count, longest = stop - start, -(-samples // self.size)
        most = most or longest
        n = -(-longest // most)
        edges = [min(i * most, count) for i in range(n + 1)]
        return [
            Part(start + first, stop - first) if stop > first else Part(min(start, samples - 1), 1, idle=True)
            for first, stop in pairwise(edges)
        ]

    def divided(self, items: Sequence[Item]) -> tuple[Sequence[Item], Sequence[Item]]:
        """Return the items of this rank, and those that it reads too, so that all ranks read as many."""
        own = items[self.rank :: self.size]
        longest = -(-len(items) // self.size)
        return own, items[: longest - len(own)]

    def summed(self, tensor: Tensor) -> Tensor:
        """Return the sum of a tensor over all ranks."""
        if self.size > 1:
            tensor = tensor.clone()
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def whole(self, tensor: Tensor) -> Tensor:
        """Return a tensor as one rank alone would have it; all ranks must ask for it."""
        return tensor if self.size == 1 else whole(tensor)

    def from_first(self, value: float) -> float:
        """Return the value that the first rank has."""
        if self.size == 1:
            return value
        tensor = torch.tensor([value], dtype=torch.float64)
        dist.broadcast(tensor, 0, group=self.group)
        return float(tensor)

    @contextmanager
    def together(self) -> Iterator[None]:
        """End on all ranks if the block raises on some: with the error of the first of these.

        The others raise RankError, which the command does not print.  The ranks must not wait for one another
        within the block.
        """
        found: Exception | None = None
        try:
            yield
        except Exception as error:
            found = error
        failed = torch.zeros(self.size, dtype=torch.int64)
        failed[self.rank] = found is not None
        failed = self.summed(failed)
        if found is not None and not failed[: self.rank].any():
            raise found
        if failed.any():
            raise RankError("another rank ended") from found

    @contextmanager
    def first_before_others(self) -> Iterator[None]:
        """Run the block on the first rank of each machine, then on its others, which find its files."""
        leads = os.environ.get("LOCAL_RANK", "0") == "0"
        if not leads:
            self.barrier()
        yield
        if leads:
            self.barrier()

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        if self.size > 1:
            dist.barrier(group=self.group)


ALONE = Ranks()


def ranks_of_machine() -> int:
    """Return how many ranks torchrun started on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def shards_of(shard: str) -> int:
    """Return over how many ranks of torchrun ``train.shard`` shares out each weight."""
    return {"none": 1, "full": int(os.environ.get("WORLD_SIZE", "1")), "hybrid": ranks_of_machine()}[shard]


def is_lost(error: BaseException) -> bool:
    """Return whether an error is of a message to a rank that has ended."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


def is_spread(tensor: Tensor) -> bool:
    """Return whether ranks have parts of a tensor: whether it is a DTensor, without importing the class."""
    return hasattr(tensor, "full_tensor")


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor as one rank alone would have it; all ranks must ask for it."""
    return tensor.full_tensor() if is_spread(tensor) else tensor  # type: ignore[attr-defined]


def part_here(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this rank has."""
    return tensor.to_local() if is_spread(tensor) else tensor  # type: ignore[attr-defined]


def spread_as(other: Tensor, tensor: Tensor) -> Tensor:
    """Return ``tensor``, which each rank has whole, spread over ranks as ``other`` of this shape is."""
    if not is_spread(other) or tensor.shape != other.shape or is_spread(tensor):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    place: Any = other
    return distribute_tensor(tensor, place.device_mesh, place.placements, src_data_rank=None)


@contextmanager
def joined_ranks() -> Iterator[Ranks]:
    """Join the processes that torchrun started with this one; without torchrun, it is alone.

    A process group that is there already is used, and stays.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if dist.is_initialized():
        yield Ranks(dist.get_rank(), dist.get_world_size())
        return
    if size == 1:
        yield ALONE
        return
    backend = "gloo"
    if torch.cuda.is_available() and dist.is_nccl_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend)
    try:
        yield Ranks(dist.get_rank(), size)
    except RuntimeError as error:
        if not is_lost(error):
            raise
        raise RankError(f"another rank ended: {error}") from error
    dist.destroy_process_group()
