"""Continuous batching: requests join and leave between any two steps, and each gets what it would get alone.

A step passes the last token of every row that writes, and reads a piece of the prompts of rows that begin.
Slots, draws and texts are a row's own, and its vectors are exact (:mod:`wordloom.generate.exact_rows`), so no
other request changes its tokens.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from wordloom.errors import GenerationError, TokenizerError, WordloomError
from wordloom.generate.sampling import Sampling, row_generator
from wordloom.generate.text import StopWatch
from wordloom.kernels.threads import one_thread
from wordloom.serve.engine.drawing import Drawn, alike, drawn_tokens
from wordloom.serve.engine.request import Event, Failure, FinishReason, Request, Stream, Token
from wordloom.serve.engine.slots import Row, Slots
from wordloom.serve.metrics import Metrics
from wordloom.text import Tokenizer

log = logging.getLogger(__name__)

LATELY = 10.0  # seconds
READING_SECONDS = 0.03  # prompts are read for so long between two steps
RESTING_SECONDS = 0.1  # deadlines are looked at so often while no row can go on


class QueueFullError(WordloomError):
    """More requests wait than the engine takes."""


class StoppingError(WordloomError):
    """The engine takes no further request."""


class Engine:
    """Requests that one model continues in a thread of its own.

    Args:
        model: a causal language model.
        adapters: models with an active adapter by name, whose base is ``model``.
        room: the longest text in tokens.
        slots: the most rows at once.
        queue: the most requests that wait; more are refused.
        prefix_bytes: the bytes of beginnings of texts that are kept; 0: none are.
        fast: False runs the modules where a compiled program could.
        metrics: receives counts and times, under the label ``name``.
    """

    def __init__(
        self,
        model: Any,
        *,
        adapters: Mapping[str, Any] | None = None,
        room: int,
        slots: int = 64,
        queue: int = 256,
        prefix_bytes: int = 1 << 28,
        fast: bool = True,
        metrics: Metrics | None = None,
        name: str = "",
    ) -> None:
        self.slots = Slots(model, adapters or {}, room, most=slots, prefix_bytes=prefix_bytes, fast=fast)
        self.room, self.n_slots, self.queue = room, slots, queue
        self.metrics, self.name = metrics or Metrics(), name
        self.error: BaseException | None = None
        self._live: list[Row] = []
        self._waiting: deque[Stream] = deque()
        self._changed = threading.Condition()
        self._stopping = self._draining = False
        self._lately: deque[tuple[float, int]] = deque()  # when steps ended, and the tokens that they wrote
        self._thread = threading.Thread(target=self._run, name="wordloom-engine", daemon=True)

    # -- for other threads -----------------------------------------------------------------------------

    def warm_up(self, tokenizer: Tokenizer) -> None:
        """Answer a short request with each adapter, so that no client waits for programs to compile.

        Called before :meth:`start`.  Raises GenerationError if the model cannot answer, as with weights that
        are not finite.
        """
        metrics, self.metrics = self.metrics, Metrics()  # which do not count this
        events: list[Event] = []
        for adapter in self.slots.of_adapter:
            sampling = Sampling(max_new_tokens=min(2, self.room - 1), top_k=2, seed=0)
            request = Request(prompt=[0], sampling=sampling, tokenizer=tokenizer, adapter=adapter)
            self.submit(request, events.extend)
            while self._has_work():
                self.step()
        for event in events:
            if isinstance(event, Failure):
                raise GenerationError(event.message)
        self.forget()
        self.metrics = metrics
        self._lately.clear()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, *, drain_seconds: float = 0.0) -> None:
        """Answer no further requests; finish those that run within ``drain_seconds``, and end the thread."""
        with self._changed:
            self._draining = True
            self._changed.notify_all()
        until = time.monotonic() + drain_seconds
        while time.monotonic() < until and self.alive and (self._live or self._waiting):
            time.sleep(0.02)
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(timeout=10)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive() and self.error is None

    @property
    def is_ending(self) -> bool:
        """Whether no further request is taken."""
        return self._draining

    @property
    def n_waiting(self) -> int:
        """The requests that wait for a slot."""
        return len(self._waiting)

    @property
    def n_live(self) -> int:
        """The slots in use."""
        return len(self._live)

    @property
    def is_full(self) -> bool:
        """Whether a further request would be refused: too many wait beside those that get a free slot."""
        free = max(0, self.n_slots - len(self._live))
        return len(self._waiting) - free >= self.queue

    @property
    def cache_bytes(self) -> int:
        """The bytes of all slots and kept beginnings."""
        return self.slots.n_bytes

    @property
    def tokens_per_second(self) -> float:
        """The tokens written per second, over the last ten seconds."""
        now = time.monotonic()
        return sum(n for at, n in list(self._lately) if at > now - LATELY) / LATELY

    def submit(self, request: Request, deliver: Callable[[list[Event]], None]) -> Stream:
        """Queue ``request``; its events are given to ``deliver`` in the engine's thread, some at a time.

        The last event has a finish reason for the last choice, or is a failure.  A stream that is cancelled
        gets no further event.

        Raises GenerationError for a request that cannot be answered, QueueFullError where too many wait, and
        StoppingError where the engine stops.
        """
        self._check(request)
        stream = Stream(request, deliver, wake=self._wake, created=time.perf_counter())
        with self._changed:
            if self._draining:
                raise StoppingError("the server stops")
            if self.is_full:
                self.metrics.of(self.name).rejected.inc()
                raise QueueFullError(f"{len(self._waiting)} requests wait already; ask again later")
            self._waiting.append(stream)
            self._changed.notify_all()
        return stream

    def forget(self) -> None:
        """Forget the beginnings of texts that were read; no request may run."""
        self.slots.forget()

    def _check(self, request: Request) -> None:
        n, wanted = len(request.prompt), request.sampling.max_new_tokens
        if not n:
            raise GenerationError("the prompt has no tokens; give at least one")
        if n >= self.room:
            raise GenerationError(f"the prompt has {n:,} tokens, and the context holds {self.room:,}")
        if wanted is not None and n + wanted > self.room:
            raise GenerationError(
                f"the prompt has {n:,} tokens and {wanted:,} more are asked for; the context holds "
                f"{self.room:,}"
            )
        if request.sampling.samples > self.n_slots:
            raise GenerationError(
                f"{request.sampling.samples} choices are asked for, and the server has {self.n_slots} slots"
            )
        if request.adapter not in self.slots.of_adapter:
            raise GenerationError(f"there is no adapter {request.adapter!r}")

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # -- the engine's thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    if not self._stopping and not self._has_work():
                        self._changed.wait(timeout=None if self._is_idle() else RESTING_SECONDS)
                    if self._stopping:
                        break
                self.step()
        except BaseException as error:
            self.error = error
            log.exception("the engine has failed")
        finally:
            why = "the server stops" if self.error is None else "the engine has failed"
            self._end_all(Failure("broken", why))

    def _is_idle(self) -> bool:
        return not self._live and not self._waiting

    def _has_work(self) -> bool:
        """Whether a step would do something; deadlines pass without work."""
        if any(stream.cancelled for stream in self._waiting) or self._admits():
            return True
        return any(row.stream.cancelled or not row.stream.resting for row in self._live)

    def _admits(self) -> bool:
        """Whether there are slots for the request that waits longest."""
        if not self._waiting:
            return False
        return len(self._live) + self._waiting[0].request.sampling.samples <= self.n_slots

    def _end_all(self, failure: Failure) -> None:
        with self._changed:
            self._draining = True
            streams = {id(row.stream): row.stream for row in self._live}
            streams |= {id(stream): stream for stream in self._waiting}
            self._live, self._waiting = [], deque()
        for stream in streams.values():
            if not stream.cancelled:
                self._deliver(stream, [failure])

    def step(self) -> None:
        """Free the slots of requests that ended, admit others, and pass a token of each row."""
        self._drop_ended()
        self._admit()
        events: dict[Stream, list[Event]] = {}
        try:
            self._pass(events)
        finally:  # rows that are complete are no longer among those that an error ends
            for stream, some in events.items():
                self._deliver(stream, some)

    def _pass(self, events: dict[Stream, list[Event]]) -> None:
        """Pass a token of each row, and collect the ``events`` of the requests."""
        writing = [row for row in self._live if not row.held and not row.reads and not row.stream.resting]
        reached: list[tuple[Row, Tensor]] = []
        for rows in self.slots.batches:
            group = [row for row in writing if row.rows is rows]
            if group:
                logits = rows.step([row.slot for row in group], [row.ids[-1] for row in group])
                reached += zip(group, logits, strict=True)
        read, n_read = self.slots.read(self._live, until=time.perf_counter() + READING_SECONDS)
        self.metrics.of(self.name).read.inc(n_read)
        reached += read
        if reached:
            self._draw(reached, events)
            now = time.monotonic()
            self._lately.append((now, len(reached)))
            while self._lately[0][0] <= now - LATELY:
                self._lately.popleft()

    def _deliver(self, stream: Stream, events: list[Event]) -> None:
        stream.n_delivered += sum(isinstance(event, Token) for event in events)
        if any(isinstance(event, Failure) for event in events):
            self.metrics.of(self.name).failed.inc()
        try:
            stream.deliver(events)
        except Exception:  # of the caller; the other requests go on
            log.exception("events could not be delivered")
            stream.cancelled = True

    def _drop_ended(self) -> None:
        """Free the slots of requests that were cancelled, or whose time is over."""
        now = time.monotonic()
        with self._changed:
            streams = {*self._waiting, *(row.stream for row in self._live)}
        self.metrics.of(self.name).cancelled.inc(sum(stream.cancelled for stream in streams))
        for stream in streams:
            deadline = stream.request.deadline
            if deadline is not None and now > deadline and not stream.cancelled:
                stream.cancelled = True
                self._deliver(stream, [Failure("timeout", "the time for this request is over")])
        for row in [row for row in self._live if row.stream.cancelled]:
            self._release(row)
        if any(stream.cancelled for stream in streams):
            with self._changed:
                self._waiting = deque(stream for stream in self._waiting if not stream.cancelled)

    def _release(self, row: Row) -> None:
        self._live.remove(row)
        self.slots.give_back(row)

    def _admit(self) -> None:
        """Give slots to the requests that wait longest."""
        while self._admits():
            with self._changed:
                stream = self._waiting.popleft()
            request, sampling = stream.request, stream.request.sampling
            seed, prompt = sampling.seed, list(request.prompt)
            assert seed is not None
            wanted = self.room if sampling.max_new_tokens is None else sampling.max_new_tokens
            try:
                decoders = [
                    request.tokenizer.stream_decoder(prompt, skip_special_tokens=True)
                    for _ in range(sampling.samples)
                ]
            except TokenizerError as error:  # an id that the tokenizer lacks
                stream.cancelled = True
                self._deliver(stream, [Failure("invalid", str(error))])
                continue
            for choice, decoder in enumerate(decoders):
                rows, slot = self.slots.take(request.adapter)
                row = Row(
                    stream=stream,
                    choice=choice,
                    rows=rows,
                    slot=slot,
                    ids=list(prompt),
                    limit=min(self.room, len(prompt) + wanted),
                    draws=row_generator(seed, choice),
                    watch=StopWatch(decoder, sampling.stop),
                    alike=alike(request),
                    n_prompt=len(prompt),
                    held=choice > 0,
                )
                self._live.append(row)
                if choice == 0:
                    stream.n_cached = self.slots.restore(row)
                    self.metrics.of(self.name).cached.inc(stream.n_cached)

    def _draw(self, reached: Sequence[tuple[Row, Tensor]], events: dict[Stream, list[Event]]) -> None:
        """Draw the next token of each row, and end the rows that are complete."""
        groups: dict[tuple[Any, ...], list[tuple[Row, Tensor]]] = {}
        for row, logits in reached:
            groups.setdefault(row.alike, []).append((row, logits))
        with one_thread(), torch.inference_mode():
            for group in groups.values():
                rows = [row for row, _ in group]
                logits = torch.stack([each for _, each in group])
                try:
                    self._draw_alike(rows, logits, events)
                except GenerationError:  # find the row at fault
                    for row, each in group:
                        if row.stream.cancelled:  # with another row of its request
                            continue
                        try:
                            self._draw_alike([row], each[None], events)
                        except GenerationError as error:
                            self._fail(row, _failure(each, error), events)

    def _fail(self, row: Row, failure: Failure, events: dict[Stream, list[Event]]) -> None:
        """End the request of ``row``."""
        stream = row.stream
        if not stream.cancelled:
            stream.cancelled = True
            events.setdefault(stream, []).append(failure)
        for each in [each for each in self._live if each.stream is stream]:
            self._release(each)

    def _draw_alike(self, rows: list[Row], logits: Tensor, events: dict[Stream, list[Event]]) -> None:
        """Draw for rows of equal settings by logits [R, V]."""
        request = rows[0].stream.request
        texts, prompts = [row.ids for row in rows], [row.n_prompt for row in rows]
        drawn = drawn_tokens(request, logits, texts, prompts, [row.draws for row in rows])
        for row, each in zip(rows, drawn, strict=True):
            if not row.stream.cancelled:  # as it is when another row of its request has failed
                self._append(row, each, events)

    def _append(self, row: Row, drawn: Drawn, events: dict[Stream, list[Event]]) -> None:
        """Append a drawn token, and end the row where it is complete."""
        stream, request, now, token = row.stream, row.stream.request, time.perf_counter(), drawn.id
        if stream.first_token is None:
            stream.first_token = now
            self.metrics.of(self.name).first.observe(now - stream.created)
        if row.last:
            self.metrics.of(self.name).each.observe(now - row.last)
        row.last = now
        row.ids.append(token)
        self.metrics.of(self.name).written.inc()
        reason: FinishReason | None = None
        text = ""
        ends = token in request.eos_ids or token in request.sampling.stop_ids
        if ends:
            reason = "stop"
        else:
            try:
                text = row.watch.push(token)
            except TokenizerError as error:  # a row of the model without a token
                self._fail(row, Failure("damaged", str(error)), events)
                return
            if row.watch.stopped:
                reason = "stop"
        if reason is None and len(row.ids) >= row.limit:
            reason = "length"
        if reason is not None:
            text += row.watch.flush()
            self._complete(row)
        made = Token(row.choice, token, text, drawn.logprob, reason, drawn.alternatives, ends)
        events.setdefault(stream, []).append(made)

    def _complete(self, row: Row) -> None:
        """Release the slot of ``row``, and keep what it holds for a later turn."""
        self.slots.keep(row)
        self._release(row)


def _failure(logits: Tensor, error: GenerationError) -> Failure:
    """Return the end of a request for which no token can be drawn: by its settings, or by damaged weights."""
    return Failure("invalid" if bool(logits.isfinite().all()) else "damaged", str(error))
