"""Questions and their texts as rows of tokens: ``[CLS] question [SEP] part of the text [SEP]``.

As in BERT's run_squad.py (Devlin et al. 2018, arXiv:1810.04805), a text too long for a row is read in windows
whose beginnings are ``doc_stride`` tokens apart. The question is segment 0 and the text is segment 1. The
targets are the first and last token of the answer; in a window without the whole answer both are 0, the
[CLS].

The script splits a text at white space first and searches for the answer's tokens. Here they are the tokens
that the answer's characters touch.  Every token keeps the offsets of its characters in the original text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias
from unicodedata import category

import numpy as np
from numpy.typing import NDArray

from wordloom.data.batches.causal import IGNORE
from wordloom.data.batches.framed import Frame, MarkedLabelBatches, MarkedRows
from wordloom.data.ledgers import RowDigest, RowLedger
from wordloom.data.rows.squad import Question
from wordloom.errors import DataError, did_you_mean

Ids: TypeAlias = NDArray[np.int32]
Ints: TypeAlias = NDArray[np.int64]


class AnswerWindow(NamedTuple):
    """One row: a question and P tokens of its text, T = ``passage`` + P + 1 tokens in all.

    Attributes:
        question: the number of the question.
        ids: ``[T]`` int32.
        passage: where the text's tokens begin; tokens before it are segment 0, the others segment 1.
        first: the number of the passage's first token in the whole text.
        offsets: ``[P, 2]`` int64, the characters ``context[a:b]`` of each token of the text, without white
            space around them; ``a == b`` for a token without a character.
        best: ``[P]`` bool, True where no other window has more context for the token.
        start, end: the indices in ``ids`` of the answer's first and last token; both 0 if the answer is not
            in this window or there is none; both IGNORE without a target.
    """

    question: int
    ids: Ids
    passage: int
    first: int
    offsets: Ints
    best: NDArray[np.bool_]
    start: int
    end: int

    @property
    def segments(self) -> Ints:
        """``[T]`` int64, 0 for the question and 1 for the text."""
        return (np.arange(len(self.ids)) >= self.passage).astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class AnswerWindows:
    """The windows of questions, one question after another.

    Attributes:
        questions: the questions.
        windows: all rows.
        begins: ``[questions + 1]`` int64: question i has the windows ``begins[i]`` to ``begins[i + 1]``.
        frame: the marks around the texts, and the padding.
        ledger: the report on the questions.
        truncated: the numbers of the questions that were truncated.
    """

    questions: tuple[Question, ...]
    windows: tuple[AnswerWindow, ...]
    begins: Ints
    frame: Frame
    ledger: RowLedger
    truncated: frozenset[int] = frozenset()

    def of(self, question: int) -> tuple[AnswerWindow, ...]:
        """Return the windows of a question, by its number."""
        begin, stop = self.begins[question : question + 2].tolist()
        return self.windows[begin:stop]

    @property
    def targets(self) -> Ints:
        """The start and end of each window: ``[windows, 2]`` int64."""
        return np.array([(window.start, window.end) for window in self.windows], np.int64)

    def batches(self, *, segments: bool = True, **settings: Any) -> MarkedLabelBatches:
        """Return batches of the windows; the targets [B, 2] are the first and last token of each answer.

        ``segments`` and ``settings`` are those of
        :class:`~wordloom.data.batches.framed.MarkedLabelBatches`.
        """
        offsets = np.cumsum([0, *(len(window.ids) for window in self.windows)])
        rows = MarkedRows(
            ids=np.concatenate([window.ids for window in self.windows]),
            offsets=offsets.astype(np.int64),
            unknown=self.ledger.unknown,
            cut=self.ledger.cut,
            seconds=np.array([window.passage for window in self.windows], np.int64),
        )
        places = [self.questions[window.question].place for window in self.windows]
        return MarkedLabelBatches(
            rows, self.targets, segments=segments, pad_id=self.frame.pad, places=places, **settings
        )


def question_windows(
    tokenizer: Any,
    questions: Iterable[Question],
    *,
    max_seq_len: int = 384,
    doc_stride: int = 128,
    max_query: int = 64,
    too_long: str = "error",
    targets: bool = True,
    frame: Frame | None = None,
    part: str = "",
) -> AnswerWindows:
    """Return the windows of ``questions``; special tokens written in a text are ordinary text.

    Args:
        max_seq_len: T, tokens of a row at most, marks included.
        doc_stride: tokens between the starts of two windows; fewer if less of the text fits into a window,
            so that no token is left out.
        max_query: tokens of a question at most.
        too_long: what happens to a longer question: an error, or ("cut") it is truncated and counted.
        targets: find the tokens of each question's first answer; without, all targets are IGNORE.  An answer
            in no token, because the tokenizer drops its characters, also has the target IGNORE.
        frame: the marks.  Default: the tokenizer's [CLS] and [SEP].
        part: the name of the part, for the ledger.

    Raises:
        DataError: a setting out of range; a question that is too long; a question or text without a token;
            no question; a tokenizer without the marks.  Each names the question's file and field.
        TokenizerError: a text that cannot be encoded.
    """
    if frame is None:
        frame = Frame.of_encoder(tokenizer)
    _check_settings(frame, max_seq_len, doc_stride, max_query, too_long)
    counts: Counter[str] = Counter()
    rows: list[Question] = []
    windows: list[AnswerWindow] = []
    begins = [0]
    truncated: set[int] = set()
    text: _Text | None = None
    for question in questions:
        if text is None or text.context != question.context:
            text = _Text.of(tokenizer, question)
        query, too_many = _query(tokenizer, question, max_query, too_long)
        if too_many:
            truncated.add(len(rows))
        target = _target(text, question, counts) if targets else None
        windows += _windows(len(rows), query, text, frame, max_seq_len, doc_stride, target)
        if question.answers and target is not None:
            own = windows[begins[-1] :]
            missed = sum(window.start == 0 for window in own)
            counts["without_answer"] += missed
            counts["never_whole"] += missed == len(own)
        counts["impossible"] += question.is_impossible
        rows.append(question)
        begins.append(len(windows))
    if not rows:
        raise DataError("there is no question; give at least one")
    settings = {"max_seq_len": max_seq_len, "doc_stride": doc_stride, "max_query": max_query}
    ledger = RowLedger(
        part=part,
        rows=len(rows),
        noun="questions",
        terms=sum(len(window.ids) for window in windows),
        unknown=sum(int((window.ids == tokenizer.unk_id).sum()) for window in windows),
        cut=len(truncated),
        counts={**{name: counts[name] for name in _COUNTED}, "windows": len(windows), **settings},
        text=str(RowDigest(row._replace(place="") for row in rows)),
    )
    return AnswerWindows(
        questions=tuple(rows),
        windows=tuple(windows),
        begins=np.array(begins, np.int64),
        frame=frame,
        ledger=ledger,
        truncated=frozenset(truncated),
    )


def _check_settings(frame: Frame, max_seq_len: int, doc_stride: int, max_query: int, too_long: str) -> None:
    if too_long not in ("error", "cut"):
        raise DataError(f"too_long is {too_long!r}; {did_you_mean(too_long, ('error', 'cut'))}")
    most = max_seq_len - frame.marks(2) - 1
    if not 1 <= max_query <= most:
        raise DataError(
            f"max_query={max_query} is not allowed; 1 <= max_query <= {most}, so that "
            f"max_seq_len={max_seq_len} has room for {frame.marks(2)} marks and a token of the text, too "
            "(in a recipe data.max_query and train.seq_len)"
        )
    if doc_stride < 1:
        raise DataError(f"doc_stride={doc_stride} is not allowed; at least 1")


_COUNTED = ("impossible", "answers", "misfits", "unseen", "without_answer", "never_whole")
_NOWHERE = (0, 0)  # [CLS]
_UNKNOWN = (IGNORE, IGNORE)


class _Text(NamedTuple):
    """A text and its tokens: ``ids`` [n], ``offsets`` [n, 2]."""

    context: str
    ids: Ids
    offsets: Ints

    @classmethod
    def of(cls, tokenizer: Any, question: Question) -> _Text:
        context = question.context
        encoding = tokenizer.encode(context, specials="text")
        if not any(context[a:b].strip() for a, b in encoding.offsets):
            raise DataError(f"{question.place}: its context has no token of this tokenizer; remove it")
        offsets = [_trimmed(context, a, b) for a, b in encoding.offsets]
        if not context.isascii():
            offsets = _with_accents(context, offsets)
        return cls(context, np.array(encoding.ids, np.int32), np.array(offsets, np.int64))

    def tokens_of(self, start: int, end: int) -> tuple[int, int] | None:
        """Return the first and last token that characters ``start`` to ``end`` touch; None without one."""
        a, b = self.offsets.T
        touched = np.flatnonzero((a < end) & (b > start) & (a < b))
        return (int(touched[0]), int(touched[-1])) if len(touched) else None


def _trimmed(context: str, a: int, b: int) -> tuple[int, int]:
    """Return the offsets of a token without the white space that byte-level tokens include."""
    part = context[a:b]
    kept = part.strip()
    if len(kept) == len(part):
        return a, b
    begin = a + len(part) - len(part.lstrip()) if kept else a
    return begin, begin + len(kept)


def _with_accents(context: str, offsets: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Extend offsets over combining marks that are in no token, because a tokenizer may drop accents."""
    covered = {place for a, b in offsets for place in range(a, b)}
    loose = {i for i, sign in enumerate(context) if i not in covered and category(sign).startswith("M")}
    extended = []
    for a, b in offsets:
        stop = b
        while a < b and stop in loose:
            stop += 1
        extended.append((a, stop))
    return extended


def _query(tokenizer: Any, question: Question, longest: int, too_long: str) -> tuple[Ids, bool]:
    """Return at most ``longest`` tokens of the question, and whether it has more."""
    ids = np.asarray(tokenizer.encode_ids(question.question, specials="text"), np.int32)
    if not len(ids):
        raise DataError(f"{question.place}.question: has no token of this tokenizer; remove it")
    if len(ids) > longest and too_long == "error":
        raise DataError(
            f"{question.place}.question: has {len(ids):,} tokens and max_query allows {longest:,}; raise "
            'it, or say too_long="cut" to read the beginning alone (in a recipe data.max_query '
            "and data.too_long)"
        )
    return ids[:longest], len(ids) > longest


def _target(text: _Text, question: Question, counts: Counter[str]) -> tuple[int, int] | None:
    """Return the first answer's first and last token in the text.

    ``(-1, -1)`` means that there is no answer, None that the answer is in no token.
    """
    spans = [text.tokens_of(answer.start, answer.end) for answer in question.answers]
    for answer, tokens in zip(question.answers, spans, strict=True):
        counts["answers"] += 1
        if tokens is None:
            counts["unseen"] += 1
        else:
            a, b = text.offsets[tokens[0], 0], text.offsets[tokens[1], 1]
            counts["misfits"] += text.context[a:b] != answer.text.strip()
    if question.answers:
        return spans[0]
    return (-1, -1) if question.is_impossible else None


def _windows(
    number: int,
    query: Ids,
    text: _Text,
    frame: Frame,
    max_seq_len: int,
    doc_stride: int,
    target: tuple[int, int] | None,
) -> list[AnswerWindow]:
    """Return the windows of one question; ``target`` is the result of :func:`_target`."""
    passage = len(frame.start) + len(query) + len(frame.between)
    room, n = max_seq_len - len(query) - frame.marks(2), len(text.ids)
    firsts = [0]
    while firsts[-1] + room < n:
        firsts.append(firsts[-1] + min(room, doc_stride))
    spans = [(first, min(first + room, n)) for first in firsts]
    best = _most_context(spans, n)
    windows = []
    for i, (first, stop) in enumerate(spans):
        start, end = _UNKNOWN
        if target is not None:
            shift = passage - first
            inside = first <= target[0] and target[1] < stop
            start, end = (target[0] + shift, target[1] + shift) if inside else _NOWHERE
        windows.append(
            AnswerWindow(
                question=number,
                ids=frame.around(query, text.ids[first:stop]),
                passage=passage,
                first=first,
                offsets=text.offsets[first:stop],
                best=best[first:stop] == i,
                start=start,
                end=end,
            )
        )
    return windows


def _most_context(spans: list[tuple[int, int]], n: int) -> Ints:
    """Return the window with the most context for each of n tokens: [n].

    As in run_squad.py, the context of a token is the smaller number of tokens to its left or right, plus a
    hundredth of the window's length. Of equal windows the first counts.
    """
    if len(spans) == 1:
        return np.zeros(n, np.int64)
    token = np.arange(n)
    score = np.full((len(spans), n), -1.0)
    for i, (first, stop) in enumerate(spans):
        inside = token[first:stop]
        score[i, first:stop] = np.minimum(inside - first, stop - 1 - inside) + 0.01 * (stop - first)
    return score.argmax(0)
