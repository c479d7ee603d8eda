"""Multiple choice: the right one of several choices for each question.

The head of Devlin et al. 2018, section 4.4; for a causal model, Radford et al. 2018, section 3.3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wordloom.data.batches.causal import IGNORE
from wordloom.data.batches.choices import ChoiceBatches, choice_tokens
from wordloom.data.ledgers import RowDigest, RowLedger
from wordloom.data.rows.choices import ChoiceRow, choice_rows
from wordloom.errors import EvaluationError
from wordloom.evaluate import RatioStatistics, Scores
from wordloom.evaluate.forward import check_finite, row_outputs
from wordloom.evaluate.score import share_score
from wordloom.recipe import Recipe
from wordloom.run.models.heads.head import Place, ReadRows, TokenizedHead
from wordloom.run.prepare import divided


class Choice(NamedTuple):
    """The likeliest choice of a question, by its number from 0.

    ``probabilities`` are those of all choices; ``truncated`` says whether a choice, with its question, was
    longer than a row and lost its end.
    """

    number: int
    probability: float
    probabilities: tuple[float, ...]
    truncated: bool = False


@dataclass(kw_only=True)
class MultipleChoice(TokenizedHead[Choice]):
    """A multiple-choice model and its tokenizer, as :func:`wordloom.load` returns them.

    :meth:`predict` takes :class:`~wordloom.data.ChoiceRow`; of equally likely choices the first counts.
    """

    task = "multiple_choice"
    noun = "question"

    @classmethod
    def rows_of(cls, recipe: Recipe, counts: Counter[str]) -> dict[str, list[ChoiceRow]]:

        def read(sources: Any) -> list[ChoiceRow]:
            return list(choice_rows(sources, answered=True, encoding_errors=recipe.data.row_errors))

        return divided(recipe, read, "questions")

    @classmethod
    def texts_of(cls, rows: Sequence[ChoiceRow]) -> Iterator[str]:
        return (text for row in rows for pair in row.pairs for text in pair)

    def read(self, rows: Sequence[ChoiceRow], *, part: str = "", seed: int | None = None) -> ReadRows:
        reader = self.reader
        tokens = choice_tokens(
            reader.tokenizer,
            rows,
            reader.frame,
            longest=reader.most_tokens,
            too_long=reader.too_long,
            **reader.length_advice,
        )
        batches = ChoiceBatches(
            rows,
            tokens,
            segments=reader.segments,
            pad_id=reader.frame.pad,
            seed=seed or 0,
            order="length" if seed is None else "permutation",
        )
        counts = [len(row.choices) for row in rows]
        question_of = np.repeat(np.arange(len(rows)), counts)  # [choices]
        truncated = frozenset(question_of[list(tokens.cut_rows)].tolist())
        ledger = RowLedger(
            part=part,
            rows=len(rows),
            noun="questions",
            terms=len(tokens.ids),
            unknown=tokens.unknown,
            cut=len(truncated),
            counts={"choices": len(tokens.lengths)},
            labels={f"{n} choices": often for n, often in sorted(Counter(counts).items())},
            text=str(RowDigest((row.pairs, row.answer) for row in rows)),
        )
        return ReadRows(batches, ledger, (rows, truncated))

    def read_inputs(self, inputs: list[ChoiceRow], place: Place) -> ReadRows:
        return self.read(inputs)

    def answers(self, read: ReadRows) -> list[Choice]:
        (questions, truncated), (logits, _) = read.source, self._logits(read)
        answers = []
        for number, (row, row_logits) in enumerate(zip(questions, logits, strict=True)):
            shares = row_logits[: len(row.choices)]
            shares = np.exp(shares - shares.max())
            shares /= shares.sum()
            best = int(shares.argmax())
            answers.append(Choice(best, float(shares[best]), tuple(shares.tolist()), number in truncated))
        return answers

    def ask(self, question: str, choices: Sequence[str]) -> Choice:
        """Return the likeliest of ``choices`` to follow one question."""
        return self.predict([ChoiceRow(question, "", tuple(choices), None, "the question", 1)])[0]

    def scores(self, read: ReadRows, settings: dict[str, object]) -> Scores:
        """Return ``accuracy`` (with Wilson's interval) and ``loss`` (nats per question).

        Raises EvaluationError if no question has an answer.
        """
        answered = [row for row in read.source[0] if row.answer is not None]
        if not answered:
            raise EvaluationError(
                "no question of these has an answer to score by; give at least one that has"
            )
        nats, right = self._nats(read)
        n, hits = len(nats), int(right.sum())
        loss = RatioStatistics.of(nats, np.ones(n)).score("loss", settings, "rows")
        scores = (share_score("accuracy", hits, n, settings), loss)
        counts = {"rows": n, "right": hits, "nats": float(nats.sum()), "tokens": read.ledger.terms}
        by_chance = float(np.mean([1 / len(row.choices) for row in answered]))
        return Scores(scores, counts, (f"by chance: {by_chance:.4f} of the questions",))

    def metrics(self, read: ReadRows) -> dict[str, float]:
        nats, right = self._nats(read)
        return {"loss": float(nats.mean()), "accuracy": float(right.mean())}

    def _nats(self, read: ReadRows) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return the loss of each of N questions with an answer, and whether the model chose it."""
        logits, answers = self._logits(read)
        known = [(row, right) for row, right in zip(logits, answers.tolist(), strict=True) if right != IGNORE]
        nats = np.array([np.logaddexp.reduce(row) - row[right] for row, right in known])
        return nats, np.array([int(row.argmax()) == right for row, right in known])

    def _logits(self, read: ReadRows) -> tuple[list[NDArray[np.float64]], NDArray[np.int64]]:
        """Return the logits of each question, -inf behind its own choices, and the numbers of the answers."""
        n = read.batches.samples_per_epoch
        logits: list[NDArray[np.float64]] = [np.empty(0)] * n
        answers = np.full(n, IGNORE, np.int64)
        for rows, batch, output in row_outputs(self.model, read.batches):  # [B, K]
            check_finite(output[batch.inputs[2].any(-1)])  # type: ignore[union-attr]  # of the choices there
            answers[rows] = batch.targets.numpy()
            for row, row_logits in zip(rows.tolist(), output.numpy(), strict=True):
                logits[row] = row_logits
        return logits, answers
