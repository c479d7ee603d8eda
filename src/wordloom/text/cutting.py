"""Split long texts at places that do not change the ids."""

from __future__ import annotations

import re
from collections.abc import Iterator

_BEFORE_SPACE = re.compile(r"(?<=\S)(?= )")


def cut_at_spaces(text: str, limit: int) -> Iterator[str]:
    """Yield ``text`` in pieces of about ``limit`` characters, split before a space that follows a non-space.

    All pre-tokenizer patterns end a token there: those of GPT-2 and Llama 3 begin a token with at most one
    space and never continue it across a space.  The ids of the pieces are therefore the ids of the text.  A
    text without a place to split stays whole.
    """
    start = 0
    while len(text) - start > limit:
        match = _BEFORE_SPACE.search(text, start + limit)
        if match is None:
            break
        yield text[start : match.start()]
        start = match.start()
    if start < len(text) or not text:
        yield text[start:]
