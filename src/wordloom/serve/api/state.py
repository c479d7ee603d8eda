"""``/v1/models``, ``/health`` and ``/metrics``: what the server has, and how it is."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, Response

from wordloom.serve.errors import ApiError
from wordloom.serve.models import Models

router = APIRouter()


def _entry(models: Models, name: str) -> dict[str, Any]:
    base = models.adapters.get(name, name)
    served = models.loaded.get(base)
    found: dict[str, Any] = {
        "id": name, "object": "model", "created": models.created, "owned_by": "wordloom",
        "loaded": served is not None,
    }  # fmt: skip
    if base != name:
        found["parent"] = base
    if served is not None:
        found |= {
            "kind": served.description,
            "bytes": served.n_bytes,
            "context": None if served.engine is None else served.engine.room,
        }
    return found


@router.get("/v1/models")
async def list_models(http: HttpRequest) -> dict[str, Any]:
    """Return all models."""
    models: Models = http.app.state.models
    return {"object": "list", "data": [_entry(models, name) for name in models.names]}


@router.get("/v1/models/{name:path}")
async def one_model(name: str, http: HttpRequest) -> dict[str, Any]:
    """Return one model."""
    models: Models = http.app.state.models
    if name not in models.names:
        raise ApiError(404, f"there is no model {name!r}", param="model", code="model_not_found")
    return _entry(models, name)


@router.get("/health")
@router.head("/health", include_in_schema=False)
async def health(http: HttpRequest) -> JSONResponse:
    """Return 200, or 503 while a model loads, and where one has failed."""
    models: Models = http.app.state.models
    dead = [name for name, served in list(models.loaded.items()) if served.engine and not served.engine.alive]
    if models.error is not None:
        return ApiError(503, models.error).response()
    if dead:
        return ApiError(503, f"the engine of {', '.join(dead)} has failed; restart the server").response()
    if not models.ready:
        return ApiError(503, "the model is loading", code="loading").response()
    return JSONResponse({"status": "ok"})


@router.get("/metrics")
async def metrics(http: HttpRequest) -> Response:
    """Return the metrics of all models, for Prometheus."""
    models: Models = http.app.state.models
    for name, served in list(models.loaded.items()):
        engine, waiting = served.engine, served.worker.n_waiting
        models.metrics.of(name).queued.set(waiting + (0 if engine is None else engine.n_waiting))
        if engine is not None:
            models.metrics.of(name).slots.set(engine.n_live)
            models.metrics.of(name).cache_bytes.set(engine.cache_bytes)
            models.metrics.of(name).rate.set(engine.tokens_per_second)
    return Response(models.metrics.text(), media_type="text/plain; version=0.0.4")
