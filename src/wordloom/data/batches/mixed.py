"""Batches from two sources: a new and an old task (Robins 1995, "Catastrophic forgetting, rehearsal and
pseudorehearsal"), or short and long rows.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wordloom.data.batches.order import row_samples
from wordloom.data.ledgers import Ledger


class MixedBatch(NamedTuple):
    """Rows of the new task and of the old task, with their samples; None for a task without rows."""

    new: Any
    old: Any
    new_samples: NDArray[np.int64] | None = None
    old_samples: NDArray[np.int64] | None = None


class RehearsedBatches:
    """Batches of the task ``new`` with rehearsal of the task ``old``.

    A step counts as ``batch_size`` samples of ``new``, whatever it holds, so that the rows of a step depend
    only on its number.

    Args:
        share: the share of the steps that train on the old task, spread evenly; None: every step trains on
            both tasks.
        rows: rows of the old task in a step with the old task; at least one for each micro-batch.
    """

    def __init__(self, new: Any, old: Any, *, batch_size: int, rows: int, share: float | None) -> None:
        self.new, self.old = new, old
        self.batch_size, self.rows, self.share = batch_size, rows, share
        # every row of the new task occurs once in an epoch
        self.samples_per_epoch = round(new.samples_per_epoch / (1.0 - (share or 0.0)))

    def batch(self, start: int, count: int) -> MixedBatch:
        """Samples ``start`` to ``start + count`` (excluded), all of one step."""
        new, old = self._places(start, count)
        return MixedBatch(
            None if new is None else self.new.batch(*new),
            None if old is None else self.old.batch(*old),
            None if new is None else row_samples(self.new, *new),
            None if old is None else row_samples(self.old, *old),
        )

    def widest(self, count: int) -> MixedBatch:
        """Return the batch that needs most memory; rows of the old task have about as many tokens."""
        widest = getattr(self.new, "widest", None)
        return MixedBatch(widest(count) if widest else self.new.batch(0, count), None)

    def document_ids(self, start: int, count: int) -> list[str]:
        """``file#number`` of every document that these samples touch, for error reports."""
        parts = zip((self.new, self.old), self._places(start, count), strict=True)
        return [name for source, at in parts if at is not None for name in source.document_ids(*at)]

    def steps_of_old(self, steps: int) -> int:
        """Return how many of the first ``steps`` steps hold rows of the old task."""
        return steps if self.share is None else int(steps * self.share)

    def _places(self, start: int, count: int) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
        """Return (first, number) of the rows of the new task and of the old task."""
        step, at = divmod(start, self.batch_size)
        before = self.steps_of_old(step)
        first, last = (place * self.rows // self.batch_size for place in (at, at + count))
        old = (before * self.rows + first, last - first)
        if self.share is None:
            return (start, count), old
        if self.steps_of_old(step + 1) > before:
            return None, old
        return (start - before * self.batch_size, count), None


class LengthSchedule:
    """Batches of ``short`` up to sample ``switch``, then batches of ``long``.

    Devlin et al. 2018, appendix A.2: 90 % of the steps read 128 tokens, the others 512.
    """

    def __init__(self, short: Any, long: Any, *, switch: int) -> None:
        self.short, self.long, self.switch = short, long, switch
        self.samples_per_epoch: int = short.samples_per_epoch

    def batch(self, start: int, count: int) -> Any:
        """Samples ``start`` to ``start + count`` (excluded), all before the switch or all after it."""
        batches, start = self._at(start)
        return batches.batch(start, count)

    def widest(self, count: int) -> Any:
        """Return a batch of ``count`` of the longest rows, to plan a run's memory."""
        return self.long.batch(0, count)

    def document_ids(self, start: int, count: int) -> list[str]:
        """``file#number`` of every document that these samples touch, for error reports."""
        batches, start = self._at(start)
        names: list[str] = batches.document_ids(start, count)
        return names

    def _at(self, start: int) -> tuple[Any, int]:
        return (self.short, start) if start < self.switch else (self.long, start - self.switch)

    @property
    def fingerprint(self) -> str:
        """sha256 of everything that decides the batches."""
        identity = f"{self.short.fingerprint}/{self.switch}/{self.long.fingerprint}"
        return hashlib.sha256(identity.encode()).hexdigest()

    @property
    def ledger(self) -> Ledger:
        """The ledger of the short rows, with a note on the long rows."""
        ledger, long = self.short.ledger, self.long.ledger
        note = f"from sample {self.switch:,} on: {long.notes[-1].removeprefix('order: ')}"
        return replace(ledger, notes=(*ledger.notes, note))
