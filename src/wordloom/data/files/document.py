"""Documents, as readers and data sets return them."""

from __future__ import annotations

from typing import NamedTuple


class Document(NamedTuple):
    """A document: its text (``bytes`` under ``encoding_errors="bytes"``), its file, and its number from 0."""

    text: str | bytes
    source: str
    index: int  # type: ignore[assignment]  # hides tuple.index
