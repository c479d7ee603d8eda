"""Reports on prepared data: what was read, dropped and truncated, and the hash of its rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """The account of one part of a corpus.

    Attributes:
        part: ``train``, ``validation`` or ``all``.
        split: a description of the split.
        files: the number of files read.
        documents, tokens, bytes: the documents kept, their tokens with end tokens, and the bytes of their
            text in UTF-8 (raw bytes in corpora of the byte tokenizer; 0 if it is unknown).
        unit: the word for one document.
        dropped, cut: the count of documents left out or truncated, by reason.
        packed_share: share of batch positions that hold a token, not padding; None before batching.
        notes: further lines.
    """

    part: str
    split: str
    files: int
    documents: int
    tokens: int
    bytes: int
    dropped: Mapping[str, int] = field(default_factory=dict)
    cut: Mapping[str, int] = field(default_factory=dict)
    packed_share: float | None = None
    notes: tuple[str, ...] = ()
    unit: str = "document"

    def lines(self) -> list[str]:
        """Return the ledger as lines of text."""
        per_token = f", {self.bytes / self.tokens:.2f} bytes per token" if self.tokens else ""
        is_known = self.bytes > 0 or not self.tokens
        length = f", {_count(self.bytes, 'byte')}{per_token}" if is_known else ""
        lines = [
            f"{self.part}: {_count(self.documents, self.unit)} in {_count(self.files, 'file')}, "
            f"{_count(self.tokens, 'token')}{length}",
            f"split: {self.split}",
            f"{self.unit}s dropped: {_reasons(self.dropped) or 'none'}",
            f"{self.unit}s truncated or divided: {_reasons(self.cut) or 'none'}",
        ]
        if self.packed_share is not None:
            lines.append(f"packed: {self.packed_share:.1%} of batch positions hold tokens")
        return lines + list(self.notes)

    def as_dict(self) -> dict[str, Any]:
        """Return the ledger as plain JSON values."""
        return {**asdict(self), "notes": list(self.notes)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Ledger:
        """Return the ledger of :meth:`as_dict`."""
        return cls(**{**values, "notes": tuple(values["notes"])})


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _reasons(counts: Mapping[str, int]) -> str:
    return "; ".join(f"{count:,} {reason}" for reason, count in counts.items() if count)


# The meaning of the counts that only some tasks have.
_COUNTS = {
    "choices": "in all",
    "words": "in all",
    "model_rows": "rows of tokens that the model reads",
    "windowed": "texts are longer than a row and are read in several windows",
    "lost": "words lie behind the truncation; their labels are left out",
    "silent": "words have no token; their labels are left out",
    "impossible": "questions have no answer",
    "answers": "in all",
    "misfits": "answers differ from the text of their tokens",
    "unseen": "answers are in no token",
    "windows": "windows of question and text",
    "without_answer": "windows do not contain the whole answer",
    "never_whole": "questions have no window that contains the whole answer",
    "max_seq_len": "tokens at most in a window",
    "doc_stride": "tokens between the starts of two windows",
    "max_query": "tokens at most in a question",
    "scored": "tokens are scored, those of answers",
    "left_out": "conversations are longer than train.seq_len and are left out",
    "empty_answers": "answers have no text",
    "equal": "pairs have the same tokens in both answers and are left out",
    "texts": "texts in each row",
    "others": "rows are not data.positive and are left out",
    "beside": "rows are not data.positive; only their scores are compared",
    "shared": "rows share a text with another row",
}


class RowDigest:
    """SHA-256 of the texts and answers of rows, in order; ``str`` gives its first 8 digits.

    It does not depend on the tokenizer.  Scores are comparable only if the hashes of their rows are equal.
    """

    def __init__(self, rows: Iterable[object] = ()) -> None:
        self._hash = hashlib.sha256()
        for row in rows:
            self.add(row)

    def add(self, row: object) -> None:
        """Add a row of plain values."""
        self._hash.update(json.dumps(row).encode() + b"\n")

    def __str__(self) -> str:
        return self._hash.hexdigest()[:8]


_ONE = {"are": "is", "have": "has", "lie": "lies", "repeat": "repeats", "differ": "differs", "their": "its"}


def counted(n: int, words: str) -> str:
    """Return ``n`` and ``words``, which begin with a plural noun; of one, noun and verbs are singular.

    >>> counted(1, "answers have no text")
    '1 answer has no text'
    """
    if n != 1 or words == "in all":
        return f"{n:,} {words}"
    noun, *rest = words.split(" ")
    return " ".join(["1", noun.removesuffix("s"), *(_ONE.get(word, word) for word in rest)])


@dataclass(frozen=True, kw_only=True)
class RowLedger:
    """The report on one part of a set of rows.

    Attributes:
        part, split: the part, and how the parts were made; empty for rows that belong to no part.
        rows: rows read.
        terms: words or tokens in them.
        unknown: terms that are not in the vocabulary.
        empty: rows without a known term.
        labels: rows by label; for token classification words by label.
        unit: the name of a term: words or tokens.
        cut: rows that were truncated.
        repeated: rows left out because an earlier one has the same texts and label.
        text: a hash of the rows' texts and answers, which does not depend on the tokenizer.
        noun: the name of a row: rows, texts or questions.
        counts: further counts of the task, by name.
        scores: the lowest, the highest and the mean score, for rows with scores.
    """

    part: str = ""
    split: str = ""
    rows: int
    terms: int
    unknown: int
    empty: int = 0
    labels: Mapping[str, int] = field(default_factory=dict)
    unit: str = "tokens"
    cut: int = 0
    repeated: int = 0
    text: str = ""
    noun: str = "rows"
    counts: Mapping[str, int] = field(default_factory=dict)
    scores: tuple[float, float, float] | None = None

    def lines(self) -> list[str]:
        """The ledger as text, one fact per line; counts of 0 are left out."""
        part = f"{self.part}: " if self.part else ""
        facts = [f"{part}{counted(self.rows, self.noun)}, {counted(self.terms, self.unit)}"]
        if self.labels:
            facts.append("labels: " + ", ".join(f"{name} {count:,}" for name, count in self.labels.items()))
        if self.scores is not None:
            facts.append("scores: {:g} to {:g}, {:.4g} on average".format(*self.scores))
        lines = ["; ".join(facts)]
        lines += [
            f"{name.replace('_', ' ')}: {counted(n, _COUNTS[name])}" for name, n in self.counts.items() if n
        ]
        share = self.unknown / max(1, self.terms)
        for n, name, what in (
            (self.repeated, "repeated", "repeat an earlier one and are left out"),
            (self.empty, "empty", "have no term of the vocabulary"),
            (self.cut, "truncated", "are longer than the limit and lost their end"),
        ):
            lines += [f"{name}: {counted(n, f'{self.noun} {what}')}"] * bool(n)
        if self.unknown:
            lines.append(f"unknown: {self.unknown:,} {self.unit} ({share:.1%}) are not in the vocabulary")
        return [*lines, *([f"split: {self.split}"] if self.split else [])]

    def unread(self) -> tuple[str, ...]:
        """The lines on rows of which the model has not read everything, as notes for scores."""
        return tuple(line for line in self.lines() if line.startswith(("truncated:", "silent:")))

    def as_dict(self) -> dict[str, Any]:
        """The ledger as plain JSON values; ``counts`` and ``scores`` stand beside the other keys."""
        values = asdict(self)
        counts, scores = values.pop("counts"), values.pop("scores")
        del values["noun"]
        named = {} if scores is None else dict(zip(("lowest", "highest", "mean"), scores, strict=True))
        return {**values, **counts, **named}
