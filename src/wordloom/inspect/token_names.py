"""How tokens are shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from wordloom.errors import TokenizerError

if TYPE_CHECKING:
    from wordloom.text import Tokenizer

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def visible(token: str) -> str:
    """Return a token with visible white space, and control characters as their code, such as \\x1b."""
    shown = token.replace(" ", "␣").replace("\n", "↵").replace("\t", "⇥")
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", shown) or "∅"


def namer(tokenizer: Tokenizer) -> Callable[[int], str]:
    """Return a function from a token id to its text.

    A model can have ids for which its tokenizer has no token; they are named by their number.
    """

    def name(index: int) -> str:
        try:
            return tokenizer.token_text(index)
        except TokenizerError:
            return f"#{index}"

    return name
