"""Question answering: the span of a text that answers a question about it.

The head of Devlin et al. 2018, section 4.2, trained and scored on questions in SQuAD's format.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from wordloom.data.batches.spans import AnswerWindows, question_windows
from wordloom.data.rows.squad import Question, questions
from wordloom.errors import RecipeError
from wordloom.evaluate import Scores
from wordloom.evaluate.forward import row_outputs
from wordloom.evaluate.question_answering import Found, answer_scores, find_answers
from wordloom.evaluate.reading import tokenizer_name
from wordloom.objectives import answer_loss
from wordloom.recipe import Recipe
from wordloom.recipe.data import QuestionData
from wordloom.run.models.heads.head import Place, ReadRows, TokenizedHead, values_in
from wordloom.run.models.text_readers import order_of
from wordloom.run.prepare import divided, recipe_of
from wordloom.text import Tokenizer


@dataclass(kw_only=True)
class QuestionAnswerer(TokenizedHead[Found]):
    """A question-answering model and its tokenizer, as :func:`wordloom.load` returns them.

    :meth:`predict` takes :class:`~wordloom.data.Question`. ``too_long`` is about questions; texts of any
    length are read in windows.

    Attributes:
        max_seq_len, doc_stride, max_query: how texts are divided into windows; see
            :func:`wordloom.data.question_windows`.
        no_answer: whether the model may find that a text holds no answer.
        threshold: then, the answer is empty where "no answer" scores better than the best span by more.
        n_best: spans kept of each question.
        max_answer_tokens: tokens of an answer at most.
    """

    task = "question_answering"
    noun = "question"

    max_seq_len: int | None = 384
    doc_stride: int = 128
    max_query: int = 64
    no_answer: bool = False
    threshold: float = 0.0
    n_best: int = 20
    max_answer_tokens: int = 30

    @classmethod
    def of(cls, folder: Path, model: Any, tokenizer: Tokenizer | None) -> Self:
        """Return the head of the ``model`` in ``folder``, which reads windows as its recipe says.

        Without a recipe the windows are those of BERT's own script.
        """
        head = super().of(folder, model, tokenizer)
        head.max_seq_len = min(384, head.config.max_seq_len)
        head.max_query = min(head.max_query, head.max_seq_len // 2)
        recipe = recipe_of(folder)
        if recipe is not None and recipe.train.objective == cls.task:
            head = replace(head.with_settings(recipe), too_long="error")
        return head

    def with_settings(self, recipe: Recipe) -> Self:
        d = recipe.data_as(QuestionData)
        head = super().with_settings(recipe)
        return replace(head, doc_stride=d.doc_stride, max_query=d.max_query, no_answer=d.no_answer)

    @classmethod
    def rows_of(cls, recipe: Recipe, counts: Counter[str]) -> dict[str, list[Question]]:
        """Return the recipe's questions; those about the last texts are held out if no file is named."""
        d = recipe.data_as(QuestionData)

        def read(sources: Any) -> list[Question]:
            settings: dict[str, Any] = {"misplaced": d.misplaced, "encoding_errors": d.row_errors}
            rows = list(questions(sources, counts=counts, **settings))
            for question in rows if sources == d.train else ():
                if question.is_impossible and not d.no_answer:
                    raise RecipeError(
                        f"{question.place}: has no answer, and data.no_answer is false; set it to true to "
                        "train on questions without an answer"
                    )
            return rows

        noun = "questions (questions about one text stay in one part)"
        return divided(recipe, read, noun, lambda question: question.context)

    @classmethod
    def texts_of(cls, rows: Sequence[Question]) -> Iterator[str]:
        return (text for question in rows for text in (question.context, question.question))

    def windows(self, rows: Sequence[Question], *, targets: bool = False, part: str = "") -> AnswerWindows:
        """Return the questions and their texts as the model reads them."""
        assert self.max_seq_len is not None
        return question_windows(
            self.text_tokenizer,
            rows,
            max_seq_len=self.max_seq_len,
            doc_stride=self.doc_stride,
            max_query=self.max_query,
            too_long=self.too_long,
            targets=targets,
            frame=self.reader.frame,
            part=part,
        )

    def read(self, rows: Sequence[Question], *, part: str = "", seed: int | None = None) -> ReadRows:
        windows = self.windows(rows, targets=True, part=part)
        batches = windows.batches(segments=self.reader.segments, **order_of(seed, self.alike))
        return ReadRows(batches, windows.ledger, windows, windows.ledger.text)

    def read_inputs(self, inputs: list[Question], place: Place) -> ReadRows:
        windows = self.windows(inputs)
        return ReadRows(
            windows.batches(segments=self.reader.segments, order="length"), windows.ledger, windows
        )

    def answers(self, read: ReadRows) -> list[Found]:
        return self._found(read.source, self._logits(read)[0])

    def ask(self, question: str, context: str, **settings: Any) -> Found:
        """Return the answer to one question about one text; ``settings`` are attributes such as n_best."""
        row = Question("1", "", context, question, (), False, "the question")
        return replace(self, **settings).predict([row])[0]

    def evaluate(self, rows: Sequence[Question]) -> Scores:
        """Return exact match and F1 of ``rows``; see :func:`wordloom.evaluate.answer_scores`.

        A question that is too long is truncated, as in the official script, and a note reports how many were.
        """
        return TokenizedHead.evaluate(replace(self, too_long="cut"), rows)

    def scores(self, read: ReadRows, settings: dict[str, object]) -> Scores:
        """Return exact match and F1, and with ``no_answer`` those at the best thresholds."""
        # The best span is needed beside "no answer", which takes the place of one.
        several = replace(self, n_best=max(2, self.n_best))
        answers = several._found(read.source, self._logits(read)[0])
        best = {one.id: next(span.text for span in one.spans if span.text) for one in answers}
        margins = {one.id: one.no_answer for one in answers if one.no_answer is not None}
        scores = answer_scores(
            read.source.questions,
            best,
            no_answer=margins if self.no_answer else None,
            threshold=self.threshold if self.no_answer else None,
            settings=settings,
        )
        notes = scores.notes
        if scores.counts["impossible"] and not self.no_answer:
            notes = (
                *notes,
                f"{scores.counts['impossible']:,} questions have no answer, and this model always gives one: "
                "no_answer=True (--threshold 0) lets it give none",
            )
        return replace(scores, notes=notes)

    def metrics(self, read: ReadRows) -> dict[str, float]:
        logits, loss = self._logits(read)
        predictions = {one.id: one.text for one in self._found(read.source, logits)}
        scores = answer_scores(read.source.questions, predictions)
        return {"loss": loss, **values_in(scores, ("exact_match", "f1"))}

    @property
    def signature(self) -> dict[str, object]:
        return {
            "tok": tokenizer_name(self.text_tokenizer),
            "window": self.max_seq_len,
            "stride": self.doc_stride,
            "query": self.max_query,
        }

    def _found(self, windows: AnswerWindows, logits: list[NDArray[Any]]) -> list[Found]:
        return find_answers(
            windows,
            [row[:, 0] for row in logits],
            [row[:, 1] for row in logits],
            n_best=self.n_best,
            max_answer_tokens=self.max_answer_tokens,
            no_answer=self.no_answer,
            no_answer_threshold=self.threshold,
        )

    def _logits(self, read: ReadRows) -> tuple[list[NDArray[Any]], float]:
        """Return the logits of each window [T or more, 2], and the mean loss; NaN without targets."""
        batches = read.batches
        logits: list[NDArray[Any]] = [np.empty((0, 2))] * batches.samples_per_epoch
        total = count = 0.0
        for rows, batch, output in row_outputs(self.model, batches):  # [B, T, 2]
            loss = answer_loss(output, batch)
            total, count = total + float(loss.total), count + int(loss.count)
            for row, row_logits in zip(rows.tolist(), output.float(), strict=True):
                logits[row] = row_logits.numpy()
        return logits, total / count if count else float("nan")
