"""``/translate``: translate texts."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import Response
from pydantic import Field

from wordloom.run.models.translator import Translator
from wordloom.run.tasks.translation.scores import align
from wordloom.serve.api.computing import ChosenModel, as_list, compute, field_errors
from wordloom.serve.api.fields import Body, MaybeEmptyPassage, Text
from wordloom.serve.errors import ApiError
from wordloom.serve.models import Models
from wordloom.serve.worker import Job

router = APIRouter()


class Translate(Body):
    """Texts to translate, with the settings of :meth:`~wordloom.run.Translator.translate`."""

    model: Text
    texts: Annotated[list[MaybeEmptyPassage], Field(min_length=1, max_length=64)]
    n_best: int = Field(1, ge=1)
    beams: int = Field(5, ge=1, le=64)
    length_penalty: float = Field(1.0, ge=-100, le=100)
    max_new_tokens: int | None = Field(None, ge=1)
    too_long: Literal["error", "split"] = "error"
    alignment: bool = False

    def check(self, models: Models) -> None:
        """Raise ApiError for settings that exclude each other, or that the server does not allow."""
        limits = models.limits
        if self.n_best > limits.choices:
            raise ApiError(400, f"'n_best' is at most {limits.choices}, not {self.n_best}", param="n_best")
        if self.n_best > self.beams:
            raise ApiError(400, f"'n_best' is at most 'beams', {self.beams}", param="n_best")
        if self.max_new_tokens is not None and self.max_new_tokens > limits.max_tokens:
            raise ApiError(400, f"'max_new_tokens' is at most {limits.max_tokens:,}", param="max_new_tokens")
        if self.too_long == "split" and (self.alignment or self.n_best > 1):
            name = "alignment" if self.alignment else "n_best"
            raise ApiError(400, f"'{name}' needs undivided texts; leave out 'too_long'", param=name)


@router.post("/translate")
async def translate(body: Translate, http: HttpRequest) -> Response:
    """Return the best translations of each text, and how the tokens of the best one align with the source.

    Each text is searched alone, so other texts do not change its translation.
    """
    body.check(http.app.state.models)

    def call(chosen: ChosenModel, job: Job) -> dict[str, Any]:
        translator: Translator = chosen.model
        texts = enumerate(job.each(body.texts))
        return as_list(body.model, [_translated(translator, body, number, text) for number, text in texts])

    return await compute(http, body.model, Translator, "a translation model", call)


def _translated(translator: Translator, body: Translate, number: int, text: str) -> dict[str, Any]:
    search: dict[str, Any] = {
        "beams": body.beams, "length_penalty": body.length_penalty, "max_new_tokens": body.max_new_tokens,
    }  # fmt: skip
    with field_errors("texts"):
        best = next(
            translator.translate(
                [text],
                n_best=body.n_best,
                overlong=body.too_long,
                place=lambda _: f"'texts[{number}]'",
                **search,
            )
        )
    found: dict[str, Any] = {"translations": [one._asdict() for one in best]}
    if body.alignment:
        found["alignment"] = _alignment(translator, text, search) if text.strip() else None
    return found


def _alignment(translator: Translator, text: str, search: dict[str, Any]) -> dict[str, Any]:
    """Return the tokens of both sides, and the weight [T][S] of each source token for each target token."""
    with field_errors("alignment"):
        seen = align(translator, text, **search)
    return {"source": seen.source, "target": seen.target, "weights": seen.matrix().tolist()}
