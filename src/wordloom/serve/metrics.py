"""Counts and times of a model's requests, in the format of Prometheus."""

from __future__ import annotations

from dataclasses import dataclass, fields

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_FIRST = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_EACH = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)


@dataclass(frozen=True)
class ModelMetrics:
    """The metrics of one model.  They are kept, since a lookup for each token would cost time."""

    queued: Gauge
    slots: Gauge
    cache_bytes: Gauge
    read: Counter
    cached: Counter
    written: Counter
    rejected: Counter
    cancelled: Counter
    failed: Counter
    rate: Gauge
    first: Histogram
    each: Histogram


class Metrics:
    """The metrics of a server; each has the label ``model``."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._all = ModelMetrics(
            queued=self._gauge("queue_length", "Requests that wait for a slot"),
            slots=self._gauge("slots_in_use", "Slots in use"),
            cache_bytes=self._gauge("cache_bytes", "Bytes of slots and of kept beginnings of texts"),
            read=self._counter("prompt_tokens", "Tokens of prompts that were read"),
            cached=self._counter("cached_prompt_tokens", "Tokens of prompts that were known already"),
            written=self._counter("generated_tokens", "Tokens that were written"),
            rejected=self._counter("rejected_requests", "Requests refused because too many wait"),
            cancelled=self._counter("cancelled_requests", "Requests that the client left"),
            failed=self._counter("failed_requests", "Requests that ended with an error"),
            rate=self._gauge("tokens_per_second", "Tokens written per second, over the last ten seconds"),
            first=self._histogram("time_to_first_token_seconds", "From the request to its token", _FIRST),
            each=self._histogram("time_per_token_seconds", "Between two tokens of a choice", _EACH),
        )
        self._of_models: dict[str, ModelMetrics] = {}

    def of(self, model: str) -> ModelMetrics:
        """Return the metrics of the model with this name."""
        found = self._of_models.get(model)
        if found is None:
            names = [field.name for field in fields(ModelMetrics)]
            found = ModelMetrics(**{name: getattr(self._all, name).labels(model) for name in names})
            self._of_models[model] = found
        return found

    def text(self) -> bytes:
        """Return all metrics as text."""
        return generate_latest(self.registry)

    def _gauge(self, name: str, about: str) -> Gauge:
        return Gauge(f"wordloom_{name}", about, ["model"], registry=self.registry)

    def _counter(self, name: str, about: str) -> Counter:
        return Counter(f"wordloom_{name}", about, ["model"], registry=self.registry)

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"wordloom_{name}", about, ["model"], registry=self.registry, buckets=buckets)
