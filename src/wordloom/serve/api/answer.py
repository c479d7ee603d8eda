"""``/answer``: the span of a text that answers a question."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import Response
from pydantic import Field

from wordloom.evaluate.question_answering import Span
from wordloom.run.models.heads.question_answering import QuestionAnswerer
from wordloom.serve.api.computing import ChosenModel, compute, field_errors
from wordloom.serve.api.fields import Body, Passage, Text
from wordloom.serve.worker import Job

router = APIRouter()

_SPANS = 20  # spans that share the probability of an answer, however many are shown


class Question(Body):
    """A question about a text.

    With a ``threshold`` the text may hold no answer.  The answer is then empty if "no answer" scores better
    than the best span by more than the threshold.
    """

    model: Text
    question: Passage
    context: Passage
    top_k: int = Field(5, ge=1, le=100)
    threshold: float | None = None


@router.post("/answer")
async def answer(body: Question, http: HttpRequest) -> Response:
    """Return the best answer and the ``top_k`` best spans, with their offsets in the context.

    Offsets count characters (code points) from 0; ``end`` is the offset behind the last character.
    """

    def call(chosen: ChosenModel, _: Job) -> dict[str, Any]:
        model: QuestionAnswerer = chosen.model
        settings: dict[str, Any] = {"n_best": max(body.top_k, _SPANS)}
        if body.threshold is not None:
            settings |= {"no_answer": True, "threshold": body.threshold}
        with field_errors("question"):
            found = model.ask(body.question, body.context, **settings)
        best = next((span for span in found.spans if span.text == found.text), None)
        shown = [
            span for rank, span in enumerate(found.spans) if rank < body.top_k or span.text == found.text
        ]
        return {
            "object": "answer",
            "model": body.model,
            **(_facts(Span("", 0, 0, 0.0, 0.0)) if best is None else _facts(best)),
            "no_answer": found.no_answer,
            "answers": [_facts(span) for span in shown],
        }

    return await compute(http, body.model, QuestionAnswerer, "a model for question answering", call)


def _facts(span: Span) -> dict[str, Any]:
    """Return a span as JSON; "no answer" has no offsets."""
    start, end = (span.start, span.end) if span.text else (None, None)
    return {"answer": span.text, "start": start, "end": end, "score": span.score,
            "probability": span.probability}  # fmt: skip
