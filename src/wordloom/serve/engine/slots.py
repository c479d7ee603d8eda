"""Rows in slots of their own, and how prompts get there: from what was read before, or read in pieces."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from wordloom.generate.exact_rows import PIECE, ExactRows, Slot, adapted_rows, next_piece
from wordloom.generate.text import StopWatch
from wordloom.serve.engine.prefixes import PrefixCache
from wordloom.serve.engine.request import Stream

EVERY = 16  # tokens between the places where the beginning of a text can be taken from the prefix cache


@dataclass(eq=False)
class Row:
    """A choice of a request, in a slot."""

    stream: Stream
    choice: int
    rows: ExactRows
    slot: Slot
    ids: list[int]
    limit: int
    draws: np.random.Generator
    watch: StopWatch
    alike: tuple[Any, ...]  # rows with equal values are drawn together
    n_prompt: int
    held: bool = False  # waits for the first choice to read the prompt
    last: float = 0.0  # when its last token was drawn

    @property
    def reads(self) -> bool:
        return self.slot.length < self.n_prompt


class Slots:
    """At most ``most`` slots for the texts of a model and its adapters, and the beginnings of texts.

    The rest is as in :class:`wordloom.serve.engine.Engine`.
    """

    def __init__(
        self, model: Any, adapters: Mapping[str, Any], room: int, *, most: int, prefix_bytes: int, fast: bool
    ) -> None:
        self.most = most
        self.of_adapter = adapted_rows(model, adapters, room, fast=fast)
        self.prefixes = {
            name: PrefixCache(prefix_bytes // len(self.of_adapter), EVERY if rows.anywhere else PIECE)
            for name, (rows, _) in self.of_adapter.items()
        }
        self._free: dict[ExactRows, list[Slot]] = {rows: [] for rows, _ in self.of_adapter.values()}
        self._made = 0

    @property
    def batches(self) -> Sequence[ExactRows]:
        """The batches that are computed one after another; adapters with low-rank updates share one."""
        return list(self._free)

    @property
    def n_bytes(self) -> int:
        """The bytes of all slots and kept beginnings."""
        slots = self._made * max(rows.slot_bytes for rows in self._free)
        return slots + sum(cache.n_bytes for cache in self.prefixes.values())

    def forget(self) -> None:
        """Forget the beginnings of texts that were read."""
        for cache in self.prefixes.values():
            cache.clear()

    def take(self, adapter: str | None) -> tuple[ExactRows, Slot]:
        """Return an empty slot for a text of ``adapter``; fewer than ``most`` are in use."""
        rows, number = self.of_adapter[adapter]
        if self._free[rows]:
            slot = self._free[rows].pop()
            rows.clear(slot)
        else:
            if self._made >= self.most:  # a slot of other rows makes room
                next(slots for slots in self._free.values() if slots).pop()
                self._made -= 1
            self._made += 1
            slot = rows.new_slot()
        slot.adapter = number
        return rows, slot

    def give_back(self, row: Row) -> None:
        """Free the slot of ``row``."""
        self._free[row.rows].append(row.slot)

    # -- prompts ---------------------------------------------------------------------------------------

    def restore(self, row: Row) -> int:
        """Fill the slot with the known beginning of the prompt, and return its length.

        The last token of a prompt is always read.
        """
        found = self.prefixes[row.stream.request.adapter].find(row.ids, row.n_prompt - 1)
        if found is None:
            return 0
        row.rows.restore(row.slot, *found)
        return found[1]

    def read(self, live: list[Row], *, until: float) -> tuple[list[tuple[Row, Tensor]], int]:
        """Read pieces of prompts, the oldest request first, until the time is over.

        Returns the rows that can write, with their logits, and the number of tokens that were read.
        """
        reached: list[tuple[Row, Tensor]] = []
        n_read = 0
        while group := _next_readers(live):
            pieces = [next_piece(row.slot.length, row.n_prompt) for row in group]
            n = min(pieces)
            ids = [row.ids[row.slot.length : row.slot.length + n] for row in group]
            logits = group[0].rows.read_together([row.slot for row in group], ids)
            n_read += n * len(group)
            for row, each in zip(group, logits, strict=True):
                if self._saves_at(row):
                    self.prefixes[row.stream.request.adapter].add(row.ids, row.rows.save(row.slot))
                if not row.reads:
                    reached.append((row, each))
                    reached += ((other, each) for other in _copies(row, live))
            if time.perf_counter() >= until:
                break
        return reached, n_read

    def keep(self, row: Row) -> None:
        """Keep what a complete row holds, for a later turn."""
        kept = self.prefixes[row.stream.request.adapter]
        if row.rows.anywhere and kept.most_bytes:
            kept.add(row.ids, row.rows.save(row.slot))

    def _saves_at(self, row: Row) -> bool:
        """Whether a beginning of the prompt is to be kept here: where a later text can go on from it.

        A text that truncates is kept when its answer has ended, if it can be read in any pieces.
        """
        rows = row.rows
        if (rows.anywhere and rows.truncates) or not self.prefixes[row.stream.request.adapter].most_bytes:
            return False
        left = row.n_prompt - row.slot.length
        is_last = left < PIECE
        return row.slot.length % PIECE == 0 and (is_last or not rows.truncates)


def _next_readers(live: list[Row]) -> list[Row]:
    """Return the rows whose prompts are to be read next: the oldest, with those read together with it."""
    readers = [row for row in live if row.reads and not row.held]
    if not readers:
        return []
    first = readers[0].rows
    return [row for row in readers if row.rows is first] if first.together else readers[:1]


def _copies(row: Row, live: list[Row]) -> list[Row]:
    """Copy the prompt that ``row`` has read into the slots of the other choices, and return these."""
    others = [other for other in live if other.stream is row.stream and other.held]
    if others:
        saved = row.rows.save(row.slot)
        for other in others:
            row.rows.restore(other.slot, saved, saved.length)
            other.held = False
    return others
