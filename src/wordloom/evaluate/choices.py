"""Multiple-choice questions, answered by the choice that a causal model finds most likely.

The likelihood of a choice is that of its tokens behind the question.  EleutherAI's harness reports it summed
(``acc``) and per character of the choice (``acc_norm``), because sums favour short choices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from wordloom.errors import EvaluationError
from wordloom.evaluate.continuations import ContinuationReader
from wordloom.evaluate.forward import check_finite
from wordloom.evaluate.likelihood import Stretch, likelihoods
from wordloom.evaluate.reading import check_vocabulary
from wordloom.evaluate.score import Scores, share_score
from wordloom.models import context_limit

if TYPE_CHECKING:
    from wordloom.data import ChoiceRow
    from wordloom.text import Tokenizer


def choices(
    model: Any,
    tokenizer: Tokenizer,
    rows: Iterable[ChoiceRow],
    *,
    batch_size: int | None = None,
    progress: Callable[[bool], None] | None = None,
) -> Scores:
    """Return ``accuracy``, by summed log-probabilities, and ``accuracy_per_character``, by their mean.

    The texts are those of :attr:`~wordloom.data.ChoiceRow.pairs`. Question and choice are joined by one
    space, or by a line break and "Answer:" if the question begins with "Question:" and does not end with
    "Answer:". The first of equally likely choices is taken. A question that is too long loses its beginning;
    a note counts these.

    Args:
        rows: questions with answers.
        batch_size: choices per forward pass; None: about 8,192 tokens.
        progress: called after every question with whether its most likely choice was right.

    Raises:
        EvaluationError: no question, one without an answer or with a choice that exceeds the window; a
            tokenizer of another model.
        NonFiniteError: a log-probability is not finite.
        TokenizerError: the tokenizer refuses a text.
    """
    check_vocabulary(model, tokenizer)
    reader = ContinuationReader(tokenizer, context_limit(model.config))
    asked: list[ChoiceRow] = []

    def stretches() -> Iterator[tuple[int, Stretch]]:
        for row in rows:
            asked.append(row)
            if row.answer is None:
                raise EvaluationError(f"{row.place}: has no answer, which scoring needs; give it one")
            for context, choice in _pairs(row):
                yield len(asked) - 1, reader.stretch(*_joined(context, choice), place=row.place)

    right = right_per_character = 0
    scored = likelihoods(model, stretches(), batch_size=batch_size or reader.rows)
    for number, group in groupby(scored, key=lambda each: each[0]):
        row = asked[number]
        nats = np.array([float(likelihood.nats.sum()) for _, likelihood in group])
        check_finite(nats)
        is_right = int(nats.argmin()) == row.answer
        right += is_right
        lengths = np.array([len(choice) for _, choice in _pairs(row)])
        right_per_character += int((nats / lengths).argmin()) == row.answer
        if progress is not None:
            progress(is_right)
    if not asked:
        raise EvaluationError("no question given; data sets of questions are arc-easy/eval, copa, piqa ...")
    n, settings = len(asked), reader.settings(model)
    chance = sum(1 / len(row.choices) for row in asked) / n
    notes = [f"a guess is right in {chance:.2%} of the questions"]
    if reader.truncated:
        notes.append(f"{reader.truncated:,} texts are longer than the window and lost their beginning")
    return Scores(
        (
            share_score("accuracy", right, n, settings),
            share_score("accuracy_per_character", right_per_character, n, settings),
        ),
        {"questions": n, "right": right, "right_per_character": right_per_character, "cut": reader.truncated},
        tuple(notes),
        {"chance": chance},
    )


def _pairs(row: ChoiceRow) -> tuple[tuple[str, str], ...]:
    """Return the contexts and the texts that are scored.

    Words that all choices continue belong to the context, so that they do not count as characters of a
    choice.
    """
    if row.beginning and not row.continuation:
        context = f"{row.context} {row.beginning}".strip()
        return tuple((context, choice) for choice in row.choices)
    return row.pairs


def _joined(context: str, choice: str) -> tuple[str, str]:
    """Return the context with what stands between it and the choice."""
    if context.startswith("Question:") and not context.rstrip().endswith("Answer:"):
        return f"{context}\nAnswer:", choice
    return context, choice
