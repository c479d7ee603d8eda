"""Report the progress of long work on standard error: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

log = logging.getLogger(__name__)

_LINE_SECONDS = 10.0  # between plain lines, so that a log file stays readable
_STATE = TextColumn("{task.fields[state]}")
_SHARE = TextColumn("{task.percentage:>3.0f}%")


class _Console(Console):
    """A console on standard error that falls silent when its reader has gone, as a pipe into ``head``."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


class ProgressBar:
    """A bar on a terminal, and a plain line every ten seconds elsewhere.

    The bar appears with the first call of :meth:`show`, and disappears at the end unless it is ``kept``.
    """

    def __init__(
        self, label: str, *columns: ProgressColumn, console: Console | None = None, kept: bool = False
    ) -> None:
        self.console = console or _Console(file=sys.stderr, highlight=False)
        self.label = label
        labels = [TextColumn("{task.description}")] if label else []
        self._bar = Progress(*labels, *columns, console=self.console, transient=not kept)
        self._task = self._bar.add_task(label, total=None, state="")
        self._last_line = -_LINE_SECONDS if kept else time.monotonic()

    def show(
        self, done: float, total: float | None, state: str, *, line: str | None = None, now: bool = False
    ) -> None:
        """Set the bar to ``done`` of ``total``, or print ``line``: every ten seconds, or ``now``."""
        if self.console.is_terminal:
            self._bar.start()
            self._bar.update(self._task, description=self.label, total=total, completed=done, state=state)
        elif now or time.monotonic() - self._last_line >= _LINE_SECONDS:
            self._last_line = time.monotonic()
            label = f"{self.label}: " if self.label else ""
            share = "" if total is None else f"{done / max(1, total):.0%}  "
            self.console.print(line or f"{label}{share}{state}", markup=False, soft_wrap=True)

    def stop(self) -> None:
        if self._bar.live.is_started:  # otherwise rich prints an empty line
            self._bar.stop()

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class TrainingProgress:
    """Shows a run: the preparation of its data, then the rate, loss and time left of each metrics line."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or _Console(file=sys.stderr, highlight=False)
        self._bar: ProgressBar | None = None
        self._total = 0

    def say(self, lines: str | Iterable[str]) -> None:
        """Print lines above the bar."""
        for line in [lines] if isinstance(lines, str) else lines:
            self.console.print(line, markup=False, soft_wrap=True)

    @contextmanager
    def counting(self, label: str) -> Iterator[Callable[[int], None]]:
        """Yield a callback for the number of words read so far."""
        began = time.monotonic()
        with ProgressBar(label, _STATE, console=self.console) as bar:

            def show(words: int) -> None:
                rate = words / max(1e-9, time.monotonic() - began)
                bar.show(words, None, f"{words:,} words  {rate:,.0f} words/s")

            yield show

    @contextmanager
    def data(self, part: str) -> Iterator[Callable[[Any], None]]:
        """Yield a callback for :func:`wordloom.data.prepare`."""
        began = time.monotonic()
        columns = (BarColumn(bar_width=None), _SHARE, _STATE)
        with ProgressBar(f"preparing {part}", *columns, console=self.console) as bar:

            def show(done: Any) -> None:
                rate = done.tokens / max(1e-9, time.monotonic() - began)
                state = f"{done.documents:,} documents  {done.tokens:,} tokens  {rate:,.0f} tokens/s"
                bar.show(done.bytes_read, done.bytes_total, state)

            yield show

    def start(self, *, total: int, done: int) -> None:
        """Show the bar of training, at step ``done`` of ``total``."""
        self._total = total
        columns = (BarColumn(bar_width=None), MofNCompleteColumn(), _STATE)
        self._bar = ProgressBar("training", *columns, console=self.console, kept=True)
        if self.console.is_terminal:
            self._bar.show(done, total, "")

    def update(self, line: dict[str, Any]) -> None:
        """Show one line of ``metrics.jsonl``."""
        match line["kind"]:
            case "train":
                self._train(line)
            case "vectors":
                self._vectors(line)
            case "evaluate":
                metrics = ", ".join(
                    f"{key} {value:.4f}"
                    for key, value in line.items()
                    if isinstance(value, float) and key != "seconds"
                )
                self.say(f"step {line['step']:,}: validation {metrics}")
            case "old_task":
                self.say(f"step {line['step']:,}: old task loss {line['loss']:.4f}")
            case "sample":
                self.say(f"step {line['step']:,} writes:\n{line['text']}")

    def _train(self, line: dict[str, Any]) -> None:
        left = line["seconds_left"]
        loss = "-" if line["loss"] is None else f"{line['loss']:.3f}"  # None: all steps rehearsed
        norm = "-" if line["gradient_norm"] is None else f"{line['gradient_norm']:.2f}"  # None: not finite
        state = f"loss {loss}  {line['tokens_per_second']:,.0f} tokens/s  {_clock(left)} left"
        used = f"  flop utilisation {line['flop_utilisation']:.0%}" if "flop_utilisation" in line else ""
        details = (
            f"{state}  learning rate {line['learning_rate']:.2e}  gradient norm {norm}"
            f"{used}  memory in use {line['memory_mb']:,} MB"
        )
        fits = self.console.width >= len(details) + 50  # room for the bar itself
        plain = f"step {line['step']:,}/{self._total:,}  {details}"
        self._show(line["step"], details if fits else state, plain)

    def _vectors(self, line: dict[str, Any]) -> None:
        loss = "" if line["loss"] is None else f"loss {line['loss']:.3f}  "
        unit = "words" if "words_per_second" in line else "records"
        state = f"epoch {line['epoch']}/{line['epochs']}  {loss}".rstrip()
        if (rate := line[f"{unit}_per_second"]) is not None:  # None after the first portion
            state += f"  {rate:,.0f} {unit}/s  {_clock(line['seconds_left'])} left"
        plain = f"{line['job'] / max(1, self._total):4.0%}  {state}  alpha {line['alpha']:.4f}"
        self._show(line["job"], state, plain)

    def _show(self, done: int, state: str, plain: str) -> None:
        if self._bar is None:
            self.say(plain)
        else:
            self._bar.show(done, self._total, state, line=plain, now=done >= self._total)

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class TerminalReporter:
    """Shows lines and progress; see :class:`wordloom.run.checkpoint.loaders.Reporter`."""

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    @contextmanager
    def progress(self, total: float) -> Iterator[Callable[[float, str], None]]:
        done = 0.0
        with ProgressBar("", BarColumn(), _SHARE, _STATE, TimeRemainingColumn()) as bar:

            def advance(amount: float, state: str) -> None:
                nonlocal done
                done += amount
                bar.show(done, total, state)

            yield advance


@contextmanager
def tokenizer_progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """Yield a callback for :meth:`wordloom.text.Tokenizer.train`: its stage, and bytes read of all bytes."""
    with ProgressBar("reading", BarColumn(), DownloadColumn(), TimeElapsedColumn()) as bar:

        def show(stage: str, done: int, total: int | None) -> None:
            finished = total is not None and done >= total
            bar.label = "training" if finished else stage
            bar.show(done, None if finished else total, f"{done / 2**20:,.0f} MB")

        yield show


class Clock:
    """Words per second and time left, without the first portion: its time includes compiling kernels."""

    def __init__(self) -> None:
        self._running, self._seconds, self._words, self._jobs = False, 0.0, 0, 0

    def take(self, seconds: float, words: int, jobs: int) -> None:
        """Add a portion of ``words`` words and ``jobs`` jobs that took ``seconds``."""
        if self._running:
            self._seconds += seconds
            self._words += words
            self._jobs += jobs
        self._running = True

    @property
    def rate(self) -> float | None:
        return self._words / self._seconds if self._jobs else None

    def seconds_for(self, jobs: int) -> float | None:
        return round(self._seconds / self._jobs * jobs, 1) if self._jobs else None


def _clock(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


class RankProgress(TrainingProgress):
    """The progress of a rank that is not the first: its lines are for the log (``--verbose``)."""

    def __init__(self, rank: int) -> None:
        super().__init__(Console(quiet=True))
        self.rank = rank

    def say(self, lines: str | Iterable[str]) -> None:
        for line in [lines] if isinstance(lines, str) else lines:
            log.info("rank %d: %s", self.rank, line)
