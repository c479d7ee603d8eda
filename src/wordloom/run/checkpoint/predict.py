"""The predictions of checkpoints: of fine-tuned models, and of encoders.

Each function takes a request and the loaded model, and yields one :class:`PredictedRow` for each text or
question, in order.  The keyword arguments are options of ``wordloom predict``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from wordloom.data.files.source import suffixes
from wordloom.data.rows.choices import ChoiceRow, choice_rows
from wordloom.data.rows.labelled import TABLES, columns_in
from wordloom.data.rows.squad import Question, asked
from wordloom.data.rows.tagged import has_words, tagged_texts
from wordloom.data.rows.texts import PlacedText, placed_texts, single_texts
from wordloom.errors import DataError
from wordloom.evaluate.question_answering import Found
from wordloom.run.checkpoint.loaders import ColumnNames, Request
from wordloom.run.models.heads.classification import Prediction
from wordloom.run.models.heads.multiple_choice import Choice
from wordloom.run.models.heads.question_answering import QuestionAnswerer
from wordloom.run.models.heads.regression import ScoredText
from wordloom.run.models.heads.token_classification import TaggedWords
from wordloom.run.models.text_encoder import TextEncoder
from wordloom.run.models.text_stream import batches_of
from wordloom.run.prepare import training_columns

_AT_ONCE = {"classification": 1 << 12}  # rows at once, by task
_ROWS_AT_ONCE = 1 << 10  # by other tasks
_SPANS = 20  # spans that share the probability of an answer, however many are shown

EncodingErrors: TypeAlias = Literal["strict", "replace"]
LineAndFacts: TypeAlias = tuple[str, dict[str, Any]]


class PredictedRow(NamedTuple):
    """The prediction for a text or question, as a line and as JSON; ``truncated`` if its end was not read."""

    line: str
    facts: dict[str, Any]
    truncated: bool = False


def predict_head(
    request: Request,
    head: Any,
    *,
    too_long: Literal["error", "cut", "window"] = "error",
    batch_size: int | None = None,
    top_k: int = 5,
    threshold: float | None = None,
    **reading: Any,
) -> Iterator[PredictedRow]:
    """Yield the predictions of a :class:`~wordloom.run.models.heads.head.Head` for texts or questions.

    A classifier gives the most probable label, a regression model a number, token classification a line for
    each word and an empty line, and multiple choice the number of a choice from 1, its probability and its
    text.  Question answering gives id, text, first character, character after the last, and probability;
    its JSON has ``top_k`` answers.  With a ``threshold`` a question may have no answer.
    """
    head.too_long = too_long
    if isinstance(head, QuestionAnswerer):
        head.no_answer |= threshold is not None
        head.threshold, head.n_best = threshold or 0.0, max(top_k, _SPANS)
    read, row_of = _TASKS[head.task]
    rows = read(request, **reading)
    whole = head.task in ("classification", "regression") and head.reader.whole
    for batch in batches_of(rows, batch_size or _AT_ONCE.get(head.task, _ROWS_AT_ONCE)):
        if whole:
            for text in batch:
                text.refuse_empty()
        inputs = [row.text if isinstance(row, PlacedText) else row for row in batch]
        answers = head.predict(inputs, place=lambda row: batch[row].place)  # noqa: B023
        for row, answer in zip(batch, answers, strict=True):
            line, facts = row_of(row, answer, head.labels, top_k)
            if answer.truncated:
                facts["cut"] = True
            yield PredictedRow(line, facts, answer.truncated)


def predict_masked_tokens(
    request: Request,
    encoder: TextEncoder,
    *,
    top_k: int = 5,
    field: str | None = None,
    encoding_errors: EncodingErrors = "strict",
) -> Iterator[PredictedRow]:
    """Yield the most probable tokens of each mask of each text: a line for each mask."""
    field = field or request.checkpoint.field
    for text, place, _ in placed_texts(
        request.sources, field=field, encoding_errors=encoding_errors, tables=False
    ):
        try:
            masks = encoder.fill(str(text), top_k)
        except DataError as error:
            raise DataError(f"{place}: {error}") from None
        lines = ["\t".join(f"{token} {probability:.4f}" for token, probability in mask) for mask in masks]
        facts = {"text": text, "masks": [[filling._asdict() for filling in mask] for mask in masks]}
        yield PredictedRow("\n".join(lines), facts)


# -- reading -----------------------------------------------------------------------------------------------


def _texts(
    request: Request,
    *,
    text_column: ColumnNames = None,
    field: str | None = None,
    **reading: Any,
) -> Iterator[PlacedText]:
    """Read texts or pairs; rows have by default the columns that the recipe of the run names."""
    default = None
    if text_column is None and field is None:
        default = training_columns(request.checkpoint.recipe, "classification", "regression")
        if default and default.text and any(suffixes(source)[0] in TABLES for source in request.sources):
            request.report_columns(f"text {', '.join(map(repr, columns_in(default.text)))}")
    return placed_texts(request.sources, columns=text_column, field=field, default=default, **reading)


def _words_or_texts(
    request: Request,
    *,
    text_column: ColumnNames = None,
    header: bool | None = None,
    **reading: Any,
) -> Iterator[PlacedText]:
    """Read texts, or lists of words in the columns that the recipe of the run names; refuse pairs of texts.

    Words are read from files whose ending says that each line is a word, and from JSON objects with a list of
    words and no text.
    """
    if text_column is not None:
        yield from single_texts(placed_texts(request.sources, columns=text_column, header=header, **reading))
        return
    default = training_columns(request.checkpoint.recipe, "token_classification")
    named = None if default is None else default.text
    words = named if isinstance(named, str) else "tokens"
    for source in request.sources:
        if has_words(source):
            errors = reading["encoding_errors"]
            for text in tagged_texts([source], labels=False, encoding_errors=errors, default=default):
                yield PlacedText(list(text.words), text.place())
        else:
            yield from single_texts(placed_texts([source], words=words, header=header, **reading))


# -- rows --------------------------------------------------------------------------------------------------


def _label_row(text: PlacedText, answer: Prediction, labels: Sequence[str], top_k: int) -> LineAndFacts:
    facts: dict[str, Any] = {"text": text.text, "label": answer.label, "probability": answer.probability}
    facts["probabilities"] = dict(zip(labels, answer.probabilities, strict=True))
    return f"{answer.label}\t{answer.probability:.4f}", facts


def _score_row(text: PlacedText, answer: ScoredText, labels: Sequence[str], top_k: int) -> LineAndFacts:
    return f"{answer.score:.4f}", {"text": text.text, "score": answer.score}


def _words_row(text: PlacedText, words: TaggedWords, labels: Sequence[str], top_k: int) -> LineAndFacts:
    lines = "".join(f"{word.word}\t{word.label or ''}\n" for word in words)
    return lines, {"text": text.text, "words": [word._asdict() for word in words]}


def _choice_row(row: ChoiceRow, choice: Choice, labels: Sequence[str], top_k: int) -> LineAndFacts:
    text = row.choices[choice.number]
    line = f"{choice.number + 1}\t{choice.probability:.4f}\t{' '.join(text.split())}"
    return line, {"choice": choice.number, "text": text, "probabilities": choice.probabilities}


def _answer_row(question: Question, answer: Found, labels: Sequence[str], top_k: int) -> LineAndFacts:
    best = next((span for span in answer.spans if span.text == answer.text), None)
    shown = [span for rank, span in enumerate(answer.spans) if rank < top_k or span.text == answer.text]
    facts: dict[str, Any] = {"id": answer.id, "question": question.question, "answer": answer.text}
    facts["spans"] = [span._asdict() for span in shown]
    if answer.no_answer is not None:
        facts["no_answer"] = answer.no_answer
    where = "" if best is None else f"{best.start}\t{best.end}\t{best.probability:.4f}"
    return f"{answer.id}\t{' '.join(answer.text.split())}\t{where}", facts


# By the task of the head: the reader of its inputs, and the line and the JSON of an answer.
_TASKS: dict[str, tuple[Callable[..., Any], Callable[..., LineAndFacts]]] = {
    "classification": (_texts, _label_row),
    "regression": (_texts, _score_row),
    "multiple_choice": (lambda request: list(choice_rows(list(request.sources))), _choice_row),
    "token_classification": (_words_or_texts, _words_row),
    "question_answering": (lambda request: list(asked(list(request.sources))), _answer_row),
}
