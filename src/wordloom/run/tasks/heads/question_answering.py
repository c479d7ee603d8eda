"""Answers out of texts: a question-answering head, trained on SQuAD's questions and asked others (Devlin et
al. 2018, section 4.2)."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray

from wordloom.data.batches.causal import to_device
from wordloom.data.batches.framed_rows import Frame
from wordloom.data.batches.spans import AnswerWindows, question_windows
from wordloom.data.rows.squad import Question, questions
from wordloom.errors import RecipeError
from wordloom.evaluate import Scores
from wordloom.evaluate.answers import Found, answer_scores, find_answers
from wordloom.evaluate.reading import tokenizer_name
from wordloom.models import RobertaConfig, TaskConfig
from wordloom.nn.evaluating import evaluating
from wordloom.objectives import question_answering
from wordloom.recipe import Recipe, load_recipe
from wordloom.recipe.data import QuestionData
from wordloom.run.models.headed_model import HeadedModel
from wordloom.run.progress import TrainingProgress
from wordloom.run.tasks.heads.fine_tuning import given_tokenizer, head_config, head_parts
from wordloom.run.tasks.labelled import check_apart, some_or_error
from wordloom.run.tasks.task import Task, figures_in
from wordloom.text import Tokenizer
from wordloom.weights import save_model

__all__ = ["Answerer", "answering_task", "question_parts"]


@dataclass(kw_only=True)
class Answerer(HeadedModel):
    """A question-answering model and its tokenizer, as :func:`wordloom.load` gives them.

    Attributes:
        max_seq_len, doc_stride, max_query: how texts are divided into windows; see
            :func:`wordloom.data.question_windows`.
        no_answer: whether a question may have none, as the model has learnt.
    """

    max_seq_len: int = 384
    doc_stride: int = 128
    max_query: int = 64
    no_answer: bool = False

    @classmethod
    def of(cls, folder: Path, model: Any, tokenizer: Tokenizer | None) -> Self:
        """``model`` reading as the recipe in its ``folder`` says, or where there is none, as BERT's did."""
        made = super().of(folder, model, tokenizer)
        made.max_seq_len = min(made.max_seq_len, made.config.max_seq_len)
        made.max_query = min(made.max_query, made.max_seq_len // 2)
        if (folder / "recipe.toml").exists():
            recipe = load_recipe(str(folder / "recipe.toml"))
            if recipe.train.objective == "question_answering":
                d = recipe.data_as(QuestionData)
                made.max_seq_len, made.no_answer = recipe.train.seq_len, d.no_answer
                made.doc_stride, made.max_query = d.doc_stride, d.max_query
        return made

    def windows(
        self,
        asked: Iterable[Question],
        *,
        too_long: Literal["error", "cut"] = "error",
        targets: bool = False,
    ) -> AnswerWindows:
        """``asked`` as the model reads them."""
        return question_windows(
            self.text_tokenizer,
            asked,
            max_seq_len=self.max_seq_len,
            doc_stride=self.doc_stride,
            max_query=self.max_query,
            too_long=too_long,
            targets=targets,
            frame=_frame(self.text_tokenizer, self.config),
        )

    def answer(
        self, windows: AnswerWindows, *, n_best: int = 20, max_answer_tokens: int = 30, threshold: float = 0.0
    ) -> list[Found]:
        """The answer to each question, and the ``n_best`` there are; see
        :func:`wordloom.evaluate.find_answers`, whose no_answer_threshold is ``threshold``."""
        logits, _ = _logits(self.model, windows, self.config)
        return find_answers(
            windows,
            [row[:, 0] for row in logits],
            [row[:, 1] for row in logits],
            n_best=n_best,
            max_answer_tokens=max_answer_tokens,
            no_answer=self.no_answer,
            no_answer_threshold=threshold,
        )

    def ask(self, question: str, context: str, **settings: Any) -> Found:
        """The answer to one question out of one text; ``settings`` as for :meth:`answer`."""
        one = Question("1", "", context, question, (), False, "the question")
        return self.answer(self.windows([one]), **settings)[0]

    def evaluate(self, asked: Sequence[Question], *, threshold: float = 0.0) -> Scores:
        """Exact match and F1 on ``asked``; see :func:`wordloom.evaluate.answer_scores`.

        Where the model may give none (``no_answer``), it does so above ``threshold``, and the thresholds that
        would have been best are told. A question that is too long is cut, as the official script does, and a
        note says how many were.
        """
        windows = self.windows(asked, too_long="cut")
        found = self.answer(windows)
        best = {one.id: next(span.text for span in one.spans if span.text) for one in found}
        scores = answer_scores(
            asked,
            best,
            no_answer=_margins(found) if self.no_answer else None,
            threshold=threshold if self.no_answer else None,
            settings={
                "rows": _digest(asked)[:8],
                **_signature(self.text_tokenizer, windows),
                "dtype": self.dtype,
            },
        )
        ledger, notes = windows.ledger, list(scores.notes)
        if ledger.cut:
            notes.append(
                f"cut: {ledger.cut:,} questions are longer than {ledger.max_query} tokens and lost their end"
            )
        if scores.counts["impossible"] and not self.no_answer:
            notes.append(
                f"{scores.counts['impossible']:,} questions have no answer, and this model always gives one: "
                "no_answer=True (--threshold 0) lets it give none"
            )
        return replace(scores, notes=tuple(notes))


def _margins(found: Sequence[Found]) -> dict[str, float]:
    return {one.id: one.no_answer for one in found if one.no_answer is not None}


def _frame(tokenizer: Tokenizer, config: TaskConfig) -> Frame:
    if not config.encodes:
        return Frame.of_causal(tokenizer)
    return Frame.of_encoder(tokenizer, doubled=isinstance(config.body, RobertaConfig))


def _segments(config: TaskConfig) -> bool:
    return getattr(config.body, "type_vocab_size", 1) > 1


def _signature(tokenizer: Tokenizer, windows: AnswerWindows) -> dict[str, object]:
    ledger = windows.ledger
    return {
        "tok": tokenizer_name(tokenizer),
        "window": ledger.max_seq_len,
        "stride": ledger.doc_stride,
        "query": ledger.max_query,
    }


def _digest(asked: Sequence[Question]) -> str:
    """SHA-256 (hex) of questions with their texts and all their answers, which scores depend on."""
    facts = [(one.id, one.context, one.question, one.answers, one.is_impossible) for one in asked]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _logits(model: Any, windows: AnswerWindows, config: TaskConfig) -> tuple[list[NDArray[Any]], float]:
    """The logits of each window [T or more, 2], and the mean loss where there are targets (else NaN)."""
    device = next(model.parameters()).device
    batches = windows.batches(segments=_segments(config), order="length")
    found: list[NDArray[Any]] = [np.empty((0, 2))] * len(windows.windows)
    total = count = 0.0
    with evaluating(model):
        for start, n in batches.passes():
            batch = to_device(batches.batch(start, n), device)
            made = _Once(model)
            loss = question_answering(made, batch)
            total, count = total + float(loss.total), count + int(loss.count)
            for row, logits in zip(batches.rows(start, n).tolist(), made.last.float().cpu(), strict=True):
                found[row] = logits.numpy()
    return found, total / count if count else float("nan")


class _Once:
    """``model`` called once, which keeps what it made."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.last = torch.empty(0)

    def __call__(self, *inputs: Any) -> torch.Tensor:
        self.last = self.model(*inputs)
        return self.last


# -- training --------------------------------------------------------------------------------------------


def answering_task(recipe: Recipe, given: Path | None, progress: TrainingProgress) -> Task:
    """Spans of texts that answer the recipe's questions; ``given`` is a checkpoint to begin with."""
    s, d = recipe.train, recipe.data_as(QuestionData)
    moved = Counter[str]()
    training, held_out = question_parts(recipe, moved)
    progress.say(f"{count:,} {what}" for what, count in moved.items())
    texts = (text for one in training for text in (one.context, one.question))
    tokenizer = given_tokenizer(recipe, given, texts, progress, "questions and their texts")
    config = head_config(recipe, tokenizer, given, task="question_answering")

    def read(asked: Sequence[Question]) -> AnswerWindows:
        return question_windows(
            tokenizer,
            asked,
            max_seq_len=s.seq_len,
            doc_stride=d.doc_stride,
            max_query=d.max_query,
            too_long=d.too_long,
            frame=_frame(tokenizer, config),
        )

    train = read(training)
    progress.say(f"train: {line}" for line in train.ledger.lines())
    validation = read(held_out) if held_out else None
    if validation is not None:
        progress.say(f"validation: {line}" for line in validation.ledger.lines())
    batches = train.batches(segments=_segments(config), seed=recipe.seed, alike=s.batch_size)
    marks = [f"{batches.fingerprint}{_digest(training)}"]
    if validation is not None:
        marks.append(_digest(held_out))
        marks.append(validation.batches().fingerprint)
    parts = {"train": train, **({} if validation is None else {"validation": validation})}

    def save(model: Any, folder: Path, overwrite: bool) -> None:
        save_model(model, folder, tokenizer=tokenizer, overwrite=overwrite)

    return Task(
        settings=s,
        batches=batches,
        fingerprints={
            "data": hashlib.sha256("/".join(marks).encode()).hexdigest(),
            "tokenizer": tokenizer.fingerprint,
        },
        ledger=json.dumps({part: each.ledger.as_dict() for part, each in parts.items()}, indent=1),
        evaluate=None if validation is None else _evaluator(validation, config, d.no_answer),
        scored={} if validation is None else {"text": marks[1][:8], **_signature(tokenizer, validation)},
        save=save,
        **head_parts(recipe, config, given, progress, tokens=train.ledger.tokens / train.ledger.windows),
    )


def question_parts(
    recipe: Recipe, moved: Counter[str] | None = None
) -> tuple[list[Question], list[Question]]:
    """The questions to learn from, and those held out: whole texts, the last ones, where none are named.

    ``moved`` counts answers that were not where they should be, see
    :func:`wordloom.data.rows.squad.questions`.
    """
    d = recipe.data_as(QuestionData)

    def read(sources: Any) -> list[Question]:
        return list(questions(sources, misplaced=d.misplaced, encoding_errors=d.row_errors, counts=moved))

    check_apart(recipe)
    every = read(d.train)
    for one in every:
        if one.is_impossible and not d.no_answer:
            raise RecipeError(
                f"{one.place}: has no answer, and data.no_answer is false; set it to true to learn of such"
            )
    if d.validation is not None:
        return every, some_or_error(read(d.validation), recipe, "questions")
    if not d.validation_fraction:
        return every, []
    texts = list(dict.fromkeys(one.context for one in every))
    last = set(texts[len(texts) - int(len(texts) * d.validation_fraction) :])
    held_out = some_or_error(
        [q for q in every if q.context in last], recipe, "questions, which go by whole texts"
    )
    return [q for q in every if q.context not in last], held_out


def _evaluator(
    validation: AnswerWindows, config: TaskConfig, no_answer: bool
) -> Callable[[Any], dict[str, float]]:
    """Loss, exact match and F1 of the questions held out."""

    def evaluate(model: Any) -> dict[str, float]:
        logits, loss = _logits(model, validation, config)
        found = find_answers(
            validation, [row[:, 0] for row in logits], [row[:, 1] for row in logits], no_answer=no_answer
        )
        scores = answer_scores(validation.questions, {one.id: one.text for one in found})
        return {"loss": loss, **figures_in(scores, ("exact_match", "f1"))}

    return evaluate
