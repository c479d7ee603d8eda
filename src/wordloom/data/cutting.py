"""Where a long document may be cut so that the segments' ids, one after another, are the whole's.

Under the rule ``words``, for tokenizers that first split text into words (and keep or drop white space by
patterns that look one character ahead), nothing can be joined across these places:

1. after a line break that stands between two characters that are not white space;
2. before a single space that stands between two ASCII letters.

GPT-2's and LLaMA 3's patterns, BERT's and plain word splitting all hold there, whatever their
normalization: neither a line feed nor a space composes with what stands beside it.

Under the rule ``lines``, for LLaMA's tokenizer, which merges across words but has no piece that joins a
line break to anything, a segment may begin with any line break.  The tokenizer puts a ``▁`` before every
text; in a segment that continues a document it stands before the line break, so it stays a token of its
own, and is dropped.

Other tokenizers (Unigram's search weighs the whole text) and those we do not know are never cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

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


Rule: TypeAlias = Literal["words", "lines"]


def cut_rule(tokenizer: Any) -> Rule | None:
    """The rule under which a text cut in segments gets the ids of the whole, or ``None``.

    The tokenizer's kind must be one for which that is so by construction, no special token may hold a line
    break or a space (it could straddle a cut), and a few probes must agree: they expose settings such as
    a space put before every text.
    """
    specials = [tokenizer.id_to_token(i) or "" for i in tokenizer.special_ids]
    if any("\n" in token or " " in token for token in specials):
        return None
    if tokenizer.kind in _CUTTABLE and all(_agrees(tokenizer, left, right) for left, right in _PROBES):
        return "words"
    if tokenizer.kind == "llama" and _line_breaks_stand_alone(tokenizer):
        return "lines"
    return None


def _line_breaks_stand_alone(tokenizer: Any) -> bool:
    pieces = (tokenizer.id_to_token(i) or "" for i in range(tokenizer.vocab_size))
    if any("\n" in piece and piece != "\n" for piece in pieces):
        return False
    mark = tokenizer.encode_ids("\n")[0]
    return tokenizer.id_to_token(mark) == "▁" and all(
        tokenizer.encode_ids(left + right) == tokenizer.encode_ids(left) + tokenizer.encode_ids(right)[1:]
        for left, right in (("one", "\ntwo"), ("1 ", "\n\n 2"), ("\n", "\n"), ("é ", "\n▁"))
    )


def _agrees(tokenizer: Any, left: str, right: str) -> bool:
    try:
        whole, *parts = (list(tokenizer.encode_ids(text)) for text in (left + right, left, right))
    except TokenizerError:  # a vocabulary without these characters: nothing to learn here
        return True
    return whole == parts[0] + parts[1]


def last_cut(text: str, start: int, stop: int, rule: Rule) -> int | None:
    """The last place in ``text`` at or before ``stop``, and after ``start``, where it may be cut."""
    stop = min(stop, len(text) - 1)
    if rule == "lines":
        at = text.rfind("\n", start + 1, stop + 1)
        return at if at >= 0 else None
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


def first_cut(text: str, start: int, rule: Rule) -> int | None:
    """The first place in ``text`` after ``start`` where it may be cut."""
    if rule == "lines":
        at = text.find("\n", start + 1)
        return at if at >= 0 else None
    match = _FIRST.search(text, start)
    return match.end() if match else None


class Cutter:
    """Turns the pieces of one document after another into segments to encode, of about ``size`` each."""

    def __init__(self, size: int, rule: Rule | None) -> None:
        self._size = size
        self._rule = rule
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
        if isinstance(text, bytes) or (self._rule and self._held_size <= 4 * self._size):
            return False
        # Joining at every piece would make a long uncuttable document cost the square of its length.
        return self._rule is None or first_cut(self._held[-1][-1:] + text, 0, self._rule) is None

    def _place(self, text: str | bytes, start: int) -> int | None:
        if isinstance(text, bytes):
            return start + self._size
        if self._rule is None:
            return None
        near = last_cut(text, start, start + self._size, self._rule)
        return near or first_cut(text, start + self._size, self._rule)
