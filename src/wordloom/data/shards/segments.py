"""Where a long document may be cut so that the segments' ids, one after another, are the whole's.

A tokenizer that first splits text into words looks at each alone, so a cut is harmless where a word begins in
the whole text and the word before it ends there by itself too.  Only ``\\s+(?!\\S)`` looks ahead, from white
space to the next character: where the text before a cut ends in anything else, nothing looked across.

``words``: GPT-2's pattern, BERT's words and words between white space, and vocabularies of words.  A cut lies
before a space, tab or line break that follows no white space.  No word goes on past white space there.

``llama3``: punctuation takes the line breaks after it, and ``\\s*[\\r\\n]+`` takes white space up to the last
line break of a run, looking no further.  A cut lies after that one, or before a space or tab (U+3000 too)
that follows no white space.

``lines``: LLaMA's tokenizer merges across words but has no piece that joins a line break to anything.  A cut
lies before any line break.  The tokenizer puts a ``▁`` before every text; in a segment that continues a
document it stands before the line break, so it stays a token of its own, and is dropped.

Lower-casing goes character by character and leaves white space as it is, and so does BERT's cleaning but for
control characters, which words between white space do not notice.  Tokenizers with any other rule are never
cut: that some texts get the same ids is no proof.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

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
    """The rule under which a text cut in segments gets the ids of the whole, or ``None``.

    It follows from the tokenizer's definition.  No special token may hold white space (it could straddle a
    cut), and other added tokens, which are found before anything is split, are not there.
    """
    specials = [tokenizer.id_to_token(i) or "" for i in tokenizer.special_ids]
    if any(character.isspace() for token in specials for character in token):
        return None
    definition = getattr(tokenizer, "_definition", None)
    if definition is None:  # a vocabulary in a tokenizer's place, whose kind is its word for this
        return "words" if tokenizer.kind == "word" else None
    if not all(token["special"] for token in definition["added_tokens"]):
        return None
    if tokenizer.kind == "llama":
        return "lines" if _line_breaks_stand_alone(definition) else None
    units = tokenizer.kind in ("byte", "char")  # each looked up alone: any split will do
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
    """True where all that happens to a text first is a ``▁`` before it, and one for each of its spaces."""
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
    """The last place in ``text`` at or before ``stop``, and after ``start``, where it may be cut."""
    stop = min(stop, len(text) - 1)
    reach = 256
    while True:  # in steps that grow: most often there is one near
        begin = max(start + 1, stop - reach)
        last = None
        for match in _PLACES[rule].finditer(text, begin, stop + 256):  # so far they may look ahead
            if match.start() > stop:
                break
            last = match.start()
        if last is not None or begin == start + 1:
            return last
        reach *= 4


def first_cut(text: str, start: int, rule: Rule) -> int | None:
    """The first place in ``text`` after ``start`` where it may be cut."""
    match = _PLACES[rule].search(text, start + 1)
    return match.start() if match else None


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
