"""Short rows first, long rows at the end: Devlin et al. 2018, appendix A.2, where 90 % of the steps read 128
tokens and the others 512, "to learn the positional embeddings"."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from wordloom.data.shards.ledger import Ledger

__all__ = ["LengthSchedule"]


class LengthSchedule:
    """Batches of ``short`` up to sample ``switch``, then those of ``long``, from its first one on."""

    def __init__(self, short: Any, long: Any, *, switch: int) -> None:
        self.short, self.long, self.switch = short, long, switch
        self.samples_per_epoch: int = short.samples_per_epoch

    def batch(self, start: int, count: int) -> Any:
        """Samples ``start`` to ``start + count`` (excluded), all before the switch or all behind it."""
        batches, start = self._at(start)
        return batches.batch(start, count)

    def widest(self, count: int) -> Any:
        """A batch of ``count`` of the longest rows, for the plan of a run's memory."""
        return self.long.batch(0, count)

    def document_ids(self, start: int, count: int) -> list[str]:
        """``file#number`` of every document that these samples touch, for error reports."""
        batches, start = self._at(start)
        found: list[str] = batches.document_ids(start, count)
        return found

    def _at(self, start: int) -> tuple[Any, int]:
        return (self.short, start) if start < self.switch else (self.long, start - self.switch)

    @property
    def fingerprint(self) -> str:
        """sha256 of everything that decides the batches."""
        identity = f"{self.short.fingerprint}/{self.switch}/{self.long.fingerprint}"
        return hashlib.sha256(identity.encode()).hexdigest()

    @property
    def ledger(self) -> Ledger:
        """That of the short rows, and what the long ones are."""
        ledger, long = self.short.ledger, self.long.ledger
        note = f"from sample {self.switch:,} on: {long.notes[-1].removeprefix('order: ')}"
        return replace(ledger, notes=(*ledger.notes, note))
