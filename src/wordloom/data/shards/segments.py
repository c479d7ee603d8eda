"""Cut long documents into segments, and assemble documents from the ids of their segments.

A document may be cut where the ids of its segments are the ids of the document.

A tokenizer that splits text into words encodes each word alone.  A cut is harmless where a word begins in the
document and the word before it also ends without the cut.  Only ``\\s+(?!\\S)`` looks ahead, from white space
to the next character, so the text before a cut must not end in white space.

``words``: GPT-2's pattern, BERT's words and words between white space, and vocabularies of words.  A cut lies
before a space, tab or line break that does not follow white space.  No word continues past white space there.

``llama3``: punctuation includes the line breaks after it, and ``\\s*[\\r\\n]+`` reads white space up to the
last line break of a run.  A cut lies after that line break, or before a space, tab or U+3000 that does not
follow white space.

``lines``:  LLaMA's tokenizer merges across words but has no piece that joins a line break to another
character.  A cut lies before any line break.  The tokenizer puts a ``▁`` before every text.  In a segment
that continues a document, the ``▁`` stands before the line break, so it is a token of its own, which is
dropped.

Lower-casing works by character and keeps white space.  BERT's cleaning does so too, except for control
characters, which do not affect words between white space.  Tokenizers with any other rule are never cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wordloom.data.shards.storage import ShardWriter
from wordloom.data.text.corpus import Tally
from wordloom.text import definition as facts

Rule: TypeAlias = Literal["words", "llama3", "lines"]

# Python's \s holds all that is white space to the tokenizers, and a few control characters besides.
_PLACES: dict[Rule, re.Pattern[str]] = {
    "words": re.compile(r"(?<=\S)(?=[ \t\r\n])"),
    "llama3": re.compile(r"(?<=\S)(?=[ \t\u3000])|(?<=[\r\n])(?=[^\S\r\n]*\S)"),
    "lines": re.compile(r"(?=\n)"),
}
_NORMALIZERS = {"gpt2": {"Lowercase"}, "llama3": {"Lowercase"}, "words": {"Lowercase", "BertNormalizer"}}


def cut_rule(tokenizer: Any) -> Rule | None:
    """Return the rule under which segments of a text get the ids of the text, or None.

    It follows from the tokenizer's definition.  No special token may hold white space, because it could lie
    across a cut, and there may be no other added tokens, which are matched before the text is split.
    """
    specials = [tokenizer.id_to_token(i) or "" for i in tokenizer.special_ids]
    if any(character.isspace() for token in specials for character in token):
        return None
    definition = getattr(tokenizer, "_definition", None)
    if definition is None:  # a word vocabulary instead of a tokenizer
        return "words" if tokenizer.kind == "word" else None
    if not all(token["special"] for token in definition["added_tokens"]):
        return None
    if tokenizer.kind == "llama":
        return "lines" if _line_breaks_stand_alone(definition) else None
    units = tokenizer.kind in ("byte", "char")  # each is encoded alone, so any cut is harmless
    split = "words" if units else facts.split_pattern(definition)
    steps = {step["type"] for step in facts.normalizers(definition)}
    if split is None or not steps <= _NORMALIZERS[split]:
        return None
    return "llama3" if split == "llama3" else "words"


def _line_breaks_stand_alone(definition: facts.Definition) -> bool:
    model, pieces = definition["model"], facts.model_vocabulary(definition)
    unusual = ("ignore_merges", "continuing_subword_prefix", "end_of_word_suffix")
    breaks = {"\n", "<0x0A>"} & pieces.keys()
    return (
        _marks_the_beginning(definition)
        and not any(model.get(name) for name in unusual)
        and facts.SPACE_MARK in pieces
        and bool(breaks)
        and not any(one in piece for piece in pieces.keys() - breaks for one in ("\n", "<0x0A>"))
    )


def _marks_the_beginning(definition: facts.Definition) -> bool:
    """Return True if the text only gets a ``▁`` before it and one for each of its spaces."""
    steps = facts.pre_tokenizers(definition)
    if facts.prepends_space(definition):
        return not steps
    return (
        not facts.normalizers(definition)
        and [step["type"] for step in steps] == ["Metaspace"]
        and (steps[0]["replacement"], steps[0].get("split")) == (facts.SPACE_MARK, False)
        and steps[0].get("prepend_scheme") in ("always", "first")
    )


def last_cut(text: str, start: int, stop: int, rule: Rule) -> int | None:
    """Return the last place after ``start``, and at or before ``stop``, where ``text`` may be cut."""
    stop = min(stop, len(text) - 1)
    reach = 256
    while True:  # with a growing reach, because a place is usually near
        begin = max(start + 1, stop - reach)
        last = None
        for match in _PLACES[rule].finditer(text, begin, stop + 256):  # patterns may look ahead
            if match.start() > stop:
                break
            last = match.start()
        if last is not None or begin == start + 1:
            return last
        reach *= 4


def first_cut(text: str, start: int, rule: Rule) -> int | None:
    """Return the first place after ``start`` where ``text`` may be cut."""
    match = _PLACES[rule].search(text, start + 1)
    return match.start() if match else None


class Cutter:
    """A cutter of the pieces of documents into segments of about ``size`` characters or bytes."""

    def __init__(self, size: int, rule: Rule | None) -> None:
        self._size = size
        self._rule = rule
        self._held: list[Any] = []  # pieces without a known cut before the next piece
        self._held_size = 0

    def push(self, text: str | bytes, *, last: bool) -> Iterator[str | bytes]:
        """Yield the segments that end within ``text``, the next piece; the ``last`` piece ends the document.

        Every document yields at least one segment.  Without a place to cut, a segment grows past ``size``.
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
        held = joined[start:]
        if last:
            yield held
            held = held[:0]
        self._held, self._held_size = [held], len(held)

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
            text = segment.text
            self._size += len(text) if isinstance(text, bytes) or text.isascii() else len(text.encode())
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
