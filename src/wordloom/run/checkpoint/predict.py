"""The predictions of checkpoints, one function for each kind of checkpoint.

Each function takes a checkpoint, its loaded model and the files to read, and yields one :class:`PredictedRow`
for each text or question, in order.  The keyword arguments after ``reporter`` are options of
``wordloom predict``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from wordloom.data.rows.choices import choice_rows
from wordloom.data.rows.labelled import Column, columns_in
from wordloom.data.rows.lines import PlacedText, is_table, placed_texts
from wordloom.data.rows.squad import asked
from wordloom.data.rows.tagged import has_words, tagged_texts
from wordloom.errors import DataError
from wordloom.run.checkpoint.contents import Checkpoint
from wordloom.run.checkpoint.reporting import Reporter
from wordloom.run.models.heads.classification import TextClassifier
from wordloom.run.models.heads.head import Head
from wordloom.run.models.heads.multiple_choice import MultipleChoice
from wordloom.run.models.heads.question_answering import QuestionAnswerer
from wordloom.run.models.heads.regression import TextRegressor
from wordloom.run.models.heads.token_classification import TokenClassifier
from wordloom.run.models.text_encoder import TextEncoder
from wordloom.run.models.text_stream import batches_of
from wordloom.run.recipe_rows import training_columns

__all__ = [
    "PredictedRow",
    "predict_answers",
    "predict_choices",
    "predict_labels",
    "predict_masked_tokens",
    "predict_scores",
    "predict_word_labels",
]

_TEXTS_AT_ONCE = 1 << 12  # of a classifier
_ROWS_AT_ONCE = 1 << 10
_SPANS = 20  # spans that share the probability of an answer, however many are shown

Answer = TypeVar("Answer")
Sources: TypeAlias = Sequence[str]
Columns: TypeAlias = Sequence[Column] | None
EncodingErrors: TypeAlias = Literal["strict", "replace"]


class PredictedRow(NamedTuple):
    """The prediction for a text or question, as a line and as JSON; ``truncated`` if its end was not read."""

    line: str
    facts: dict[str, Any]
    truncated: bool = False


def _row(line: str, facts: dict[str, Any], *, truncated: bool = False) -> PredictedRow:
    return PredictedRow(line, {**facts, "cut": True} if truncated else facts, truncated)


# -- texts -------------------------------------------------------------------------------------------------


def predict_labels(
    checkpoint: Checkpoint,
    classifier: TextClassifier,
    sources: Sources,
    reporter: Reporter,
    *,
    too_long: Literal["error", "cut"] = "error",
    batch_size: int | None = None,
    **reading: Any,
) -> Iterator[PredictedRow]:
    """Yield the most probable label of each text or pair, with the probabilities of all labels."""
    classifier.too_long = too_long
    texts = _texts(checkpoint, sources, reporter, **reading)
    for text, answer in _answers(classifier, texts, batch_size or _TEXTS_AT_ONCE, classifier.reader.whole):
        facts: dict[str, Any] = {"text": text.text, "label": answer.label, "probability": answer.probability}
        facts["probabilities"] = dict(zip(classifier.labels, answer.probabilities, strict=True))
        yield _row(f"{answer.label}\t{answer.probability:.4f}", facts, truncated=answer.truncated)


def predict_scores(
    checkpoint: Checkpoint,
    scorer: TextRegressor,
    sources: Sources,
    reporter: Reporter,
    *,
    too_long: Literal["error", "cut"] = "error",
    batch_size: int | None = None,
    **reading: Any,
) -> Iterator[PredictedRow]:
    """Yield the number that a regression model gives each text or pair."""
    scorer.too_long = too_long
    texts = _texts(checkpoint, sources, reporter, **reading)
    for text, (score, truncated) in _answers(scorer, texts, batch_size or _ROWS_AT_ONCE, whole=True):
        yield _row(f"{score:.4f}", {"text": text.text, "score": score}, truncated=truncated)


def predict_word_labels(
    checkpoint: Checkpoint,
    tagger: TokenClassifier,
    sources: Sources,
    reporter: Reporter,
    *,
    too_long: Literal["error", "cut", "window"] = "error",
    batch_size: int | None = None,
    text_column: Columns = None,
    **reading: Any,
) -> Iterator[PredictedRow]:
    """Yield the words of each text with their labels: a line for each word and an empty line."""
    tagger.too_long = too_long
    if text_column is None:
        texts = _words_or_texts(checkpoint, sources, reading)
    else:
        texts = placed_texts(sources, columns=text_column, **reading)
    for text, words in _answers(tagger, texts, batch_size or _ROWS_AT_ONCE):
        lines = "".join(f"{word.word}\t{word.label or ''}\n" for word in words)
        facts = {"text": text.text, "words": [word._asdict() for word in words]}
        yield _row(lines, facts, truncated=words.truncated)


def predict_masked_tokens(
    checkpoint: Checkpoint,
    encoder: TextEncoder,
    sources: Sources,
    reporter: Reporter,
    *,
    top_k: int = 5,
    field: str = "text",
    encoding_errors: EncodingErrors = "strict",
) -> Iterator[PredictedRow]:
    """Yield the most probable tokens of each mask of each text: a line for each mask."""
    for text, place, _ in placed_texts(sources, field=field, encoding_errors=encoding_errors, tables=False):
        try:
            masks = encoder.fill(str(text), top_k)
        except DataError as error:
            raise DataError(f"{place}: {error}") from None
        lines = ["\t".join(f"{token} {probability:.4f}" for token, probability in mask) for mask in masks]
        yield _row("\n".join(lines), {"text": text, "masks": [[f._asdict() for f in mask] for mask in masks]})


# -- questions ---------------------------------------------------------------------------------------------


def predict_choices(
    checkpoint: Checkpoint,
    chooser: MultipleChoice,
    sources: Sources,
    reporter: Reporter,
    *,
    too_long: Literal["error", "cut"] = "error",
    batch_size: int | None = None,
) -> Iterator[PredictedRow]:
    """Yield the most probable choice of each question: its number from 1, its probability and its text."""
    chooser.too_long = too_long
    for rows in batches_of(list(choice_rows(list(sources))), batch_size or _ROWS_AT_ONCE):
        for row, choice in zip(rows, chooser.predict(rows), strict=True):
            text = row.choices[choice.number]
            facts = {"choice": choice.number, "text": text, "probabilities": choice.probabilities}
            line = f"{choice.number + 1}\t{choice.probability:.4f}\t{' '.join(text.split())}"
            yield _row(line, facts, truncated=choice.truncated)


def predict_answers(
    checkpoint: Checkpoint,
    answerer: QuestionAnswerer,
    sources: Sources,
    reporter: Reporter,
    *,
    top_k: int = 5,
    threshold: float | None = None,
    too_long: Literal["error", "cut"] = "error",
    batch_size: int | None = None,
) -> Iterator[PredictedRow]:
    """Yield the answer to each question: id, text, first character, character after the last, probability.

    With a ``threshold`` a question may have no answer.
    """
    answerer.no_answer |= threshold is not None
    answerer.threshold, answerer.n_best, answerer.too_long = threshold or 0.0, max(top_k, _SPANS), too_long
    for batch in batches_of(list(asked(list(sources))), batch_size or _ROWS_AT_ONCE):
        for question, answer in zip(batch, answerer.predict(batch), strict=True):
            best = next((span for span in answer.spans if span.text == answer.text), None)
            shown = [
                span for rank, span in enumerate(answer.spans) if rank < top_k or span.text == answer.text
            ]
            facts: dict[str, Any] = {"id": answer.id, "question": question.question, "answer": answer.text}
            facts["spans"] = [span._asdict() for span in shown]
            if answer.no_answer is not None:
                facts["no_answer"] = answer.no_answer
            where = "" if best is None else f"{best.start}\t{best.end}\t{best.probability:.4f}"
            line = f"{answer.id}\t{' '.join(answer.text.split())}\t{where}"
            yield _row(line, facts, truncated=answer.truncated)


# -- reading -----------------------------------------------------------------------------------------------


def _texts(
    checkpoint: Checkpoint,
    sources: Sources,
    reporter: Reporter,
    *,
    text_column: Columns = None,
    header: bool | None = None,
    field: str = "text",
    encoding_errors: EncodingErrors = "strict",
) -> Iterator[PlacedText]:
    """Read texts or pairs; tables have by default the columns that the recipe of the run names."""
    if text_column is None and all(map(is_table, sources)):
        named = training_columns(checkpoint.recipe, "classification", "regression")
        if named is not None and named.text is not None:
            text_column = list(columns_in(named.text))
            header = named.header if header is None else header
            shown = ", ".join(map(repr, text_column))
            reporter.say(f"columns: text {shown} (by default those in {checkpoint.folder / 'recipe.toml'})")
    if text_column is None and header is not None:
        raise DataError("without --text-column no table is read: leave out --header and --no-header")
    columns = {} if text_column is None else {"columns": text_column, "header": header}
    return placed_texts(sources, field=field, encoding_errors=encoding_errors, **columns)  # type: ignore[arg-type]


def _words_or_texts(
    checkpoint: Checkpoint, sources: Sources, reading: dict[str, Any]
) -> Iterator[PlacedText]:
    """Read texts or lists of words, in the columns that the recipe of the run names.

    Words stand in files whose ending says that each line is a word, and in JSON objects with a list of words
    and no text.
    """
    if reading.pop("header", None) is not None:
        raise DataError("without --text-column no table is read: leave out --header and --no-header")
    default = training_columns(checkpoint.recipe, "token_classification")
    named = None if default is None else default.text
    words = named if isinstance(named, str) else "tokens"
    for source in sources:
        if has_words(source):
            errors = reading["encoding_errors"]
            for text in tagged_texts([source], labels=False, encoding_errors=errors, default=default):
                yield PlacedText(list(text.words), text.place())
        else:
            yield from placed_texts([source], words=words, **reading)


def _answers(
    head: Head[Answer], texts: Iterator[PlacedText], batch_size: int, whole: bool = False
) -> Iterator[tuple[PlacedText, Answer]]:
    """Yield each text and the answer of ``head``; with ``whole``, raise DataError for an empty text."""
    for batch in batches_of(texts, batch_size):
        if whole:
            for text in batch:
                text.refuse_empty()
        answers = head.predict([text.text for text in batch], place=lambda row: batch[row].place)  # noqa: B023
        yield from zip(batch, answers, strict=True)
