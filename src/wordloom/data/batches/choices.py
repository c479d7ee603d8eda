"""Batches of multiple-choice questions: a row of tokens for each choice, and the right choice's number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from wordloom.data.batches.causal import IGNORE
from wordloom.data.batches.framed import Frame, MarkedInputs, MarkedLabelBatches, MarkedRows, marked_rows
from wordloom.data.batches.labelled import LabelBatches
from wordloom.data.batches.sequences import padded_passes
from wordloom.data.rows.choices import ChoiceRow


def choice_tokens(
    tokenizer: Any,
    questions: Sequence[ChoiceRow],
    frame: Frame,
    *,
    longest: int,
    too_long: Literal["error", "cut"] = "error",
    **advice: str,
) -> MarkedRows:
    """Return the choices of all ``questions`` as rows of tokens, one row for each choice.

    ``advice`` and the errors are those of :func:`marked_rows`.
    """
    pairs = [pair for question in questions for pair in question.pairs]
    choices = [(question, n) for question in questions for n in range(1, len(question.choices) + 1)]

    def place(row: int) -> str:
        question, choice = choices[row]
        return f"{question.place}, choice {choice}"

    return marked_rows(tokenizer, pairs, frame, longest=longest, too_long=too_long, place=place, **advice)


class ChoiceBatches(LabelBatches):
    """Questions with their answers; see :class:`LabelBatches`.

    The inputs are :class:`~wordloom.data.batches.framed.MarkedInputs` of shape ``[B, K, T]``, where K is the
    largest number of choices in the batch. A choice that a question does not have attends to nothing. The
    targets [B] are the numbers of the right choices, or IGNORE.

    Args:
        rows: the tokens of :func:`choice_tokens`.
        segments: whether the model has segments, which mark the second text.
        pad_id: the id behind the end of a row.
        order: that of :class:`LabelBatches`.
    """

    def __init__(
        self,
        questions: Sequence[ChoiceRow],
        rows: MarkedRows,
        *,
        segments: bool,
        pad_id: int = 0,
        seed: int = 0,
        order: Literal["permutation", "sequential", "length"] = "permutation",
    ) -> None:
        answers = [IGNORE if question.answer is None else question.answer for question in questions]
        places = [question.place for question in questions]
        super().__init__(np.array(answers, np.int64), places=places, seed=seed, order=order)
        self.pad_id = pad_id
        self.tokens_per_sample = float(rows.offsets[-1]) / len(questions)
        self._choices = np.array([len(question.choices) for question in questions], np.int64)
        self._begins = np.cumsum(self._choices) - self._choices
        self._longest = np.maximum.reduceat(rows.lengths, self._begins)
        flat = np.zeros(len(rows.lengths), np.int64)
        self._rows = MarkedLabelBatches(rows, flat, segments=segments, pad_id=pad_id, order="sequential")

    def _sizes(self) -> NDArray[np.int64]:
        return self._longest * self._choices

    def _inputs(self, rows: NDArray[np.int64]) -> MarkedInputs:  # type: ignore[override]
        counts, begins = self._choices[rows][:, None], self._begins[rows][:, None]
        choice = np.arange(counts.max())  # [K]
        exists = choice < counts  # [B, K]
        inputs = self._rows._inputs(np.where(exists, begins + choice, begins).ravel())  # [B * K, T]
        attend = inputs.attend & torch.from_numpy(exists.ravel())[:, None]
        tokens = inputs.tokens.masked_fill(~attend, self.pad_id)
        segments = None if inputs.segments is None else (inputs.segments * attend).view(*exists.shape, -1)
        return MarkedInputs(tokens.view(*exists.shape, -1), segments, attend.view(*exists.shape, -1))

    def passes(self) -> Iterator[tuple[int, int]]:
        """Yield ``start, count`` of batches that cover all questions once; see :func:`padded_passes`."""

        def widths(rows: NDArray[np.int64]) -> NDArray[np.int64]:
            return np.maximum.accumulate(self._longest[rows]) * np.maximum.accumulate(self._choices[rows])

        return padded_passes(self, widths)

    def _identity(self) -> tuple[list[int], tuple[NDArray[Any], ...]]:
        settings, arrays = self._rows._identity()
        return settings, (*arrays, self._choices)
