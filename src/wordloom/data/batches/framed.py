"""Texts, or pairs of texts, between marks and with segments, as a pretrained model reads them.

    encoder        [CLS] first [SEP]  or  [CLS] first [SEP] second [SEP]     (RoBERTa: </s></s> between)
    causal model   start first end    or  start first between second end

The second text and the mark behind it are segment 1, everything before it is segment 0 (Devlin et al. 2018,
figure 2).  The marks of a causal model are its tokenizer's tokens for the beginning and the end of a text, or
TASK_TOKENS if the tokenizer has them (Radford et al. 2018, section 3.3 and figure 1):

    classification   start text extract
    entailment       start premise delimiter hypothesis extract
    similarity       start first delimiter second extract, and with the second before the first (BothOrders)
    multiple choice  start context delimiter choice extract, for every choice (choices.py)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wordloom.data.batches.masked import Marks
from wordloom.data.batches.sequences import SequenceLabelBatches, TokenRows, stacked_rows
from wordloom.errors import DataError

#: Start, delimiter and extract, as the paper's own code calls them.
TASK_TOKENS = ("_start_", "_delimiter_", "_classify_")

_TEXTS = 1 << 12  # rows for the tokenizer at a time
_OF_RECIPE = (
    "train.seq_len allows {longest}; raise it as far as the model reads, or say "
    'data.too_long = "cut" (evaluate: --too-long cut) to leave out the end of its longer text'
)
#: Where no recipe says how long a row is.
OF_MODEL = (
    'the model reads {longest}; shorten it, or say too_long="cut" (at the command --too-long cut) '
    "to leave out the end of its longer text"
)


class Frame(NamedTuple):
    """The marks around texts: ids before the first text, between two texts, and behind the last."""

    start: tuple[int, ...]
    between: tuple[int, ...]
    end: tuple[int, ...]
    pad: int

    @classmethod
    def of_encoder(cls, tokenizer: Any, *, doubled: bool = False) -> Frame:
        """[CLS] and [SEP], twice between texts where ``doubled``; raises DataError as :class:`Marks`."""
        marks = Marks.of(tokenizer)
        return cls((marks.cls,), (marks.sep,) * (2 if doubled else 1), (marks.sep,), marks.pad)

    @classmethod
    def of_causal(cls, tokenizer: Any) -> Frame:
        """The marks of a causal model: the tokenizer's bos, if any, then its TASK_TOKENS, or eos.

        Raises DataError for a tokenizer without an end token, whose hidden state the head reads.
        """
        start = () if tokenizer.bos_id is None else (tokenizer.bos_id,)
        own = [index for index in map(tokenizer.token_to_id, TASK_TOKENS) if index in tokenizer.special_ids]
        end = tokenizer.eos_id if tokenizer.sep_id is None else tokenizer.sep_id
        between = end
        if len(own) == len(TASK_TOKENS):
            start, between, end = (*start, own[0]), own[1], own[2]
        if end is None:
            raise DataError(
                "the tokenizer has no token that ends a text, which the head of a causal model reads; take a "
                "model whose tokenizer has an end, such as </s> or <|endoftext|>, or for classes, "
                "numbers and choices say data.task_tokens = true, which adds one"
            )
        return cls(start, (between,), (end,), end if tokenizer.pad_id is None else tokenizer.pad_id)

    def marks(self, texts: int) -> int:
        """Return the number of marks in a row of ``texts`` texts."""
        return len(self.start) + (texts - 1) * len(self.between) + len(self.end)

    def around(self, first: NDArray[np.int32], second: NDArray[np.int32] | None = None) -> NDArray[np.int32]:
        """Return the row of one text or two, int32."""
        parts = (
            (self.start, first, self.end)
            if second is None
            else (self.start, first, self.between, second, self.end)
        )
        return np.concatenate([np.asarray(ids, np.int32) for ids in parts])


@dataclass(frozen=True, kw_only=True)
class MarkedRows(TokenRows):
    """Rows of tokens with their marks; see :class:`~wordloom.data.batches.sequences.TokenRows`.

    Attributes:
        seconds: [N] int64, at which token of its row a second text begins; the row's length if there is none.
        cut_rows: the numbers of the rows that were truncated.
    """

    seconds: NDArray[np.int64]
    cut_rows: tuple[int, ...] = ()


class MarkedInputs(NamedTuple):
    """B rows, padded on the right to the longest, T.

    Attributes:
        tokens: ``[B, T]`` int64.
        segments: ``[B, T]`` int64, 1 from the second text on; None for a model without segments.
        attend: ``[B, T]`` bool, True where there is a token.
    """

    tokens: Tensor
    segments: Tensor | None
    attend: Tensor


def marked_rows(
    tokenizer: Any,
    rows: Iterable[tuple[str, ...]],
    frame: Frame,
    *,
    longest: int,
    too_long: Literal["error", "cut"] = "error",
    place: Callable[[int], str] | None = None,
    allowed: str = _OF_RECIPE,
) -> MarkedRows:
    """Tokenize rows of one text or two; special tokens written in them are ordinary text.

    Args:
        longest: tokens of a row at most, marks included.
        too_long: what happens to a longer row: an error, or ("cut") its longer text is truncated.
        place: names a row by its number in an error.
        allowed: the part of the error that says what sets the limit of ``{longest}`` tokens.

    Raises DataError for an empty text, one that is too long, and more than two.
    """
    framed: list[NDArray[np.int32]] = []
    seconds: list[int] = []
    truncated: list[int] = []
    unknown, rows = 0, iter(rows)

    def where() -> str:
        return f"row {len(framed)}" if place is None else place(len(framed))

    while batch := list(islice(rows, _TEXTS)):
        encoded = iter(tokenizer.encode_batch([text for row in batch for text in row], specials="text"))
        for row in batch:
            texts = [np.asarray(next(encoded), np.int32) for _ in row]
            if not 1 <= len(row) <= 2:
                raise DataError(f"{where()}: has {len(row)} texts; a row has one or two")
            for number, text in enumerate(row, 1):
                if not text.strip():
                    which = "its text" if len(row) == 1 else f"text {number} of its two"
                    raise DataError(f"{where()}: {which} is empty; give one, or leave the row out")
            room = longest - frame.marks(len(row))
            if sum(map(len, texts)) > room:
                if too_long == "error":
                    raise DataError(
                        f"{where()}: has {sum(map(len, texts)) + frame.marks(len(row)):,} tokens and "
                        + allowed.format(longest=f"{longest:,}")
                    )
                texts = _shortened(texts, max(room, 0))
                truncated.append(len(framed))
            if tokenizer.unk_id is not None:
                unknown += sum(int((text == tokenizer.unk_id).sum()) for text in texts)
            begin = len(frame.start) + len(texts[0]) + len(frame.between)
            framed.append(frame.around(*texts))
            seconds.append(begin if len(texts) == 2 else len(framed[-1]))
    ids, offsets = stacked_rows(framed)
    return MarkedRows(
        ids=ids,
        offsets=offsets,
        unknown=unknown,
        cut=len(truncated),
        seconds=np.asarray(seconds, np.int64),
        cut_rows=tuple(truncated),
    )


def _shortened(texts: Sequence[NDArray[np.int32]], room: int) -> list[NDArray[np.int32]]:
    """Truncate one text or two to ``room`` tokens together, the longer text first."""
    if len(texts) == 1:
        return [texts[0][:room]]
    shorter = min(map(len, texts))
    # the longer text is truncated to the length of the shorter, then both in turns, the second first
    keep = [min(len(text), max(room - shorter, (room + 1 - i) // 2)) for i, text in enumerate(texts)]
    return [text[:length] for text, length in zip(texts, keep, strict=True)]


class MarkedLabelBatches(SequenceLabelBatches):
    """Rows of texts between marks with their classes; the inputs are :class:`MarkedInputs`.

    Args:
        segments: whether the model has segments, which mark the second text.
        settings: those of :class:`~wordloom.data.batches.sequences.SequenceLabelBatches`.
    """

    def __init__(
        self,
        rows: MarkedRows,
        targets: NDArray[np.int64] | NDArray[np.float32],
        *,
        segments: bool,
        **settings: Any,
    ) -> None:
        super().__init__(rows, targets, **settings)
        self.segments = segments
        self._seconds = rows.seconds

    def _inputs(self, rows: NDArray[np.int64]) -> MarkedInputs:  # type: ignore[override]
        tokens, attend = super()._inputs(rows)
        if not self.segments:
            return MarkedInputs(tokens, None, attend)
        from_second = np.arange(tokens.shape[1]) >= self._seconds[rows][:, None]  # [B, T]
        return MarkedInputs(tokens, torch.from_numpy(from_second).long() * attend, attend)

    def _identity(self) -> tuple[list[int], tuple[NDArray[Any], ...]]:
        settings, arrays = super()._identity()
        return [*settings, self.segments], (*arrays, self._seconds)


class BothOrders(MarkedLabelBatches):
    """Rows of two texts in both orders (Radford et al. 2018, section 3.3).

    The inputs are :class:`MarkedInputs` of ``[B, 2, T]``: the row, and the row with its texts exchanged.

    Args:
        turned: the rows with exchanged texts, each as long as the row of ``rows``.
        settings: those of :class:`MarkedLabelBatches`.
    """

    def __init__(
        self,
        rows: MarkedRows,
        targets: NDArray[np.int64] | NDArray[np.float32],
        *,
        turned: MarkedRows,
        segments: bool,
        **settings: Any,
    ) -> None:
        super().__init__(rows, targets, segments=segments, **settings)
        self.tokens_per_sample *= 2
        none = np.zeros(len(targets), np.int64)
        self._turned = MarkedLabelBatches(
            turned, none, segments=segments, pad_id=self.pad_id, order="sequential"
        )

    def _inputs(self, rows: NDArray[np.int64]) -> MarkedInputs:  # type: ignore[override]
        here, there = super()._inputs(rows), self._turned._inputs(rows)
        segments = None
        if here.segments is not None and there.segments is not None:
            segments = torch.stack((here.segments, there.segments), 1)
        return MarkedInputs(
            torch.stack((here.tokens, there.tokens), 1), segments, torch.stack((here.attend, there.attend), 1)
        )
