"""Counts and times of a model's requests, in the format of Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_FIRST = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_EACH = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)


class Metrics:
    """The metrics of a server; each has the label ``model``."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.queued = self._gauge("queue_length", "Requests that wait for a slot")
        self.slots = self._gauge("slots_in_use", "Slots in use")
        self.cache_bytes = self._gauge("cache_bytes", "Bytes of slots and of kept beginnings of texts")
        self.read = self._counter("prompt_tokens", "Tokens of prompts that were read")
        self.cached = self._counter("cached_prompt_tokens", "Tokens of prompts that were known already")
        self.written = self._counter("generated_tokens", "Tokens that were written")
        self.rejected = self._counter("rejected_requests", "Requests refused because too many wait")
        self.cancelled = self._counter("cancelled_requests", "Requests that the client left")
        self.failed = self._counter("failed_requests", "Requests that ended with an error")
        self.rate = self._gauge("tokens_per_second", "Tokens written per second, over the last ten seconds")
        self.first = self._histogram("time_to_first_token_seconds", "From the request to its token", _FIRST)
        self.each = self._histogram("time_per_token_seconds", "Between two tokens of a choice", _EACH)

    def text(self) -> bytes:
        """Return all metrics as text."""
        return generate_latest(self.registry)

    def _gauge(self, name: str, about: str) -> Gauge:
        return Gauge(f"wordloom_{name}", about, ["model"], registry=self.registry)

    def _counter(self, name: str, about: str) -> Counter:
        return Counter(f"wordloom_{name}", about, ["model"], registry=self.registry)

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"wordloom_{name}", about, ["model"], registry=self.registry, buckets=buckets)
