"""Documents, as readers and data sets return them, and the hash that divides them."""

from __future__ import annotations

import hashlib
from typing import NamedTuple


class Document(NamedTuple):
    """A document: its text (``bytes`` under ``encoding_errors="bytes"``), its file, and its number from 0."""

    text: str | bytes
    source: str
    index: int  # type: ignore[assignment]  # hides tuple.index


def hash_position(text: str | bytes) -> float:
    """Map a text to a number in [0, 1) by its hash, which divides documents and rows into parts."""
    raw = text.encode() if isinstance(text, str) else text
    return int.from_bytes(hashlib.sha256(raw).digest()[:8], "big") / 2**64
