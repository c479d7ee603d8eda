"""``/classify``: labels or scores of texts, labels of words, and the right one of several choices."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import Response
from pydantic import Field

from wordloom.run.models.embedder import TooLong
from wordloom.run.models.heads import Head
from wordloom.run.models.heads.classification import TextClassifier
from wordloom.run.models.heads.multiple_choice import MultipleChoice
from wordloom.run.models.heads.regression import TextRegressor
from wordloom.run.models.heads.token_classification import TokenClassifier
from wordloom.serve.api.computing import ChosenModel, as_list, compute, field_errors
from wordloom.serve.api.fields import Body, Passage, Text
from wordloom.serve.errors import ApiError
from wordloom.serve.worker import Job
from wordloom.vectors import FastTextClassifier

router = APIRouter()

Classifier = Head[Any] | FastTextClassifier
_CLASSES = (TextClassifier, TextRegressor, TokenClassifier, MultipleChoice, FastTextClassifier)
Pair = Annotated[list[Passage], Field(min_length=2, max_length=2)]

_TAKES = {
    "classification": ("texts", "pairs"),
    "regression": ("texts", "pairs"),
    "token_classification": ("texts",),
    "multiple_choice": ("prompt", "choices"),
    "fasttext": ("texts",),
}


class Classify(Body):
    """Texts or pairs of texts; for multiple choice a prompt and its choices.

    ``too_long`` says what happens to a text that is longer than the model reads: an error, or truncation
    ("cut"), or, for token classification only, several windows ("window").
    """

    model: Text
    texts: Annotated[list[Passage], Field(min_length=1, max_length=256)] | None = None
    pairs: Annotated[list[Pair], Field(min_length=1, max_length=256)] | None = None
    prompt: Passage | None = None
    choices: Annotated[list[Passage], Field(min_length=2, max_length=64)] | None = None
    top_k: int = Field(5, ge=1, le=1000)
    too_long: TooLong = "error"

    def check(self, model: Classifier) -> None:
        """Raise ApiError for fields that ``model`` does not take, and for missing ones."""
        task = task_of(model)
        taken = _TAKES[task]
        if isinstance(model, TextClassifier):
            with field_errors("model"):
                taken = taken[: model.reader.most_texts]
        given = [name for name in ("texts", "pairs", "prompt", "choices") if getattr(self, name) is not None]
        for name in given:
            if name not in taken:
                raise ApiError(400, f"'{name}': this model takes {' or '.join(taken)}", param=name)
        if task == "multiple_choice":
            for name in taken:
                if name not in given:
                    raise ApiError(
                        400, f"'{name}' is missing; this model reads a prompt and choices", param=name
                    )
        elif len(given) != 1:
            raise ApiError(400, f"give either {' or '.join(repr(name) for name in taken)}", param=taken[0])
        if self.too_long == "window" and task != "token_classification":
            raise ApiError(400, "'too_long': only token classification reads windows", param="too_long")


def task_of(model: Classifier) -> str:
    """Return the task of a classifier."""
    return model.task if isinstance(model, Head) else "fasttext"


@router.post("/classify")
async def classify(body: Classify, http: HttpRequest) -> Response:
    """Return the predictions for each text, pair or question, which the model reads alone."""

    def call(chosen: ChosenModel, job: Job) -> dict[str, Any]:
        model: Classifier = chosen.model
        body.check(model)
        return as_list(body.model, _predicted(model, body, job), task=task_of(model))

    return await compute(
        http, body.model, _CLASSES, "a classifier, or a model for regression or multiple choice", call
    )


def _predicted(model: Classifier, body: Classify, job: Job) -> list[dict[str, Any]]:
    if isinstance(model, FastTextClassifier):
        texts = enumerate(job.each(body.texts or []))
        return [_fasttext(model, text, body.top_k, number) for number, text in texts]
    head: Any = copy.copy(model)
    if head.too_long != body.too_long:
        with field_errors("too_long"):
            head.too_long = body.too_long
    if isinstance(head, MultipleChoice):
        assert body.prompt is not None
        assert body.choices is not None
        with field_errors("choices"):
            choice = head.ask(body.prompt, body.choices)
        facts = {"choice": choice.number, "text": body.choices[choice.number]}
        return [facts | {"probability": choice.probability, "probabilities": choice.probabilities,
                         "truncated": choice.truncated}]  # fmt: skip
    field, inputs = "texts", list[Any](body.texts or [])
    if body.pairs is not None:
        field, inputs = "pairs", [tuple(pair) for pair in body.pairs]
    found = []
    for number, given in enumerate(job.each(inputs)):
        with field_errors(field):
            (answer,) = head.predict([given], place=lambda _, number=number: f"'{field}[{number}]'")
        found.append(_facts(head, answer, body.top_k))
    return found


def _facts(head: Head[Any], answer: Any, top_k: int) -> dict[str, Any]:
    """Return the answer of a head as JSON."""
    if head.task == "regression":
        return {"score": answer.score, "truncated": answer.truncated}
    if head.task == "token_classification":
        return {"words": [word._asdict() for word in answer], "truncated": answer.truncated}
    labels = _ranked(head.labels, answer.probabilities, top_k)
    return {
        "label": answer.label, "probability": answer.probability, "labels": labels,
        "truncated": answer.truncated,
    }  # fmt: skip


def _ranked(labels: Sequence[str], probabilities: Sequence[float], top_k: int) -> list[dict[str, Any]]:
    """Return the ``top_k`` most probable labels, the best first."""
    best = sorted(zip(labels, probabilities, strict=True), key=lambda one: -one[1])[:top_k]
    return [{"label": label, "probability": probability} for label, probability in best]


def _fasttext(model: FastTextClassifier, text: str, top_k: int, number: int) -> dict[str, Any]:
    """Return the labels of a text; none for a text without a known word."""
    with field_errors(f"texts[{number}]"):
        labels = [{"label": label, "probability": share} for label, share in model.predict(text, top_k)]
    best: dict[str, Any] = labels[0] if labels else {"label": None, "probability": None}
    return {**best, "labels": labels, "truncated": False}
