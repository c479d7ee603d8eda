"""``wordloom predict`` and ``evaluate`` of models with a head: answers, numbers, choices, words' labels."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import typer

from wordloom.cli.columns import refuse_columns, report_columns
from wordloom.cli.usage import UsageError
from wordloom.errors import DataError

if TYPE_CHECKING:
    from wordloom.data.files.stream import EncodingErrors
    from wordloom.data.rows.lines import PlacedText
    from wordloom.evaluate.score import Scores

__all__ = ["THRESHOLD", "evaluate_headed", "predict_headed", "refuse_windows", "tell_cut"]

THRESHOLD = typer.Option(
    help="answers: none where that scores better than the best span by more; any model may then give none."
)
_AT_ONCE = 1 << 10  # texts or questions read at a time
_NAMED = 20  # of texts that were cut
_RIVALS = 20  # spans that share the probability of an answer, however many are shown
_FILES = {
    "question_answering": "questions: SQuAD's .json, or .jsonl with question and context",
    "multiple_choice": "questions with choices: SWAG's .csv, .csv with letters, or .jsonl",
}


def predict_headed(
    checkpoint: Path,
    sources: Sequence[str],
    texts: Iterable[PlacedText],
    *,
    top: int,
    loading: dict[str, Any],
    batch_size: int | None,
    too_long: Literal["error", "cut", "window"],
    threshold: float | None,
    json: bool,
) -> None:
    """Print the prediction for each text or question in order: a line, or with ``json`` an object.

    ``texts`` are those of ``sources``, for models that read texts; ``threshold`` is that of
    :meth:`wordloom.run.tasks.heads.question_answering.Answerer.answer`, and lets a question have no answer.
    """
    from wordloom.data.rows.choices import choice_rows
    from wordloom.data.rows.squad import asked
    from wordloom.run.checkpoint.headed import load_headed, task_in

    task = task_in(checkpoint)
    if task in _FILES and not sources:
        raise DataError(f"give a FILE of {_FILES[task]}, or - for standard input")
    model = load_headed(checkpoint, **loading)
    given: Iterable[Any]
    show: Callable[..., list[int]]
    match task:
        case "question_answering":
            model.no_answer |= threshold is not None
            given = list(asked(list(sources)))
            show = partial(_answers, threshold=threshold or 0.0, top=top, too_long=too_long)
        case "multiple_choice":
            given, show = list(choice_rows(list(sources))), _choices
        case _:
            given, show = texts, _numbers if task == "regression" else _tags
    if task != "question_answering":
        model.too_long = too_long
    given, before, shortened = iter(given), 0, list[int]()
    while some := list(islice(given, batch_size or _AT_ONCE)):
        shortened += show(model, some, before + 1, json=json)
        before += len(some)
    tell_cut("questions" if task in _FILES else "texts", shortened)
    sys.stdout.flush()


def refuse_windows(checkpoint: Path) -> NoReturn:
    """Say that longer texts are no windows for this one."""
    raise UsageError(
        f"--too-long window is for labels of words, each of which is in one; {checkpoint} reads texts and "
        "questions whole (answers out of texts: these are windows anyway): give error or cut"
    )


def tell_cut(what: str, numbers: Sequence[int]) -> None:
    """How many, and which: by their ``numbers`` from 1."""
    if numbers:
        named = ", ".join(f"{number:,}" for number in numbers[:_NAMED])
        rest = f" and {len(numbers) - _NAMED:,} more" if len(numbers) > _NAMED else ""
        few = f"1 {what.removesuffix('s')} is longer than the model reads and lost its end"
        many = f"{len(numbers):,} {what} are longer than the model reads and lost their end"
        print(f"cut: {few if len(numbers) == 1 else many}: {named}{rest}", file=sys.stderr)


def _told(fact: dict[str, Any]) -> None:
    print(json_module.dumps(fact, ensure_ascii=False))


def _answers(
    answerer: Any, asked: list[Any], first: int, *, threshold: float, top: int, too_long: str, json: bool
) -> list[int]:
    """Print id, answer, the offsets of its first character and behind its last, and its probability.

    Return the numbers of the truncated questions; the first question has the number ``first``.
    """
    windows = answerer.windows(asked, too_long=too_long)
    made = answerer.answer(windows, n_best=max(top, _RIVALS), threshold=threshold)
    for question, found in zip(asked, made, strict=True):
        if json:
            told = (span for rank, span in enumerate(found.spans) if rank < top or span.text == found.text)
            spans = [span._asdict() for span in told]
            fact = {"id": found.id, "question": question.question, "answer": found.text, "spans": spans}
            if found.no_answer is not None:
                fact["no_answer"] = found.no_answer
            _told({**fact, "cut": True} if found.cut else fact)
        else:
            best = next((span for span in found.spans if span.text == found.text), None)
            where = "" if best is None else f"{best.start}\t{best.end}\t{best.probability:.4f}"
            print(f"{found.id}\t{' '.join(found.text.split())}\t{where}")
    return [number for number, found in enumerate(made, first) if found.cut]


def _choices(chooser: Any, rows: list[Any], first: int, *, json: bool) -> list[int]:
    """Print the number of the likeliest choice from 1, its probability and its text; as :func:`_answers`."""
    made = chooser.choose(rows)
    for row, choice in zip(rows, made, strict=True):
        if json:
            _told(
                {
                    "choice": choice.number,
                    "text": row.choices[choice.number],
                    "probabilities": choice.probabilities,
                    **({"cut": True} if choice.cut else {}),
                }
            )
        else:
            text = " ".join(row.choices[choice.number].split())
            print(f"{choice.number + 1}\t{choice.probability:.4f}\t{text}")
    return [number for number, choice in enumerate(made, first) if choice.cut]


def _numbers(scorer: Any, texts: list[PlacedText], first: int, *, json: bool) -> list[int]:
    """Print a number for each text; as :func:`_answers`."""
    for given in texts:
        given.refuse_empty()
    made = scorer.predict([given.text for given in texts], place=lambda row: texts[row].place)
    for given, (number, cut) in zip(texts, made, strict=True):
        if json:
            _told({"text": given.text, "score": number, **({"cut": True} if cut else {})})
        else:
            print(f"{number:.4f}")
    return [number for number, one in enumerate(made, first) if one.cut]


def _tags(tagger: Any, texts: list[PlacedText], first: int, *, json: bool) -> list[int]:
    """Print each word with its label on a line, and an empty line after each text; as :func:`_answers`."""
    made = tagger.tag([given.text for given in texts], place=lambda row: texts[row].place)
    for given, words in zip(texts, made, strict=True):
        if json:
            fact = {"text": given.text, "words": [word._asdict() for word in words]}
            _told({**fact, "cut": True} if words.cut else fact)
        else:
            print("".join(f"{word.word}\t{word.label or ''}\n" for word in words))
    return [number for number, words in enumerate(made, first) if words.cut]


def evaluate_headed(
    checkpoint: Path,
    sources: list[str],
    columns: dict[str, Any],
    *,
    encoding_errors: EncodingErrors,
    threshold: float | None,
    too_long: str | None,
    device: str,
    dtype: str,
) -> Scores:
    """Scores on ``sources``, whose ``columns`` are text, label and header, read as in training unless
    ``too_long`` says otherwise; without any, on what the recipe of the folder holds out.  ``threshold`` as
    for :func:`predict_headed`."""
    from wordloom.data import ScoredCorpus, questions
    from wordloom.data.rows.choices import choice_rows
    from wordloom.data.rows.tagged import tagged_texts, word_columns
    from wordloom.run.checkpoint.headed import (
        evaluate_held_out,
        load_headed,
        misplaced_in,
        reading_as_trained,
    )
    from wordloom.run.tasks.labelled import recipe_of, training_columns

    model = load_headed(checkpoint, device=device, dtype=dtype)
    settings = {}
    if threshold is not None:
        model.no_answer, settings = True, {"threshold": threshold}
    if not sources:
        return evaluate_held_out(model, **settings)
    model = reading_as_trained(model)
    if too_long is not None:
        model.too_long = too_long
    given: Any
    default = training_columns(recipe_of(checkpoint), model.config.task)
    match model.config.task:
        case "question_answering":
            misplaced = misplaced_in(checkpoint)
            given = list(questions(sources, misplaced=misplaced, encoding_errors=encoding_errors))
        case "multiple_choice":
            given = list(choice_rows(sources, answered=True, encoding_errors=encoding_errors))
        case "token_classification":
            refuse_columns(checkpoint, columns["text"], 1)
            reading = {"word": (columns["text"] or [None])[0], "label": columns["label"], "default": default}
            given = list(tagged_texts(sources, encoding_errors=encoding_errors, **reading))
            if default is not None:
                report_columns(word_columns(sources, **reading), checkpoint / "recipe.toml")
        case _:
            refuse_columns(checkpoint, columns["text"], 2)
            given = ScoredCorpus(
                sources=sources, split="files", encoding_errors=encoding_errors, default=default, **columns
            )
            if default is not None:
                report_columns(given.columns_read(), checkpoint / "recipe.toml")
    scores: Scores = model.evaluate(given, **settings)
    return scores
