"""Where a long document may be cut so that the pieces' ids, one after another, are the whole's.

A tokenizer that first splits text into words (and keeps or drops white space by rules that look one
character ahead) cannot join anything across these places:

1. after a line break that stands between two characters that are not white space;
2. before a single space that stands between two ASCII letters.

GPT-2's and LLaMA 3's patterns, BERT's and plain word splitting all hold there, whatever their
normalization: neither a line feed nor a space composes with what stands beside it.  Tokenizers that merge
across white space (Unigram over ``▁``, LLaMA's) or that we do not know are never cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from wordloom.errors import TokenizerError

_CUTTABLE = ("word", "char", "byte", "bpe", "wordpiece")
_SPACE = re.compile(r"[A-Za-z](?= [A-Za-z])")
_FIRST = re.compile(r"\S\n(?=\S)|[A-Za-z](?= [A-Za-z])")
_PROBES = (
    ("one\n", "two"),
    ("one,\n", "“two”"),
    ("1\n", "2"),
    ("one two\n", "Three four\n"),
    ("one", " two"),
    ("he said", " so\n"),
)


def cuttable(tokenizer: Any) -> bool:
    """Whether ``tokenizer`` gives a text cut at our places the ids of the whole.

    Its kind must be one for which that is so by construction, no special token may hold a line break or a
    space (it could straddle a cut), and a few probes must agree: they expose settings such as a space put
    before every text.
    """
    if tokenizer.kind not in _CUTTABLE:
        return False
    specials = [tokenizer.id_to_token(i) or "" for i in tokenizer.special_ids]
    if any("\n" in token or " " in token for token in specials):
        return False
    return all(_agrees(tokenizer, left, right) for left, right in _PROBES)


def _agrees(tokenizer: Any, left: str, right: str) -> bool:
    try:
        whole, *parts = (list(tokenizer.encode_ids(text)) for text in (left + right, left, right))
    except TokenizerError:  # a vocabulary without these characters: nothing to learn here
        return True
    return whole == parts[0] + parts[1]


def last_cut(text: str, start: int, stop: int) -> int | None:
    """The last place in ``text`` at or before ``stop``, and after ``start``, where it may be cut."""
    stop = min(stop, len(text) - 1)
    at = text.rfind("\n", start, stop)
    while at > start:
        if not text[at - 1].isspace() and not text[at + 1].isspace():
            return at + 1
        at = text.rfind("\n", start, at)
    # A text without such line breaks: look for the last fitting space, in steps that double.
    reach = 256
    while True:
        begin = max(start, stop - reach)
        places = [match.end() for match in _SPACE.finditer(text, begin, stop + 1) if match.end() <= stop]
        if places:
            return places[-1]
        if begin == start:
            return None
        reach *= 4


def first_cut(text: str, start: int) -> int | None:
    """The first place in ``text`` after ``start`` where it may be cut."""
    match = _FIRST.search(text, start)
    return match.end() if match else None


class Cutter:
    """Turns the pieces of one document after another into segments to encode, of about ``size`` each."""

    def __init__(self, size: int, *, cut: bool) -> None:
        self._size = size
        self._cut = cut
        self._held: list[Any] = []  # read, and not yet known to be safely cut from what follows
        self._held_size = 0

    def push(self, text: str | bytes, *, last: bool) -> Iterator[str | bytes]:
        """The segments that ``text``, the next piece, settles; after the ``last`` piece, all of them.

        Every document yields at least one segment.  Without a safe place a segment grows past ``size``.
        """
        if not last and self._must_wait(text):
            self._held.append(text)
            self._held_size += len(text)
            return
        parts: list[Any] = [*self._held, text]
        joined: Any = type(text)().join(parts)
        start = 0
        while len(joined) - start > self._size:
            at = self._place(joined, start)
            if at is None:
                break
            yield joined[start:at]
            start = at
        rest = joined[start:]
        if last:
            yield rest
            rest = rest[:0]
        self._held, self._held_size = [rest], len(rest)

    def _must_wait(self, text: str | bytes) -> bool:
        if isinstance(text, bytes) or (self._cut and self._held_size <= 4 * self._size):
            return False
        # Joining at every piece would make a long uncuttable document cost the square of its length.
        return not self._cut or first_cut(self._held[-1][-1:] + text, 0) is None

    def _place(self, text: str | bytes, start: int) -> int | None:
        if isinstance(text, bytes):
            return start + self._size
        if not self._cut:
            return None
        return last_cut(text, start, start + self._size) or first_cut(text, start + self._size)
