"""The models of a server by name: loaded when first asked for, and unloaded when others need room."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from wordloom.errors import WordloomError
from wordloom.models import generation_limit
from wordloom.run.checkpoint.kinds import Kind, kind_of
from wordloom.run.checkpoint.loaders import Checkpoint, read_checkpoint, with_adapter
from wordloom.run.models.language_model import LanguageModel
from wordloom.serve.engine import Engine
from wordloom.serve.errors import ApiError
from wordloom.serve.limits import Limits
from wordloom.serve.metrics import Metrics
from wordloom.training.precision import choose_device
from wordloom.vectors import load_vectors
from wordloom.weights.adapted import load_adapted_model

log = logging.getLogger(__name__)

DEFAULT_ROOM = 4096  # tokens of a model without a limit of its own


@dataclass(frozen=True)
class Source:
    """A folder to serve, and its adapters by name."""

    folder: Path
    adapters: Mapping[str, Path] = field(default_factory=dict)


@dataclass(eq=False)
class Served:
    """A loaded model.

    Attributes:
        model: what :func:`wordloom.load` returns, or word vectors.
        engine: continues texts; None for a model that writes none.
        kind: the kind of checkpoint; None for word vectors.
        n_bytes: of its weights.
    """

    name: str
    source: Source
    model: Any
    kind: Kind | None
    checkpoint: Checkpoint | None
    engine: Engine | None
    n_bytes: int
    created: int
    used: float = 0.0
    busy: int = 0  # requests that use it now

    def __post_init__(self) -> None:
        # models that write no text compute one request at a time
        self.worker = ThreadPoolExecutor(1, f"wordloom-{self.name}")

    def close(self, drain_seconds: float) -> None:
        """End the threads."""
        if self.engine is not None:
            self.engine.stop(drain_seconds=drain_seconds)
        self.worker.shutdown(wait=True, cancel_futures=True)


class Models:
    """The models that a server has, by name; an adapter is a model of its own."""

    def __init__(
        self, sources: Mapping[str, Source], limits: Limits, metrics: Metrics, *,
        device: str = "auto", dtype: str = "auto",
    ) -> None:  # fmt: skip
        self.sources, self.limits, self.metrics = dict(sources), limits, metrics
        self.device, self.dtype = device, dtype
        self.adapters = {
            adapter: name for name, source in self.sources.items() for adapter in source.adapters
        }
        self.loaded: dict[str, Served] = {}
        self.created = int(time.time())
        self.error: str | None = None
        self.ready = False
        self._lock = threading.Lock()

    @property
    def names(self) -> list[str]:
        """All names, those of adapters behind their base."""
        return [each for name, source in self.sources.items() for each in (name, *source.adapters)]

    def get(self, name: str) -> tuple[Served, str | None]:
        """Return the model called ``name``, loaded, and the adapter to use.

        Raises ApiError for an unknown name and a folder that cannot be loaded.
        """
        base = self.adapters.get(name, name)
        if base not in self.sources:
            known = ", ".join(self.names)
            raise ApiError(
                404, f"there is no model {name!r}; there are {known}", param="model", code="model_not_found"
            )
        adapter = name if name in self.adapters else None
        with self._lock:
            served = self.loaded.get(base)
            if served is None:
                served = self._load(base)
            served.used = time.monotonic()
        return served, adapter

    def _load(self, name: str) -> Served:
        log.info("loading %s", name)
        try:
            served = load_served(
                name, self.sources[name], self.limits, self.metrics, device=self.device, dtype=self.dtype
            )
        except WordloomError as error:
            log.error("%s: %s", name, error)
            raise ApiError(500, f"the model {name!r} cannot be loaded: {error}") from None
        self._make_room(served.n_bytes)
        self.loaded[name] = served
        return served

    def _make_room(self, needed: int) -> None:
        """Unload the models that were used longest ago until ``needed`` bytes fit; busy ones stay."""
        bound = self.limits.model_bytes
        if bound is None:
            return
        idle = sorted((each for each in self.loaded.values() if not each.busy), key=lambda each: each.used)
        for each in idle:
            if needed + sum(other.n_bytes for other in self.loaded.values()) <= bound:
                return
            log.info("unloading %s", each.name)
            del self.loaded[each.name]
            each.close(0.0)

    def close(self, drain_seconds: float) -> None:
        """Finish what runs within ``drain_seconds``, and end all threads."""
        with self._lock:
            for served in self.loaded.values():
                served.close(drain_seconds)
            self.loaded.clear()


def load_served(
    name: str, source: Source, limits: Limits, metrics: Metrics, *, device: str = "auto", dtype: str = "auto"
) -> Served:
    """Load the model in a folder, and start its engine if it writes text.

    Raises WordloomError for a folder without a model, and for an adapter of another model.
    """
    created = int(time.time())
    if _holds_vectors(source.folder):
        vectors = load_vectors(source.folder)
        return Served(name, source, vectors, None, None, None, vectors.vectors.nbytes, created)
    checkpoint = read_checkpoint(source.folder)
    kind = kind_of(checkpoint)
    model = kind.load(checkpoint, device, dtype)
    network = getattr(model, "model", None)
    n_bytes = 0 if network is None else _n_bytes(network)
    engine = None
    if isinstance(model, LanguageModel):
        adapters = {}
        for adapter, folder in source.adapters.items():
            with_adapter(checkpoint, folder)  # refuses an adapter of an adapter
            adapters[adapter], _ = load_adapted_model(source.folder, folder, device=choose_device(device))
        engine = _engine(name, model, adapters, limits, metrics)
        engine.start()
    return Served(name, source, model, kind, checkpoint, engine, n_bytes, created)


def _engine(
    name: str, lm: LanguageModel, adapters: Mapping[str, Any], limits: Limits, metrics: Metrics
) -> Engine:
    room = generation_limit(lm.model.config)
    if limits.context is not None:
        room = limits.context if room is None else min(room, limits.context)
    return Engine(
        lm.model,
        adapters=adapters,
        room=DEFAULT_ROOM if room is None else room,
        slots=limits.slots,
        queue=limits.queue,
        prefix_bytes=limits.prefix_bytes,
        metrics=metrics,
        name=name,
    )


def _holds_vectors(folder: Path) -> bool:
    return folder.is_file() or (folder / "vectors.json").is_file()


def _n_bytes(model: Any) -> int:
    if not isinstance(model, torch.nn.Module):
        return 0
    return sum(part.nbytes for part in (*model.parameters(), *model.buffers()))
