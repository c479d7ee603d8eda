"""``/v1/responses``: OpenAI's newer API, for texts."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from pydantic import Field

from wordloom.serve.api.chat import ChatMessage, chat_prompt, size_of
from wordloom.serve.api.fields import Body, Text
from wordloom.serve.api.fields import SamplingFields as Fields
from wordloom.serve.api.writing import Writing, event_stream, read, until_left, using, write, writer_of
from wordloom.serve.errors import ApiError
from wordloom.serve.logprobs import WHITESPACE
from wordloom.text.chat import Message

router = APIRouter()


class InputMessage(ChatMessage):
    type: Literal["message"] = "message"
    id: Text | None = None
    status: Text | None = None
    phase: Text | None = None


class TextFormat(Body):
    format: dict[str, Any] | None = None
    verbosity: None = None


class ResponseRequest(Body):
    """A request; ``input`` is a question or a conversation."""

    model: Text
    input: Text | Annotated[list[InputMessage], Field(min_length=1, max_length=10_000, fail_fast=True)]
    instructions: Text | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, gt=0, le=1)
    stream: bool | None = None
    store: bool | None = None
    user: Text | None = None
    metadata: dict[Text, Text] | None = None
    tools: list[Any] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    previous_response_id: None = None
    text: TextFormat | None = None
    truncation: Literal["disabled"] | None = None
    background: Literal[False] | None = None
    parallel_tool_calls: bool | None = None
    seed: int | None = Field(None, ge=0, lt=2**63)

    def messages(self) -> list[Message]:
        """Return the conversation."""
        if isinstance(self.input, str):
            found = [Message("user", self.input)]
        else:
            found = [message.message() for message in self.input]
        return [Message("system", self.instructions), *found] if self.instructions else found

    def refuse(self) -> None:
        """Raise ApiError for what is not supported."""
        if self.tools:
            raise ApiError(
                400, "'tools' are not supported; leave them out", param="tools", code="unsupported_parameter"
            )
        if self.text is not None and self.text.format not in (None, {"type": "text"}):
            raise ApiError(400, "'text.format' other than text is not supported", param="text.format")


@router.post("/v1/responses")
async def responses(body: ResponseRequest, http: HttpRequest) -> Any:
    """Answer a question or a conversation; nothing is stored."""
    body.refuse()
    stack = AsyncExitStack()
    try:
        served, adapter = await stack.enter_async_context(using(http, body.model))
        lm = writer_of(served, adapter)
        messages = body.messages()
        prompt, ends = await read(size_of(messages), partial(chat_prompt, lm, messages))
        given: dict[str, Any] = {
            name: value
            for name in ("temperature", "top_p", "seed")
            if (value := getattr(body, name)) is not None
        }
        if body.max_output_tokens is not None:
            given["max_new_tokens"] = body.max_output_tokens
        fields = Fields.model_construct(model=body.model)
        writing = write(
            http, served, adapter, prompt, fields, eos_ids=ends, given=given, param="input",
            most_name="max_output_tokens",
        )  # fmt: skip
        stack.callback(writing.stream.cancel)
        answer = _Answer(body, writing)
        if not body.stream:
            found = await until_left(http, answer.whole())
            await stack.aclose()
            return found
    except BaseException:
        await stack.aclose()
        raise
    return event_stream(http, _events(answer, stack))


class _Answer:
    """The parts of a response, before and after the text is known."""

    def __init__(self, body: ResponseRequest, writing: Writing) -> None:
        self.body, self.writing = body, writing
        self.id, self.item = f"resp_{secrets.token_hex(12)}", f"msg_{secrets.token_hex(12)}"
        self.created = int(time.time())
        self.text, self.reason = "", ""

    def response(self, status: str) -> dict[str, Any]:
        """Return the object of the whole response."""
        sampling, done = self.writing.settings.sampling, status in ("completed", "incomplete")
        usage = self.writing.usage()
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "model": self.body.model,
            "output": [self.message(status)] if done else [],
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": self.body.instructions,
            "max_output_tokens": self.body.max_output_tokens,
            "metadata": self.body.metadata or {},
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "store": False,
            "temperature": sampling.temperature,
            "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
            "text": {"format": {"type": "text"}},
            "tool_choice": "none",
            "tools": [],
            "truncation": "disabled",
            "user": self.body.user,
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": usage["prompt_tokens_details"],
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage["total_tokens"],
            }
            if done
            else None,
        }

    def part(self) -> dict[str, Any]:
        """Return the text as a part of the message."""
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": []}

    def message(self, status: str) -> dict[str, Any]:
        """Return the message as an item of the output."""
        content = [self.part()] if status != "in_progress" else []
        return {
            "id": self.item, "type": "message", "status": status, "role": "assistant", "content": content,
        }  # fmt: skip

    async def pieces(self) -> AsyncIterator[str]:
        """Yield the text in pieces."""
        async for tokens in self.writing.tokens():
            for token in tokens:
                self.reason = token.finish_reason or self.reason
                piece = token.text if self.text else token.text.lstrip(WHITESPACE)
                self.text += piece
                if piece:
                    yield piece

    @property
    def status(self) -> str:
        """How the response has ended."""
        return "incomplete" if self.reason == "length" else "completed"

    async def whole(self) -> dict[str, Any]:
        """Return the response when the text is complete."""
        async for _ in self.pieces():
            pass
        return self.response(self.status)


async def _events(answer: _Answer, stack: AsyncExitStack) -> AsyncIterator[dict[str, str]]:
    async with stack:
        number = 0
        try:
            async for kind, values in _parts(answer):
                event = {"type": kind, "sequence_number": number, **values}
                number += 1
                yield {"event": kind, "data": json.dumps(event, ensure_ascii=False)}
        except ApiError as error:
            event = {"type": "error", "sequence_number": number, **error.body()["error"]}
            yield {"event": "error", "data": json.dumps(event)}


async def _parts(answer: _Answer) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Yield the events in their order, with what belongs to each."""
    where = {"item_id": answer.item, "output_index": 0, "content_index": 0}
    yield "response.created", {"response": answer.response("in_progress")}
    yield "response.in_progress", {"response": answer.response("in_progress")}
    yield "response.output_item.added", {"output_index": 0, "item": answer.message("in_progress")}
    yield "response.content_part.added", {**where, "part": answer.part()}
    async for piece in answer.pieces():
        yield "response.output_text.delta", {**where, "delta": piece, "logprobs": []}
    yield "response.output_text.done", {**where, "text": answer.text, "logprobs": []}
    yield "response.content_part.done", {**where, "part": answer.part()}
    yield "response.output_item.done", {"output_index": 0, "item": answer.message(answer.status)}
    yield f"response.{answer.status}", {"response": answer.response(answer.status)}
