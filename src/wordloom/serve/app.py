"""The application: all endpoints, the gate in front of them, and the page."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

from wordloom import __version__
from wordloom.serve.api import (
    answer,
    card,
    chat,
    classify,
    completions,
    embeddings,
    fill_mask,
    inspect,
    responses,
    score,
    state,
    tokens,
    translate,
    words,
)
from wordloom.serve.errors import ApiError, add_handlers
from wordloom.serve.limits import Gate, Limits
from wordloom.serve.models import Models
from wordloom.serve.request_log import RequestLog

log = logging.getLogger(__name__)

_ROUTERS = (
    card.router,  # before the state, whose path of a model would match too
    state.router,
    completions.router,
    chat.router,
    responses.router,
    tokens.router,
    embeddings.router,
    score.router,
    translate.router,
    fill_mask.router,
    classify.router,
    answer.router,
    words.router,
    inspect.router,
)

_PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # a browser asks whether a file has changed
}


class _PageFiles(StaticFiles):
    """The files of the page, with headers that keep out scripts and styles of other origins.

    It gets every request that no endpoint takes, also those with a method that ``endpoints`` do not have.
    """

    def __init__(self, directory: Path, endpoints: Sequence[Route]) -> None:
        super().__init__(directory=directory, html=True)
        self.endpoints = endpoints

    async def get_response(self, path: str, scope: Scope) -> Response:
        fitting = [route for route in self.endpoints if route.path_regex.match(f"/{path}")]
        allowed = {method for route in fitting for method in route.methods or ()}
        if allowed and scope["method"] not in allowed:
            raise HTTPException(405, headers={"Allow": ", ".join(sorted(allowed))})
        if scope["method"] not in ("GET", "HEAD"):
            raise HTTPException(404)
        response = await super().get_response(path, scope)
        response.headers.update(_PAGE_HEADERS)
        return response


def create_app(
    models: Models,
    limits: Limits,
    *,
    origins: Sequence[str] = (),
    first: Sequence[str] = (),
    on_failure: Callable[[], object] = lambda: None,
    log_requests: bool = False,
) -> FastAPI:
    """Return the application that serves ``models``.

    ``origins`` are sites whose pages may call the API.  The models called ``first`` are loaded at the start,
    and ``on_failure`` is called if one cannot be.  With ``log_requests``, each request has a line in the log.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        loading = asyncio.create_task(_load(models, first, app.state.loader, on_failure))
        yield
        loading.cancel()
        app.state.loader.shutdown(wait=False, cancel_futures=True)

    app = FastAPI(
        title="Wordloom", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None,
        description="Language models over HTTP, as OpenAI's clients ask for them.",
    )  # fmt: skip
    app.state.models = models
    app.state.loader = ThreadPoolExecutor(1, "wordloom-load")
    add_handlers(app)
    for router in _ROUTERS:
        app.include_router(router)
    page = Path(str(resources.files("wordloom.serve") / "page"))
    open_paths = ["/", *(f"/{path.relative_to(page)}" for path in page.rglob("*") if path.is_file())]
    endpoints = [route for router in _ROUTERS for route in router.routes if isinstance(route, Route)]
    app.mount("/", _PageFiles(page, endpoints), name="page")
    app.add_middleware(Gate, limits=limits, open_paths=open_paths)
    if origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(origins), allow_methods=["GET", "POST"], allow_headers=["*"],
            allow_private_network=True,
        )  # fmt: skip
    if log_requests:
        app.add_middleware(RequestLog, left_out=open_paths)
    return app


async def _load(
    models: Models, names: Sequence[str], loader: ThreadPoolExecutor, on_failure: Callable[[], object]
) -> None:
    for name in names:
        try:
            await asyncio.get_running_loop().run_in_executor(loader, models.get, name)
        except Exception as error:  # also when the memory is full, or a kernel cannot be compiled
            if not isinstance(error, ApiError):
                log.exception("%s cannot be loaded", name)
            models.error = (
                error.message if isinstance(error, ApiError) else f"{name} cannot be loaded: {error}"
            )
            on_failure()
            return
    models.ready = True
