"""``/fill-mask``: the likeliest tokens for masks."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import Response
from pydantic import Field

from wordloom.run.models.text_encoder import TextEncoder
from wordloom.serve.api.computing import ChosenModel, as_list, compute, field_errors
from wordloom.serve.api.fields import Body, Passage, Text
from wordloom.serve.errors import ApiError
from wordloom.serve.worker import Job

router = APIRouter()


class FillMask(Body):
    """A text or several texts, each with one mask token or more."""

    model: Text
    text: Passage | None = None
    texts: Annotated[list[Passage], Field(min_length=1, max_length=256)] | None = None
    top_k: int = Field(5, ge=1, le=1000)


@router.post("/fill-mask")
async def fill_mask(body: FillMask, http: HttpRequest) -> Response:
    """Return the likeliest tokens for each mask of each text, which the model reads alone."""
    if (body.text is None) == (body.texts is None):
        raise ApiError(400, "give either 'text' or 'texts'", param="texts")
    several = body.texts is not None
    texts = body.texts or [body.text or ""]

    def call(chosen: ChosenModel, job: Job) -> dict[str, Any]:
        encoder: TextEncoder = chosen.model
        data = []
        for number, text in enumerate(job.each(texts)):
            with field_errors(f"texts[{number}]" if several else "text", setting="top_k"):
                masks = encoder.fill(text, body.top_k)
            data.append({"text": text, "masks": [[one._asdict() for one in mask] for mask in masks]})
        return as_list(body.model, data)

    return await compute(http, body.model, TextEncoder, "an encoder with a masked-LM head", call)
