"""Ask the engine for a text, and pass on its events while the client listens."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from fastapi import Request as HttpRequest
from sse_starlette import EventSourceResponse
from sse_starlette.sse import SendTimeoutError
from starlette.types import Receive, Scope, Send

from wordloom.errors import GenerationError
from wordloom.generate.settings import Settings, settings
from wordloom.run.models.language_model import LanguageModel
from wordloom.serve.api.fields import SamplingFields
from wordloom.serve.engine import Failure, QueueFullError, Request, StoppingError, Stream, Token
from wordloom.serve.errors import ApiError
from wordloom.serve.limits import AFTER_DRAIN
from wordloom.serve.models import Models, Served
from wordloom.text import Tokenizer

log = logging.getLogger(__name__)
Result = TypeVar("Result")

_STATUS = {"timeout": 504, "invalid": 400, "damaged": 500, "broken": 503}


LONG = 10_000  # characters or ids, which take a thread of their own


async def read(size: int, call: Callable[[], Result]) -> Result:
    """Return what ``call`` makes of a text of ``size``; other requests go on while it reads a long one."""
    return call() if size < LONG else await asyncio.to_thread(call)


@asynccontextmanager
async def using(http: HttpRequest, name: str) -> AsyncIterator[tuple[Served, str | None]]:
    """Give the model called ``name``, which is loaded if needed, and the name of its adapter."""
    models: Models = http.app.state.models
    served, adapter = models.acquire_loaded(name) or await _acquire_in_loader(
        models, name, http.app.state.loader
    )
    http.state.model = name  # for the log of requests
    try:
        yield served, adapter
    finally:
        models.release(served)


async def _acquire_in_loader(models: Models, name: str, loader: Executor) -> tuple[Served, str | None]:
    """Return a model that the thread of ``loader`` loads and acquires."""
    loading = asyncio.get_running_loop().run_in_executor(loader, models.acquire, name)

    def release(done: asyncio.Future[tuple[Served, str | None]]) -> None:
        if not done.cancelled() and done.exception() is None:
            models.release(done.result()[0])

    try:
        return await asyncio.shield(loading)
    except asyncio.CancelledError:
        loading.add_done_callback(release)
        raise


def writer_of(served: Served, adapter: str | None) -> LanguageModel:
    """Return the language model as the adapter describes it.

    Raises ApiError for a model that writes no text, and while too many requests wait.
    """
    if served.engine is None:
        raise ApiError(
            400, f"the model {served.name!r} is {served.description}, and writes no text", param="model",
            code="unsupported_model",
        )  # fmt: skip
    if not served.engine.alive:
        raise ApiError(503, "the engine of this model has failed; restart the server")
    if served.engine.is_ending:
        raise ApiError(503, "the server stops")
    if served.engine.is_full:
        served.engine.metrics.of(served.name).rejected.inc()
        raise ApiError(429, "too many requests wait; ask again later", code="queue_full")
    lm: LanguageModel = served.as_described(adapter)
    if lm.tokenizer is None:
        raise ApiError(400, f"the model {served.name!r} has no tokenizer, and reads no text", param="model")
    return lm


@dataclass
class Writing:
    """A request in the engine, as the loop of the server sees it."""

    settings: Settings
    prompt: Sequence[int]
    tokenizer: Tokenizer
    stream: Stream
    events: asyncio.Queue[list[Token | Failure]]
    left: int  # choices that have not ended
    n_written: int = 0

    async def tokens(self) -> AsyncIterator[list[Token]]:
        """Yield the tokens as they come, some at a time, until all choices have ended.

        Raises ApiError for a request that fails.  When the caller stops, the request is cancelled.
        """
        try:
            while self.left:
                events = await self.events.get()
                for event in events:
                    if isinstance(event, Failure):
                        raise ApiError(_STATUS[event.kind], event.message, code=event.kind)
                    self.left -= event.finish_reason is not None
                made = [event for event in events if isinstance(event, Token)]
                self.n_written += len(made)
                yield made
                self.stream.sent(len(made))
        finally:
            if self.left:
                self.stream.cancel()

    async def choices(self, n: int) -> list[list[Token]]:
        """Return the tokens of each of the ``n`` choices when all have ended; raises as :meth:`tokens`."""
        found: list[list[Token]] = [[] for _ in range(n)]
        async for tokens in self.tokens():
            for token in tokens:
                found[token.choice].append(token)
        return found

    def usage(self) -> dict[str, Any]:
        """Return the counts of tokens."""
        return {
            "prompt_tokens": len(self.prompt),
            "completion_tokens": self.n_written,
            "total_tokens": len(self.prompt) + self.n_written,
            "prompt_tokens_details": {"cached_tokens": self.stream.n_cached},
        }

    def repeat(self) -> dict[str, Any]:
        """Return what is needed to repeat the answer: every setting, and where it came from."""
        return self.settings.as_dict()


def write(
    http: HttpRequest,
    served: Served,
    adapter: str | None,
    prompt: Sequence[int],
    body: SamplingFields,
    *,
    eos_ids: Sequence[int] | None = None,
    alternatives: int = 0,
    default_tokens: int | None = None,
    given: dict[str, Any] | None = None,
    param: str = "messages",
    most_name: str = "max_tokens",
) -> Writing:
    """Queue a text to continue.

    ``default_tokens`` is the most new tokens where neither the request nor the checkpoint says it; None: as
    many as the context holds.  ``given`` are settings instead of those of ``body``.  ``param`` and
    ``most_name`` are the fields of the prompt and of the most new tokens, for errors.

    Raises ApiError for settings out of range, a prompt that does not fit, and a full queue.
    """
    models: Models = http.app.state.models
    limits, lm, engine = models.limits, served.as_described(adapter), served.engine
    assert engine is not None
    asked = dict(body.given() if given is None else given)
    if asked.get("samples", 1) > limits.choices:
        raise ApiError(400, f"'n' is at most {limits.choices}, not {asked['samples']}", param="n")
    if asked.get("max_new_tokens", 1) > limits.max_tokens:
        raise ApiError(
            400, f"'{most_name}' is at most {limits.max_tokens:,}, not {asked['max_new_tokens']:,}",
            param=most_name,
        )  # fmt: skip
    V = lm.model.config.vocab_size
    for index, _ in asked.get("logit_bias", ()):
        if index >= V:
            raise ApiError(
                400, f"'logit_bias' has the id {index}, beyond the vocabulary of {V:,}", param="logit_bias"
            )
    check_room(len(prompt), asked.get("max_new_tokens"), engine.room, param=param)
    chosen = settings(lm.generation_defaults, asked, tokenizer=lm.tokenizer)
    sampling = chosen.sampling
    if chosen.sources["max_new_tokens"] != "given":
        most = sampling.max_new_tokens or default_tokens or limits.max_tokens
        sampling = replace(sampling, max_new_tokens=min(most, limits.max_tokens, engine.room - len(prompt)))
    loop, events = asyncio.get_running_loop(), asyncio.Queue[list[Token | Failure]]()
    request = Request(
        prompt=prompt,
        sampling=sampling,
        tokenizer=lm.tokenizer,
        eos_ids=chosen.eos_ids if eos_ids is None else eos_ids,
        alternatives=alternatives,
        adapter=adapter,
        deadline=time.monotonic() + limits.seconds,
    )

    def deliver(some: list[Token | Failure]) -> None:
        if not loop.is_closed():  # as it is when a server ends before its requests
            loop.call_soon_threadsafe(events.put_nowait, some)

    try:
        stream = engine.submit(request, deliver)
    except QueueFullError as error:
        raise ApiError(429, str(error), code="queue_full") from None
    except StoppingError as error:
        raise ApiError(503, str(error)) from None
    except GenerationError as error:
        raise ApiError(400, str(error)) from None
    chosen = chosen._replace(sampling=sampling)
    return Writing(chosen, prompt, lm.tokenizer, stream, events, sampling.samples)


class _Events(EventSourceResponse):
    """Server-sent events; one that nobody reads in time ends the answer."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except* SendTimeoutError:
            log.info("an answer was not read in time")


def event_stream(http: HttpRequest, events: AsyncIterator[dict[str, str]]) -> EventSourceResponse:
    """Return an answer of server-sent events, which go on while the server drains."""
    models: Models = http.app.state.models
    return _Events(
        events,
        ping=15,
        sep="\n",
        send_timeout=models.limits.seconds,  # a client that never reads does not hold the model for ever
        shutdown_grace_period=models.limits.drain_seconds + AFTER_DRAIN,
    )


def check_room(n_prompt: int, wanted: int | None, room: int, *, param: str = "messages") -> None:
    """Raise ApiError for a prompt, and the tokens that are asked for, that the context does not hold."""
    if n_prompt + (wanted or 1) <= room:
        return
    more = "" if wanted is None else f" and {wanted:,} more are asked for"
    raise ApiError(
        400,
        f"the prompt has {n_prompt:,} tokens{more}; the context holds {room:,}",
        param=param,
        code="context_length_exceeded",
        type="exceed_context_size_error",
        n_prompt_tokens=n_prompt,
        n_ctx=room,
    )


async def until_left(http: HttpRequest, work: Any) -> Any:
    """Return the result of the coroutine ``work``; cancel it if the client leaves before."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_left(http))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ApiError(499, "the client has left")
        return task.result()
    finally:
        for each in (task, watch):
            each.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _left(http: HttpRequest) -> None:
    """Return when the client has left."""
    while (await http.receive())["type"] != "http.disconnect":
        pass
