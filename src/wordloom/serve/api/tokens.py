"""``/tokenize`` and ``/detokenize``: text into ids and back."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from pydantic import Field

from wordloom.errors import TokenizerError
from wordloom.serve.api.chat import ChatMessage, chat_prompt, size_of
from wordloom.serve.api.fields import Body, Text
from wordloom.serve.api.writing import read, using
from wordloom.serve.errors import ApiError
from wordloom.serve.logprobs import token_name
from wordloom.serve.models import Served
from wordloom.text import Tokenizer

router = APIRouter()


class Tokenize(Body):
    """A text, or the messages of a conversation, which are encoded as a prompt."""

    model: Text
    text: Text | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=10_000, fail_fast=True)] | None = (
        None
    )


class Detokenize(Body):
    model: Text
    ids: Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(fail_fast=True)]


@router.post("/tokenize")
async def tokenize(body: Tokenize, http: HttpRequest) -> dict[str, Any]:
    """Return the ids of a text, and the text of each."""
    if (body.text is None) == (body.messages is None):
        raise ApiError(400, "give either 'text' or 'messages'")
    async with using(http, body.model) as (served, adapter):
        tokenizer = tokenizer_of(served, adapter)
        if body.messages is not None:
            if served.engine is None:
                raise ApiError(400, "'messages' need a model with a chat template", param="messages")
            messages = [message.message() for message in body.messages]
            lm = served.as_described(adapter)
            ids, _ = await read(size_of(messages), partial(chat_prompt, lm, messages))
        else:
            text = body.text or ""
            ids = list(await read(len(text), partial(tokenizer.encode_ids, text, specials="text")))
        tokens = await read(len(ids), lambda: [token_name(tokenizer, index) for index in ids])
        room = None if served.engine is None else served.engine.room
        return {"ids": ids, "tokens": tokens, "count": len(ids), "context": room}


@router.post("/detokenize")
async def detokenize(body: Detokenize, http: HttpRequest) -> dict[str, Any]:
    """Return the text of ids."""
    async with using(http, body.model) as (served, adapter):
        tokenizer = tokenizer_of(served, adapter)
        try:
            return {"text": await read(len(body.ids), partial(tokenizer.decode, body.ids))}
        except TokenizerError as error:
            raise ApiError(400, f"'ids': {error}", param="ids") from None


def tokenizer_of(served: Served, adapter: str | None) -> Tokenizer:
    """Return the tokenizer of a model or adapter; raises ApiError without one."""
    tokenizer = getattr(served.as_described(adapter), "tokenizer", None)
    if not isinstance(tokenizer, Tokenizer):
        raise ApiError(400, f"the model {served.name!r} has no tokenizer", param="model")
    return tokenizer
