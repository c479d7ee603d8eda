"""``/v1/chat/completions``: answer the last message of a conversation."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from pydantic import AfterValidator, Field

from wordloom.errors import ChatError
from wordloom.run.models.language_model import LanguageModel
from wordloom.run.tasks.conversing import end_ids, with_system_message
from wordloom.serve.api.alternatives import alternatives_of
from wordloom.serve.api.completions import check_ids, settings_of, usage_of, wants_usage, with_errors
from wordloom.serve.api.fields import MOST_LOGPROBS, Body, SamplingFields, Text, Unsupported
from wordloom.serve.api.writing import Writing, event_stream, read, until_left, using, write, writer_of
from wordloom.serve.engine import Token
from wordloom.serve.errors import ApiError
from wordloom.serve.logprobs import WHITESPACE, entry
from wordloom.text.chat import Message, encode_chat, end_of_turn, template_of

router = APIRouter()

_EACH = 50  # characters that a message counts for besides its own: rendering it takes as long


def _no_tools(calls: list[Any]) -> list[Any]:
    if calls:
        raise ValueError("tools are not supported; leave it out")
    return calls


class TextPart(Body):
    type: Literal["text", "input_text", "output_text"] = "text"
    text: Text
    annotations: list[Any] | None = None  # of an answer that is sent back, as its log-probabilities
    logprobs: list[Any] | None = None


class ChatMessage(Body):
    """A message; of its content, texts alone are read.

    Clients send answers back with all fields of an answer, most of which are empty.
    """

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Annotated[list[TextPart], Field(min_length=1, fail_fast=True)]
    name: Text | None = None
    annotations: list[Any] | None = None
    audio: None = None
    function_call: None = None
    refusal: None = None
    tool_calls: Annotated[list[Any], AfterValidator(_no_tools)] | None = None

    def message(self) -> Message:
        """Return the message as a template reads it."""
        content = self.content
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        return Message("system" if self.role == "developer" else self.role, text)


class ChatCompletion(SamplingFields, Unsupported):
    """A request."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=10_000, fail_fast=True)]
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)


def size_of(messages: Sequence[Message]) -> int:
    """Return how much there is to read in a conversation: its characters, and some for each message."""
    return sum(_EACH + len(str(message.content)) for message in messages)


def chat_prompt(lm: LanguageModel, messages: Sequence[Message]) -> tuple[list[int], list[int]]:
    """Return the ids of a conversation up to where the answer begins, and the ids that end the answer.

    Raises ApiError for a model without a chat template, and for messages that the template refuses.
    """
    tokenizer = lm.text_tokenizer
    if tokenizer.chat_template is None:
        raise ApiError(
            400,
            "the model has no chat template, so it continues texts alone: use /v1/completions",
            param="model",
            code="unsupported_model",
        )
    if messages[-1].role != "user":
        raise ApiError(400, "the last message must be of the user", param="messages")
    try:
        template = template_of(tokenizer)
        asked = with_system_message(tuple(messages), lm.system)
        ids = encode_chat(tokenizer, template, asked, prompt=True).ids
        return ids, end_ids(tokenizer, end_of_turn(tokenizer, template))
    except ChatError as error:
        raise ApiError(400, str(error), param="messages") from None


@router.post("/v1/chat/completions")
async def chat_completions(body: ChatCompletion, http: HttpRequest) -> Any:
    """Answer a conversation, as OpenAI's API does."""
    body.refuse()
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "'top_logprobs' needs 'logprobs': true", param="top_logprobs")
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise ApiError(400, "give 'max_tokens' or 'max_completion_tokens', not both", param="max_tokens")
    stack = AsyncExitStack()
    try:
        served, adapter = await stack.enter_async_context(using(http, body.model))
        lm = writer_of(served, adapter)
        messages = [message.message() for message in body.messages]
        prompt, ends = await read(size_of(messages), partial(chat_prompt, lm, messages))
        begun = body.continue_ids or []
        check_ids(lm, begun, "continue_ids")
        prompt = [*prompt, *begun]
        decode = partial(lm.text_tokenizer.decode, begun, skip_special_tokens=True)
        has_text = bool((await read(len(begun), decode)).strip(WHITESPACE))
        given = body.given()
        if body.max_completion_tokens is not None:
            given["max_new_tokens"] = body.max_completion_tokens
        writing = write(
            http, served, adapter, prompt, body, eos_ids=ends, given=given,
            alternatives=max(body.top_logprobs or 0, body.alternatives),
            most_name="max_tokens" if body.max_completion_tokens is None else "max_completion_tokens",
        )  # fmt: skip
        stack.callback(writing.stream.cancel)
        if not body.stream:
            answer = await until_left(http, _whole(body, writing, has_text))
            await stack.aclose()
            return answer
    except BaseException:
        await stack.aclose()
        raise
    return event_stream(http, _events(body, writing, has_text, stack))


def _head(body: ChatCompletion, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "object": kind,
        "created": int(time.time()),
        "model": body.model,
    }


async def _whole(body: ChatCompletion, writing: Writing, has_text: bool) -> dict[str, Any]:
    """Return the whole answer; if what it continues ``has_text``, its first whitespace stays."""
    texts = await writing.choices(body.n or 1)
    choices = [
        {
            "index": number,
            "message": {"role": "assistant", "content": _text(tokens, has_text)},
            "logprobs": _logprobs(body, writing, tokens, begun=has_text),
            **alternatives_of(body, writing, tokens),
            "finish_reason": tokens[-1].finish_reason,
        }
        for number, tokens in enumerate(texts)
    ]
    head = _head(body, "chat.completion")
    return {**head, "choices": choices, "usage": usage_of([writing]), **settings_of(body, [writing])}


def _text(tokens: Sequence[Token], has_text: bool) -> str:
    text = "".join(token.text for token in tokens)
    return text if has_text else text.lstrip(WHITESPACE)


async def _events(
    body: ChatCompletion, writing: Writing, has_text: bool, stack: AsyncExitStack
) -> AsyncIterator[dict[str, str]]:
    async with stack:
        async for event in with_errors(_chunks(body, writing, has_text)):
            yield event


async def _chunks(body: ChatCompletion, writing: Writing, has_text: bool) -> AsyncIterator[dict[str, Any]]:
    head = _head(body, "chat.completion.chunk")
    usage: dict[str, Any] = {"usage": None} if wants_usage(body) else {}

    def chunk(number: int, delta: dict[str, Any], **more: Any) -> dict[str, Any]:
        choice = {"index": number, "delta": delta, "logprobs": None, "finish_reason": None, **more}
        return {**head, "choices": [choice], **usage}

    for number in range(body.n or 1):
        yield chunk(number, {"role": "assistant", "content": None})
    begun = [has_text] * (body.n or 1)
    async for tokens in writing.tokens():
        for token in tokens:
            before = begun[token.choice]
            text = token.text if before else token.text.lstrip(WHITESPACE)
            begun[token.choice] |= bool(text)
            more = {
                "logprobs": _logprobs(body, writing, [token], begun=before),
                **alternatives_of(body, writing, [token]),
            }
            if text or body.logprobs or body.alternatives:
                yield chunk(token.choice, {"content": text}, **more)
            if token.finish_reason is not None:
                yield chunk(token.choice, {}, finish_reason=token.finish_reason)
    if wants_usage(body) or body.return_settings:
        counted = {"usage": usage_of([writing])} if wants_usage(body) else {}
        yield {**head, "choices": [], **counted, **settings_of(body, [writing])}


def _logprobs(
    body: ChatCompletion, writing: Writing, tokens: Sequence[Token], *, begun: bool
) -> dict[str, Any] | None:
    """Return the log-probabilities of ``tokens``; the text before them has ``begun`` or is whitespace."""
    if not body.logprobs:
        return None
    content = []
    for token in tokens:
        if not token.ends:
            content.append(entry(writing.tokenizer, token, body.top_logprobs or 0, first=not begun))
            begun = begun or bool(token.text.strip(WHITESPACE))
    return {"content": content, "refusal": None}
