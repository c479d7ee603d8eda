"""Questions about texts in the JSON of SQuAD v1.1 (Rajpurkar et al. 2016, arXiv:1606.05250) and v2.0, where
some questions have no answer (Rajpurkar et al. 2018, arXiv:1806.03822).

    {"data": [{"title": ..., "paragraphs": [{"context": ..., "qas": [
        {"id": ..., "question": ..., "is_impossible": false,
         "answers": [{"text": ..., "answer_start": ...}]}]}]}]}

``answer_start`` counts characters (Unicode code points) of the context from 0, not bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Literal, NamedTuple

from wordloom.data.files.json import json_objects, json_type, json_value
from wordloom.data.files.json_object import JsonObject
from wordloom.data.files.source import Source, Sources
from wordloom.data.files.stream import EncodingErrors
from wordloom.data.sets.expand import JSON, task_files
from wordloom.errors import DataError, did_you_mean, position

MOVED = "answer(s) moved to their nearest place in the context"
_TASK = "question answering"
_SHOWN = 40  # characters of a text that an error shows


class Answer(NamedTuple):
    """An answer and its place: ``context[start:end] == text``."""

    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


class Question(NamedTuple):
    """One question about one text.

    Attributes:
        id: the id in the file.  Without one it is ``file#number``, from 1, and the number of the line for
            standard input.
        title: the title of the article, or ``""``.
        context: the text that the question is about.
        question: the question, with white space around it.
        answers: the annotators' answers; none for an impossible question, or if answers are not read.
        is_impossible: whether the context holds no answer (v2.0).
        place: file and field, for error messages.
    """

    id: str
    title: str
    context: str
    question: str
    answers: tuple[Answer, ...]
    is_impossible: bool
    place: str


def questions(
    sources: Sources,
    *,
    answers: bool = True,
    misplaced: Literal["error", "nearest"] = "error",
    encoding_errors: EncodingErrors = "strict",
    counts: Counter[str] | None = None,
) -> Iterator[Question]:
    """Yield every question of ``sources``, in order, without ``plausible_answers``.

    Args:
        sources: .json files, folders of them (at any depth, sorted), globs, ``"-"`` for standard input, or
            named sets such as ``squad-sample/train``.  Files may be compressed (.gz, .xz, .bz2, .zst).
        answers: read the answers; without, files need none.
        misplaced: how to treat an answer that is not at its ``answer_start``: ``"error"``, or ``"nearest"``,
            its nearest place in the context.  An answer that is not in its context is always an error.
        encoding_errors: ``"strict"`` raises on invalid UTF-8, ``"replace"`` inserts U+FFFD.
        counts: counts the answers that were moved, under :data:`MOVED`.

    Raises DataError, which names file and field: a missing file, invalid JSON, a field that is missing, empty
    or of another type, an answer that is not in its context, a repeated id.
    """
    for name, value, allowed in (
        ("misplaced", misplaced, ("error", "nearest")),
        ("encoding_errors", encoding_errors, ("strict", "replace")),
    ):
        if value not in allowed:
            raise DataError(f"{name} is {value!r}; {did_you_mean(value, allowed)}")
    moved = Counter[str]() if counts is None else counts
    seen: dict[str, str] = {}
    for file in task_files(sources, {".json": "json"}, task=_TASK, stdin=".json"):
        for entry, question in _in_file(file, encoding_errors, seen):
            if answers:
                question = question._replace(answers=_answers(entry, question, misplaced, moved))
            yield question


def asked(sources: Sources, *, encoding_errors: EncodingErrors = "strict") -> Iterator[Question]:
    """Yield the questions of :func:`questions` without answers, also from .jsonl (the format of ``"-"``).

    The objects of a .jsonl have ``question`` and ``context``, and may have ``id``, each its own.
    """
    seen: dict[str, str] = {}
    for file in task_files(sources, JSON, task=_TASK, stdin=".jsonl"):
        if file.format == "json":
            yield from (question for _, question in _in_file(file, encoding_errors, seen))
            continue
        for record in json_objects(file, encoding_errors, None):
            row = JsonObject(record.value, position(file.name, record.line), "", encoding_errors)
            number = str(record.line) if file.is_stdin else f"{file.name}#{record.line}"
            name = row.text("id") if "id" in row.values else number
            texts = row.text("context"), row.text("question")
            question = Question(name, "", *texts, answers=(), is_impossible=False, place=row.file)
            _refuse_repeated(question, row, seen)
            yield question


def _in_file(
    file: Source, errors: EncodingErrors, seen: dict[str, str]
) -> Iterator[tuple[JsonObject, Question]]:
    """Yield each question of a file and its object; ``seen`` are the ids read before."""
    number = 0
    for article in _document(file, errors).objects("data"):
        title = article.text("title", missing="")
        for paragraph in article.objects("paragraphs"):
            context = paragraph.text("context")
            for entry in paragraph.objects("qas"):
                number += 1
                question = _question(entry, f"{file.name}#{number}", title, context)
                _refuse_repeated(question, entry, seen)
                yield entry, question


def _refuse_repeated(question: Question, entry: JsonObject, seen: dict[str, str]) -> None:
    """Raise DataError if the id is in ``seen``, where it is added otherwise."""
    if question.id in seen:
        first = seen[question.id]
        raise entry.refused("id", f"{question.id!r} is also that of {first}; give each its own")
    seen[question.id] = question.place


def _question(entry: JsonObject, number: str, title: str, context: str) -> Question:
    impossible = "is_impossible" in entry.values and entry.get("is_impossible", bool, "true or false")
    return Question(
        id=entry.text("id") if "id" in entry.values else number,
        title=title,
        context=context,
        question=entry.text("question"),
        answers=(),
        is_impossible=impossible,
        place=f"{entry.file}: {entry.path}",
    )


def _answers(
    entry: JsonObject, question: Question, misplaced: str, moved: Counter[str]
) -> tuple[Answer, ...]:
    found = []
    for given in entry.objects("answers"):
        answer = Answer(given.text("text"), given.get("answer_start", int, "a whole number"))
        if not question.context.startswith(answer.text, answer.start) or answer.start < 0:
            answer = _moved(given, answer, question.context, misplaced)
            moved[MOVED] += 1
        found.append(answer)
    if found and question.is_impossible:
        raise entry.refused(
            "answers", f"holds {len(found)}, and is_impossible is true; expected none (or plausible_answers)"
        )
    if not found and not question.is_impossible:
        raise entry.refused("answers", 'is empty; expected an answer, or "is_impossible": true beside it')
    return tuple(found)


def _moved(given: JsonObject, answer: Answer, context: str, misplaced: str) -> Answer:
    """Return ``answer`` at its nearest place in the context; raise DataError if it may not move."""
    text, start = answer
    places = [i for i in range(len(context)) if context.startswith(text, i)]
    if not places:
        raise given.refused(
            "text", f"{_short(text)} is not in its context; correct it, or remove the question"
        )
    nearest = min(places, key=lambda i: abs(i - start))
    if misplaced == "nearest":
        return Answer(text, nearest)
    there = _short(context[start : start + len(text)]) if 0 <= start < len(context) else "nothing"
    in_bytes = any(len(context[:i].encode()) == start for i in places)
    raise given.refused(
        "answer_start",
        f"is {start:,}, where the context has {there}, not {_short(text)}, which is at {nearest:,}; offsets "
        f"count characters (code points) from 0{', and this one counts bytes' if in_bytes else ', not bytes'}"
        '; correct it, or set misplaced="nearest" (data.misplaced)',
    )


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")


def _document(file: Source, errors: EncodingErrors) -> JsonObject:
    value = json_value(file, errors, None, "copy or write the file again")
    if not isinstance(value, dict):
        raise DataError(f"{file.name}: is a {json_type(value)}; expected SQuAD's JSON, an object with 'data'")
    return JsonObject(value, file.name, "", errors)
