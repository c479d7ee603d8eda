"""The models of a server by name: loaded when first asked for, and unloaded when others need room."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from wordloom.errors import WordloomError
from wordloom.generate.settings import settings
from wordloom.models import generation_limit
from wordloom.run.checkpoint.kinds import Kind, kind_of
from wordloom.run.checkpoint.loaders import Checkpoint, language_model_of, read_checkpoint, with_adapter
from wordloom.run.models.language_model import LanguageModel
from wordloom.serve.engine import Engine
from wordloom.serve.errors import ApiError, shown
from wordloom.serve.limits import Limits
from wordloom.serve.metrics import Metrics
from wordloom.serve.worker import Worker
from wordloom.training.precision import choose_device
from wordloom.vectors import FastTextClassifier, load_vectors
from wordloom.weights.adapted import load_adapted_model

log = logging.getLogger(__name__)

DEFAULT_ROOM = 4096  # tokens of a model without a limit of its own


@dataclass(frozen=True)
class Source:
    """A folder to serve, and its adapters by name."""

    folder: Path
    adapters: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class Adapted:
    """A model with an adapter: its kind, and a function that loads it with the adapter merged."""

    kind: Kind
    load: Callable[[], Any]


@dataclass(eq=False, kw_only=True)
class Served:
    """A loaded model.

    Attributes:
        model: what :func:`wordloom.load` returns, word vectors, or a fastText classifier.
        adapted: the model with each of its adapters, by the name of the adapter.
        writers: the language model as each adapter's folder describes it (tokenizer with its chat template,
            system message, settings), by the name of the adapter; the weights are those of ``model``.
        description: the kind of model, for messages: "an encoder".
        kind: the kind of checkpoint; None for word vectors and fastText classifiers.
        engine: generates text; None for a model that generates none.
        worker: computes all other requests.
        derived: objects that the worker has made from the model, by name.
        n_bytes: the size of the weights.
        busy: the number of requests that use the model now.
    """

    name: str
    source: Source
    model: Any
    worker: Worker
    description: str
    created: int
    n_bytes: int = 0
    adapted: Mapping[str, Adapted] = field(default_factory=dict)
    writers: Mapping[str, LanguageModel] = field(default_factory=dict)
    kind: Kind | None = None
    checkpoint: Checkpoint | None = None
    engine: Engine | None = None
    derived: dict[str, Any] = field(default_factory=dict)
    used: float = 0.0
    busy: int = 0

    def as_described(self, adapter: str | None) -> Any:
        """Return the model with the tokenizer and the settings of an adapter; None: with its own."""
        return self.model if adapter is None else self.writers.get(adapter, self.model)

    def with_adapter(self, adapter: str | None) -> Any:
        """Return the model with an adapter, which is loaded once; None: without one.

        Called by the worker alone.
        """
        if adapter is None:
            return self.model
        key = f"adapter {adapter}"
        if key not in self.derived:
            model = self.adapted[adapter].load()
            self.derived[key] = model
            self.n_bytes += _n_bytes(model.model)
        return self.derived[key]

    def close(self, drain_seconds: float) -> None:
        """End the threads."""
        if self.engine is not None:
            self.engine.stop(drain_seconds=drain_seconds)
        self.worker.close()


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
        self._lock = threading.Lock()  # held while a model is loaded
        self._counts = threading.Lock()  # guards ``loaded`` and the ``busy`` of each model; held briefly

    @property
    def names(self) -> list[str]:
        """All names, those of adapters behind their base."""
        return [each for name, source in self.sources.items() for each in (name, *source.adapters)]

    def get(self, name: str) -> tuple[Served, str | None]:
        """Return the model called ``name``, loaded, and the adapter to use.

        Raises ApiError for an unknown name and a folder that cannot be loaded.
        """
        served, adapter = self.acquire(name)
        self.release(served)
        return served, adapter

    def acquire(self, name: str) -> tuple[Served, str | None]:
        """Return the same as :meth:`get`; the model stays loaded until :meth:`release`."""
        base, adapter = self._base_of(name)
        with self._lock:
            found = self.acquire_loaded(name)
            if found is not None:
                return found
            served = self._load(base)
            with self._counts:
                served.busy += 1
                self.loaded[base] = served
        return served, adapter

    def acquire_loaded(self, name: str) -> tuple[Served, str | None] | None:
        """Return the same as :meth:`acquire` without waiting; None for a model that is not loaded."""
        base, adapter = self._base_of(name)
        with self._counts:
            served = self.loaded.get(base)
            if served is None:
                return None
            served.busy += 1
            return served, adapter

    def release(self, served: Served) -> None:
        """Allow a model that was acquired to be unloaded."""
        bound = self.limits.model_bytes
        with self._counts:
            served.busy -= 1
            served.used = time.monotonic()
            exceeds = bound is not None and sum(each.n_bytes for each in self.loaded.values()) > bound
        if exceeds and len(self.loaded) > 1 and not self._lock.locked():
            threading.Thread(target=self._trim, name="wordloom-unload", daemon=True).start()

    def _trim(self) -> None:
        """Unload models that were in use when another was loaded; the one that was used last stays."""
        with self._lock:
            if len(self.loaded) > 1:
                self._make_room(0, keep=max(self.loaded.values(), key=lambda each: each.used))

    def _base_of(self, name: str) -> tuple[str, str | None]:
        """Return the names of the model and of the adapter; raises ApiError for an unknown name."""
        base = self.adapters.get(name, name)
        if base not in self.sources:
            known = ", ".join(self.names)
            raise ApiError(
                404,
                f"there is no model {shown(name)}; there are {known}",
                param="model",
                code="model_not_found",
            )
        return base, name if name in self.adapters else None

    def _load(self, name: str) -> Served:
        log.info("loading %s", name)
        self._make_room(_bytes_of_files(self.sources[name]))
        try:
            served = load_served(
                name, self.sources[name], self.limits, self.metrics, device=self.device, dtype=self.dtype
            )
        except WordloomError as error:
            log.error("%s: %s", name, error)
            raise ApiError(503, f"the model {name!r} cannot be loaded: {error}") from None
        self._make_room(served.n_bytes)
        return served

    def _make_room(self, needed: int, keep: Served | None = None) -> None:
        """Unload the least recently used models until ``needed`` bytes fit; none in use, and not ``keep``."""
        bound = self.limits.model_bytes
        if bound is None:
            return
        for each in sorted(self.loaded.values(), key=lambda each: each.used):
            with self._counts:
                if needed + sum(other.n_bytes for other in self.loaded.values()) <= bound:
                    return
                if each is keep or each.busy or each.worker.n_unfinished:
                    continue
                del self.loaded[each.name]
            log.info("unloading %s", each.name)
            each.close(0.0)

    def close(self, drain_seconds: float) -> None:
        """Finish what runs within ``drain_seconds``, and end all threads."""
        with self._lock:
            for served in self.loaded.values():
                served.close(drain_seconds)
            with self._counts:
                self.loaded.clear()


def _bytes_of_files(source: Source) -> int:
    """Return the bytes of the files of a model and its adapters: about what they take in memory."""
    folders = [Path(source.folder), *map(Path, source.adapters.values())]
    patterns = ("*.safetensors", "*.bin", "*.npy")
    return sum(path.stat().st_size for each in folders for pattern in patterns for path in each.glob(pattern))


def check_sources(sources: Mapping[str, Source], device: str) -> None:
    """Raise WordloomError for a folder that holds no model or adapter; no weights are read."""
    choose_device(device)
    for source in sources.values():
        if _holds_words(source.folder):
            continue
        checkpoint = read_checkpoint(source.folder)
        kind_of(checkpoint)
        for folder in source.adapters.values():
            kind_of(with_adapter(checkpoint, folder))


def load_served(
    name: str, source: Source, limits: Limits, metrics: Metrics, *, device: str = "auto", dtype: str = "auto"
) -> Served:
    """Load the model in a folder, and start its engine if it generates text.

    Raises WordloomError for a folder without a model, and for an adapter of another model.
    """
    created, worker = int(time.time()), Worker(name, limits.queue)
    if _holds_words(source.folder):
        model, n_bytes, description = _load_words(source)
        return Served(
            name=name, source=source, model=model, worker=worker, description=description, created=created,
            n_bytes=n_bytes,
        )  # fmt: skip
    checkpoint = read_checkpoint(source.folder)
    kind = kind_of(checkpoint)
    model = kind.load(checkpoint, device, dtype)
    adapted = {
        adapter: _adapted(with_adapter(checkpoint, folder), device, dtype)
        for adapter, folder in source.adapters.items()
    }
    engine = None
    writers: dict[str, LanguageModel] = {}
    if isinstance(model, LanguageModel):
        writing = [adapter for adapter, each in adapted.items() if each.kind.result is LanguageModel]
        adapters = {
            adapter: load_adapted_model(
                source.folder, source.adapters[adapter], device=choose_device(device)
            )[0]
            for adapter in writing
        }
        for adapter in writing:
            described = with_adapter(checkpoint, source.adapters[adapter])
            writers[adapter] = lm = language_model_of(described, model.model)
            settings(lm.generation_defaults, {}, tokenizer=lm.tokenizer)  # raises for one out of range
        engine = _engine(name, model, adapters, limits, metrics)
        if model.tokenizer is not None:
            settings(
                model.generation_defaults, {}, tokenizer=model.tokenizer
            )  # the checkpoint's are in range
            engine.warm_up(model.tokenizer)
        engine.start()
    return Served(
        name=name, source=source, model=model, worker=worker, description=kind.description, created=created,
        n_bytes=_n_bytes(model.model), adapted=adapted, writers=writers, kind=kind, checkpoint=checkpoint,
        engine=engine,
    )  # fmt: skip


def _adapted(checkpoint: Checkpoint, device: str, dtype: str) -> Adapted:
    kind = kind_of(checkpoint)
    return Adapted(kind, lambda: kind.load(checkpoint, device, dtype))


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


def _holds_words(folder: Path) -> bool:
    """Return whether ``folder`` holds word vectors or a fastText classifier."""
    if folder.is_file() or (folder / "vectors.json").is_file():
        return True
    return (folder / "model.bin").is_file() and not (folder / "config.json").is_file()


def _load_words(source: Source) -> tuple[Any, int, str]:
    """Return word vectors or a fastText classifier, its size in bytes, and its description."""
    if source.adapters:
        raise WordloomError(f"{source.folder} holds no network, so it has no adapters; leave them out")
    if source.folder.is_dir() and not (source.folder / "vectors.json").is_file():
        classifier = FastTextClassifier.load(source.folder)
        n_bytes = classifier.model.input_matrix.nbytes + classifier.model.output_matrix.nbytes
        return classifier, n_bytes, "a fastText classifier"
    vectors = load_vectors(source.folder)
    return vectors, vectors.vectors.nbytes, "word vectors"


def _n_bytes(model: Any) -> int:
    if not isinstance(model, torch.nn.Module):
        return 0
    return sum(part.nbytes for part in (*model.parameters(), *model.buffers()))
