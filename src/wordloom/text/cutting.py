"""Cutting long texts where no tokenizer that splits at spaces could notice."""

from __future__ import annotations

import re
from collections.abc import Iterator

_BEFORE_SPACE = re.compile(r"(?<=\S)(?= )")


def cut_at_spaces(text: str, limit: int) -> Iterator[str]:
    """``text`` in pieces of about ``limit`` characters, each cut before a space that follows a non-space.

    Every pre-tokenizer pattern here ends a token there (GPT-2's and Llama 3's begin one with at most one
    space and continue none across it), so the ids of the pieces are the ids of the whole.  A text
    without such a place is not cut.
    """
    start = 0
    while len(text) - start > limit:
        place = _BEFORE_SPACE.search(text, start + limit)
        if place is None:
            break
        yield text[start : place.start()]
        start = place.start()
    if start < len(text) or not text:
        yield text[start:]
