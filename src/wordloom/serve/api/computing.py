"""Compute an answer in the worker thread of a model, while the client listens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import Request as HttpRequest
from fastapi.responses import Response

from wordloom.errors import CheckpointError, ConfigError, NonFiniteError, WordloomError
from wordloom.serve.api.writing import until_left, using
from wordloom.serve.engine import QueueFullError
from wordloom.serve.errors import ApiError
from wordloom.serve.models import Models, Served
from wordloom.serve.worker import Job


@dataclass(frozen=True)
class ChosenModel:
    """The model of a request: a loaded model, perhaps with one of its adapters."""

    served: Served
    adapter: str | None

    @property
    def model(self) -> Any:
        """The loaded model.  The first use of an adapter loads it, so the worker alone reads this."""
        return self.served.with_adapter(self.adapter)

    @property
    def result(self) -> type[Any]:
        """The class of :attr:`model`."""
        if self.adapter is None:
            return type(self.served.model)
        return self.served.adapted[self.adapter].kind.result

    def unsupported(self, needed: str) -> ApiError:
        """Return the error for a request to a model of the wrong kind."""
        name, description = self.served.name, self.served.description
        if self.adapter is not None:
            name, description = self.adapter, self.served.adapted[self.adapter].kind.description
        return ApiError(
            400, f"the model {name!r} is {description}; this request needs {needed}", param="model",
            code="unsupported_model",
        )  # fmt: skip


async def compute(
    http: HttpRequest,
    name: str,
    classes: type[Any] | tuple[type[Any], ...],
    needed: str,
    call: Callable[[ChosenModel, Job], dict[str, Any]],
) -> Response:
    """Return what ``call`` returns for the model called ``name``, as JSON.

    The worker of the model computes the answer and writes the JSON, so that the event loop never waits.  The
    model is an instance of one of ``classes``; ``needed`` describes these in the error for another model.
    A request whose client leaves is dropped: at once while it waits, else before its next item.

    Raises ApiError with status 429 if too many requests wait, and 504 if the answer takes too long.
    """
    async with using(http, name) as found:
        chosen = ChosenModel(*found)
        if not issubclass(chosen.result, classes):
            raise chosen.unsupported(needed)
        models: Models = http.app.state.models
        content: bytes = await until_left(http, _in_worker(models, chosen, call))
        return Response(content, media_type="application/json")


async def _in_worker(models: Models, chosen: ChosenModel, call: Callable[[ChosenModel, Job], Any]) -> bytes:
    served = chosen.served
    job, seconds = Job(), models.limits.seconds
    try:
        future = served.worker.submit(lambda: _as_json(call(chosen, job)))
    except QueueFullError as error:
        models.metrics.of(served.name).rejected.inc()
        raise ApiError(429, str(error), code="queue_full") from None
    try:
        return await asyncio.wait_for(asyncio.wrap_future(future), seconds)
    except TimeoutError:
        raise ApiError(504, f"the request took longer than {seconds:g} seconds", code="timeout") from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and not task.cancelling():  # the worker has dropped the call
            raise ApiError(503, "the server stops") from None
        models.metrics.of(served.name).cancelled.inc()
        raise
    except NonFiniteError as error:
        models.metrics.of(served.name).failed.inc()
        raise ApiError(500, str(error)) from None
    except ApiError as error:
        for folder in (*served.source.adapters.values(), served.source.folder):
            error.message = error.message.replace(str(folder), f"the model {served.name!r}")
        raise
    finally:
        job.abandon()


def _as_json(answer: dict[str, Any]) -> bytes:
    """Return ``answer`` as JSON.  Raises NonFiniteError for a number that JSON does not have."""
    try:
        text = json.dumps(answer, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        raise NonFiniteError("the model gives numbers that are not finite; its weights are damaged") from None
    # half of a surrogate pair, in a word of damaged UTF-8, is written as an escape of JSON
    return text.encode("utf-8", "backslashreplace")


@contextmanager
def field_errors(field: str, *, setting: str | None = None) -> Iterator[None]:
    """Turn the errors of a mistaken request into ApiErrors that name the field at fault.

    A ConfigError names the field ``setting``, if it is given.  An error of the checkpoint, such as a missing
    tokenizer, names the field ``model``.
    """
    try:
        yield
    except NonFiniteError:
        raise
    except CheckpointError as error:
        raise ApiError(400, str(error), param="model", code="unsupported_model") from None
    except WordloomError as error:
        message = str(error)
        field = setting if setting is not None and isinstance(error, ConfigError) else field
        named = message if message.startswith(f"'{field}") else f"'{field}': {message}"
        raise ApiError(400, named, param=field, code="invalid_value") from None


def item_name(field: str, several: bool, number: int) -> str:
    """Return the name of an item in an error: ``'texts[2]'``."""
    return f"'{field}[{number}]'" if several else f"'{field}'"


def as_list(model: str, data: Sequence[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Return an answer in the form of OpenAI's lists; each item has the index of its input."""
    items = [{"index": index, **item} for index, item in enumerate(data)]
    return {"object": "list", "model": model, "data": items, **more}
