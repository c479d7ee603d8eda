"""How ranks and machines share a model out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How ranks share a model out.

    Attributes:
        ranks: the number of GPUs.
        per_machine: the GPUs of a machine.
        shards: the ranks that have different parts of each weight; 1: each rank has all weights.
    """

    ranks: int
    per_machine: int
    shards: int

    @property
    def copies(self) -> int:
        """The number of copies of the model."""
        return self.ranks // self.shards

    @property
    def machines(self) -> int:
        """The number of machines."""
        return -(-self.ranks // self.per_machine)


def layout_of(shard: str, gpus: int, per_machine: int) -> Layout:
    """Return the layout of ``train.shard`` on ``gpus`` GPUs, as the trainer chooses it."""
    per_machine = min(gpus, per_machine)
    shards = {"none": 1, "full": gpus, "hybrid": per_machine}[shard]
    return Layout(ranks=gpus, per_machine=per_machine, shards=shards)
