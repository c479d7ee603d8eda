"""Assemble documents from their encoded segments: end tokens, positions, sizes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wordloom.data.shards.storage import ShardWriter
from wordloom.data.text.corpus import Tally


class Segment(NamedTuple):
    """A part of a document that is encoded as one text."""

    text: str | bytes
    origin: tuple[int, int]  # file, number of the document in it
    start: int  # characters of the document before this segment
    ends: bool  # it ends the document
    whole: bool  # the document ends where its file ends it, not at the split
    marked: bool  # its first id is the tokenizer's mark of a text's beginning, which the segment lacks
    prefix: str = ""  # the special token before it


class Accountant:
    """Writes the documents of encoded segments, with ``end_id`` (if not None) after each whole document.

    ``tally`` counts documents without a token, which are dropped.
    """

    def __init__(self, writer: ShardWriter, end_id: int | None, tally: Tally) -> None:
        self._writer = writer
        self._tally = tally
        self._end = None if end_id is None else np.array([end_id], dtype=writer.dtype)
        self._begun = 0  # position of the first token of the document under way
        self._size = 0  # bytes of it so far

    def add(self, batch: list[Segment], encoded: list[NDArray[Any]]) -> None:
        """Write the ids of each segment of ``batch``, in order."""
        ids: list[NDArray[Any]] = []
        ends: list[int] = []
        sizes: list[int] = []
        origins: list[tuple[int, int]] = []
        position = self._writer.tokens
        for segment, some in zip(batch, encoded, strict=True):
            ids.append(some)
            position += some.size
            self._size += _bytes_of(segment.text)
            if not segment.ends:
                continue
            if position == self._begun:
                self._tally.dropped["document(s) without a single token"] += 1
            else:
                if self._end is not None and segment.whole:
                    ids.append(self._end)
                    position += 1
                ends.append(position)
                sizes.append(self._size)
                origins.append(segment.origin)
            self._begun, self._size = position, 0
        self._writer.add(np.concatenate(ids), ends, sizes, origins)


def _bytes_of(text: str | bytes) -> int:
    return len(text) if isinstance(text, bytes) or text.isascii() else len(text.encode())
