"""``/v1/completions``: continue texts."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from pydantic import Field

from wordloom.errors import TokenizerError, WordloomError
from wordloom.generate.prompts import DEFAULT_NEW_TOKENS
from wordloom.generate.text import prompt_ids
from wordloom.run.models.language_model import LanguageModel
from wordloom.serve.api.alternatives import alternatives_of
from wordloom.serve.api.fields import Ids, SamplingFields, Text
from wordloom.serve.api.writing import Writing, event_stream, read, until_left, using, write, writer_of
from wordloom.serve.errors import ApiError
from wordloom.serve.logprobs import LogprobsOfCompletion

router = APIRouter()

Prompts = Annotated[list[Text], Field(min_length=1, max_length=128, fail_fast=True)]
ListsOfIds = Annotated[list[Ids], Field(min_length=1, max_length=128, fail_fast=True)]


class Completion(SamplingFields):
    """A request; ``prompt`` is a text, a list of texts, or token ids."""

    prompt: Text | Prompts | Ids | ListsOfIds
    logprobs: int | None = Field(None, ge=0, le=5)
    echo: bool | None = None
    best_of: int | None = Field(None, ge=1)
    suffix: None = None

    def prompts(self, lm: LanguageModel) -> list[list[int]]:
        """Return the ids of each prompt."""
        given: Any = self.prompt
        if isinstance(given, str) or isinstance(given[0], int):
            given = [given]
        found = [ids_of(lm, each, number) for number, each in enumerate(given)]
        if self.continue_ids:
            if len(found) > 1:
                raise ApiError(400, "'continue_ids' need a single prompt", param="continue_ids")
            check_ids(lm, self.continue_ids, "continue_ids")
            found[0] += self.continue_ids
        return found


def size_of(prompt: Any) -> int:
    """Return the characters and ids of a prompt, or of a list of prompts."""
    if isinstance(prompt, list) and not isinstance(prompt[0], int):
        return sum(map(len, prompt))
    return len(prompt)


def ids_of(lm: LanguageModel, prompt: str | list[int], number: int = 0) -> list[int]:
    """Return the ids of a prompt; raises ApiError for one that cannot be read."""
    try:
        ids = prompt_ids(lm.tokenizer, prompt, specials="text", number=number)
    except WordloomError as error:
        raise ApiError(400, str(error), param="prompt") from None
    check_ids(lm, ids, "prompt")
    return ids


def check_ids(lm: LanguageModel, ids: Sequence[int], param: str) -> None:
    """Raise ApiError for an id that the model or its tokenizer lacks; the model may have more."""
    V = lm.model.config.vocab_size
    if any(token >= V for token in ids):
        raise ApiError(400, f"'{param}' has an id beyond the vocabulary of {V:,}", param=param)
    try:
        lm.text_tokenizer.checked_ids(ids)
    except TokenizerError as error:
        raise ApiError(400, f"'{param}': {error}", param=param) from None


@router.post("/v1/completions")
async def completions(body: Completion, http: HttpRequest) -> Any:
    """Continue each prompt, as OpenAI's API does."""
    for name, given in (("echo", body.echo), ("best_of", (body.best_of or 1) > 1)):
        if given:
            raise ApiError(400, f"'{name}' is not supported", param=name, code="unsupported_parameter")
    stack = AsyncExitStack()
    try:
        served, adapter = await stack.enter_async_context(using(http, body.model))
        lm = writer_of(served, adapter)
        n, prompts = body.n or 1, await read(size_of(body.prompt), partial(body.prompts, lm))
        if len(prompts) * n > http.app.state.models.limits.choices:
            most = http.app.state.models.limits.choices
            raise ApiError(400, f"prompts times 'n' are at most {most}, not {len(prompts) * n}", param="n")
        engine = served.engine
        assert engine is not None
        if len(prompts) > engine.n_slots + engine.queue:
            raise ApiError(
                400,
                f"{len(prompts)} prompts are asked for at once; the server has {engine.n_slots} slots "
                f"and lets {engine.queue} requests wait",
                param="prompt",
            )
        head = {
            "id": f"cmpl-{secrets.token_hex(12)}", "object": "text_completion", "created": int(time.time()),
            "model": body.model,
        }  # fmt: skip
        writings: list[Writing] = []
        for prompt in prompts:
            writing = write(
                http, served, adapter, prompt, body,
                alternatives=max(body.logprobs or 0, body.alternatives), default_tokens=DEFAULT_NEW_TOKENS,
                param="prompt",
            )  # fmt: skip
            stack.callback(writing.stream.cancel)
            writings.append(writing)
        if not body.stream:
            answer = await until_left(http, _whole(body, head, writings, n))
            await stack.aclose()
            return answer
    except BaseException:
        await stack.aclose()
        raise
    return event_stream(http, _events(body, head, writings, n, stack))


async def _whole(
    body: Completion, head: dict[str, Any], writings: Sequence[Writing], n: int
) -> dict[str, Any]:
    choices: list[dict[str, Any]] = []
    tasks = [asyncio.ensure_future(writing.choices(n)) for writing in writings]
    try:
        found = await asyncio.gather(*tasks)
    finally:  # where one fails, the others would wait for ever
        for task in tasks:
            task.cancel()
    for number, (writing, texts) in enumerate(zip(writings, found, strict=True)):
        for choice, tokens in enumerate(texts):
            logprobs = None
            if body.logprobs is not None:
                logprobs = LogprobsOfCompletion(writing.tokenizer, writing.prompt, body.logprobs).of(tokens)
            choices.append({
                "index": number * n + choice,
                "text": "".join(token.text for token in tokens),
                "logprobs": logprobs,
                **alternatives_of(body, writing, tokens),
                "finish_reason": tokens[-1].finish_reason,
            })  # fmt: skip
    return {**head, "choices": choices, "usage": usage_of(writings), **settings_of(body, writings)}


async def _events(
    body: Completion, head: dict[str, Any], writings: Sequence[Writing], n: int, stack: AsyncExitStack
) -> AsyncIterator[dict[str, str]]:
    async with stack:
        async for event in with_errors(_chunks(body, head, writings, n)):
            yield event


async def _chunks(
    body: Completion, head: dict[str, Any], writings: Sequence[Writing], n: int
) -> AsyncIterator[dict[str, Any]]:
    usage: dict[str, Any] = {} if not wants_usage(body) else {"usage": None}
    for number, writing in enumerate(writings):
        logprobs = [
            LogprobsOfCompletion(writing.tokenizer, writing.prompt, body.logprobs or 0) for _ in range(n)
        ]
        async for tokens in writing.tokens():
            for token in tokens:
                wanted = body.logprobs is not None or body.alternatives > 0
                if not token.text and token.finish_reason is None and not wanted:
                    continue
                choice = {
                    "index": number * n + token.choice,
                    "text": token.text,
                    "logprobs": None if body.logprobs is None else logprobs[token.choice].of([token]),
                    **alternatives_of(body, writing, [token]),
                    "finish_reason": token.finish_reason,
                }
                yield {**head, "choices": [choice], **usage}
    if wants_usage(body) or body.return_settings:
        counted = {"usage": usage_of(writings)} if wants_usage(body) else {}
        yield {**head, "choices": [], **counted, **settings_of(body, writings)}


def wants_usage(body: SamplingFields) -> bool:
    """Return whether a stream is to end with the counts of tokens."""
    return body.stream_options is not None and body.stream_options.include_usage


def usage_of(writings: Sequence[Writing]) -> dict[str, Any]:
    """Return the counts of tokens of all texts."""
    each = [writing.usage() for writing in writings]
    total = {name: sum(one[name] for one in each) for name in each[0] if name.endswith("tokens")}
    cached = sum(one["prompt_tokens_details"]["cached_tokens"] for one in each)
    return {**total, "prompt_tokens_details": {"cached_tokens": cached}}


def settings_of(body: SamplingFields, writings: Sequence[Writing]) -> dict[str, Any]:
    """Return the settings of the texts if they were asked for."""
    return {"settings": [writing.repeat() for writing in writings]} if body.return_settings else {}


async def with_errors(chunks: AsyncIterator[dict[str, Any]]) -> AsyncIterator[dict[str, str]]:
    """Yield each chunk as an event; an error is an event as well, and ``[DONE]`` the last one."""
    try:
        async for chunk in chunks:
            yield {"data": json.dumps(chunk, ensure_ascii=False)}
    except ApiError as error:
        yield {"data": json.dumps(error.body())}
    else:
        yield {"data": "[DONE]"}
