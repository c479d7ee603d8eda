"""Labels of words as labels of tokens: the first token of a word carries its label, all others none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from wordloom.data.batches.causal import IGNORE
from wordloom.data.batches.framed import MarkedLabelBatches, MarkedRows
from wordloom.data.batches.labelled import LabelBatch
from wordloom.data.batches.sequences import stacked_rows
from wordloom.data.ledgers import RowDigest, RowLedger
from wordloom.data.rows.tagged import TaggedText, unseen_tag
from wordloom.errors import DataError, did_you_mean

NO_WORD = -1  # the word of a token that belongs to none
_WAYS = ("error", "window", "cut")

Numbers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class TaggedRows(MarkedRows):
    """Rows of one text each; see :class:`~wordloom.data.batches.framed.MarkedRows`.

    Attributes:
        targets: [n] int64, the number of each token's label, or :data:`~wordloom.data.IGNORE`.
        words: [n] int64, for the first token of each word that is scored in this row the word's number in
            its text; :data:`NO_WORD` for other tokens.  Every word is scored in one row at most.
        texts: [N] int64, the number of each row's text.
        ledger: the report on the texts.
    """

    targets: Numbers
    words: Numbers
    texts: Numbers
    ledger: RowLedger


class _Row(NamedTuple):
    """The part of a text in one row: its tokens from ``begin`` to ``end``, scored from ``scored`` on."""

    begin: int
    scored: int
    end: int


def tagged_rows(
    tokenizer: Any,
    texts: Iterable[TaggedText],
    labels: Sequence[str] = (),
    *,
    start: Sequence[int] = (),
    end: Sequence[int] = (),
    longest: int | None = None,
    too_long: Literal["error", "window", "cut"] = "error",
    context: int = 0,
    part: str = "",
) -> TaggedRows:
    """Return ``texts`` as rows of tokens; special tokens written in a text are ordinary text.

    Args:
        labels: their numbers are the targets.  The targets of texts without labels are IGNORE.
        start, end: ids of the marks around a row.
        longest: tokens of a row at most, marks included; None: any number.
        too_long: what happens to a longer text: an error; several rows ("window"), which score each word
            once and begin at the start of a word if they can; or ("cut") it is truncated.
        context: tokens of the window before with which a window begins; they are not scored again.
        part: the name of the part, for the ledger.

    Raises DataError: a text that is too long, a label that is not among ``labels``, a row without room.
    """
    if too_long not in _WAYS:
        raise DataError(f"too_long is {too_long!r}; {did_you_mean(str(too_long), _WAYS)}")
    room = None if longest is None else longest - len(start) - len(end)
    if room is not None and (room < 1 or not 0 <= context < room):
        raise DataError(
            f"rows of {longest} tokens leave {max(room, 0)} for a text, {context} of them read again "
            "(context); at least one must be new"
        )
    numbers = {label: number for number, label in enumerate(labels)}
    rows: list[tuple[Numbers, Numbers, Numbers]] = []  # ids, targets, words
    text_numbers: list[int] = []
    truncated: list[int] = []
    count, by_label, digest = Counter[str](), Counter[str](), RowDigest()
    before, behind = (np.asarray(marks, np.int64) for marks in (start, end))
    for number, text in enumerate(texts):
        tags = _tags(text, numbers, labels)
        by_label.update(text.labels or ())
        digest.add((text.words, text.labels))
        encoded = tokenizer.encode(text.text, specials="text")
        ids = np.asarray(encoded.ids, np.int64)
        words = first_tokens(text.spans, encoded.offsets)
        first = np.flatnonzero(words != NO_WORD)
        count.update(texts=1, words=len(text.words), tokens=len(ids), silent=len(text.words) - len(first))
        count["unknown"] += 0 if tokenizer.unk_id is None else int((ids == tokenizer.unk_id).sum())
        if room is not None and len(ids) > room:
            count["windowed" if too_long == "window" else "cut"] += 1
            truncated += [len(rows)] * (too_long == "cut")
        for row in _windows(text, len(ids), first, room, too_long, context):
            scored = np.where(np.arange(row.begin, row.end) < row.scored, NO_WORD, words[row.begin : row.end])
            targets = np.where(scored == NO_WORD, IGNORE, tags[scored])
            count["scored"] += int((scored != NO_WORD).sum())
            rows.append((
                np.concatenate([before, ids[row.begin : row.end], behind]),
                _framed(targets, before, behind, IGNORE),
                _framed(scored, before, behind, NO_WORD),
            ))  # fmt: skip
            text_numbers.append(number)
    count["lost"] = count["words"] - count["silent"] - count["scored"]
    ledger = RowLedger(
        part=part,
        rows=count["texts"],
        noun="texts",
        terms=count["tokens"],
        unknown=count["unknown"],
        labels={label: by_label[label] for label in labels if by_label[label]},
        cut=count["cut"],
        counts={
            "words": count["words"],
            "model_rows": len(rows),
            **{name: count[name] for name in ("windowed", "lost", "silent")},
        },
        text=str(digest),
    )
    return _joined(rows, text_numbers, tuple(truncated), ledger)


def first_tokens(spans: Sequence[tuple[int, int]], offsets: Sequence[tuple[int, int]]) -> Numbers:
    """Return for each first token of a word the word's number, and NO_WORD for any other token: [n].

    A token belongs to the first word of which it has a character. A token of white space belongs to no word.
    """
    at = np.asarray(offsets, np.int64).reshape(-1, 2)
    begins, ends = np.asarray(spans, np.int64).reshape(-1, 2).T
    word = np.minimum(np.searchsorted(ends, at[:, 0], side="right"), len(ends) - 1)
    inside = (begins[word] < at[:, 1]) & (at[:, 0] < ends[word]) & (at[:, 0] < at[:, 1])
    word = np.where(inside, word, NO_WORD)
    known, first = np.unique(word, return_index=True)
    numbers = np.full(len(at), NO_WORD, np.int64)
    numbers[first] = known  # NO_WORD may be among these
    return numbers


def _tags(text: TaggedText, numbers: dict[str, int], labels: Sequence[str]) -> Numbers:
    """Return the number of each word's label: [words]."""
    if text.labels is None:
        return np.full(len(text.words), IGNORE, np.int64)
    for word, label in enumerate(text.labels):
        if label not in numbers:
            raise unseen_tag(text, word, labels)
    return np.array([numbers[label] for label in text.labels], np.int64)


def _windows(
    text: TaggedText, tokens: int, first: Numbers, room: int | None, too_long: str, context: int
) -> Iterator[_Row]:
    """Yield the rows of a text of ``tokens`` tokens, of which ``first`` begin words."""
    if room is None or tokens <= room:
        yield _Row(0, 0, tokens)
        return
    if too_long == "error":
        raise DataError(
            f"{text.place()}: has {tokens:,} tokens in {len(text.words):,} words, and a row has room for "
            f'{room:,}; raise train.seq_len as far as the model reads, or say data.too_long = "window" '
            '(in Python too_long, at the command --too-long) to read it in several rows, or "cut" to leave '
            "out its end"
        )
    if too_long == "cut":
        yield _Row(0, 0, room)
        return
    scored = 0
    while scored < tokens:
        begin = max(0, scored - context)
        end = begin + room
        if end < tokens:  # before the last word that is not whole, unless it began the window
            nearest = first[(first > scored) & (first <= end)]
            end = int(nearest[-1]) if len(nearest) else end
        end = min(end, tokens)
        yield _Row(begin, scored, end)
        scored = end


def _framed(values: Numbers, before: Numbers, behind: Numbers, fill: int) -> Numbers:
    return np.pad(values, (len(before), len(behind)), constant_values=fill)


def _joined(
    rows: list[tuple[Numbers, Numbers, Numbers]],
    text_numbers: list[int],
    cut_rows: tuple[int, ...],
    ledger: RowLedger,
) -> TaggedRows:
    ids, offsets = stacked_rows([row[0] for row in rows])
    targets, words = (
        np.concatenate([np.empty(0, np.int64), *(row[part] for row in rows)]) for part in (1, 2)
    )
    return TaggedRows(
        ids=ids, offsets=offsets, unknown=ledger.unknown, cut=ledger.cut, targets=targets,
        seconds=np.diff(offsets), cut_rows=cut_rows, words=words, texts=np.asarray(text_numbers, np.int64),
        ledger=ledger,
    )  # fmt: skip


class WordLabelBatches(MarkedLabelBatches):
    """Rows of tokens with a label for each word; the targets [B, T] are the labels' numbers, or IGNORE."""

    def __init__(self, rows: TaggedRows, *, segments: bool = False, **settings: Any) -> None:
        super().__init__(rows, np.zeros(len(rows.lengths), np.int64), segments=segments, **settings)
        self._labels = np.append(rows.targets, IGNORE)  # padding reads the last label

    def batch(self, start: int, count: int) -> LabelBatch:
        """Samples ``start`` to ``start + count`` (excluded) of the endless sequence."""
        rows = self.rows(start, count)
        inputs = self._inputs(rows)
        at = self._begins[rows][:, None] + np.arange(inputs.tokens.shape[1])  # [B, T]
        targets = self._labels[np.where(inputs.attend.numpy(), at, -1)]
        return LabelBatch(inputs, torch.from_numpy(targets))

    def _identity(self) -> tuple[list[int], tuple[NDArray[Any], ...]]:
        settings, arrays = super()._identity()
        return settings, (*arrays, self._labels)
