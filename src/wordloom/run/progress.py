"""Report the progress of training: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

__all__ = ["Clock", "TrainingProgress"]

_LINE_SECONDS = 10.0  # between plain lines, so that a log file stays readable


class _Console(Console):
    """Falls silent when its reader has gone (a pipe into ``head``): the run goes on."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


class TrainingProgress:
    """Give it each line of ``metrics.jsonl``; it shows rate, loss and time left."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or _Console(file=sys.stderr, highlight=False)
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._last_line = 0.0
        self._total = 0

    def say(self, lines: str | Iterable[str]) -> None:
        """Print lines above the bar."""
        for line in [lines] if isinstance(lines, str) else lines:
            self.console.print(line, markup=False, soft_wrap=True)

    @contextmanager
    def counting(self, what: str) -> Iterator[Callable[[int], None]]:
        """Yield a callback for the number of words read, shown as a moving line or as plain lines."""
        bar: Progress | None = None
        began = last = time.monotonic()

        def show(words: int) -> None:
            nonlocal bar, last
            now = time.monotonic()
            state = f"{words:,} words  {words / max(1e-9, now - began):,.0f} words/s"
            if self.console.is_terminal:
                if bar is None:
                    bar = Progress(
                        TextColumn(what),
                        TextColumn("{task.fields[state]}"),
                        console=self.console,
                        transient=True,
                    )
                    bar.add_task("", total=None, state="")
                    bar.start()
                bar.update(bar.task_ids[0], state=state)
            elif now - last >= _LINE_SECONDS:
                last = now
                self.say(f"{what}: {state}")

        try:
            yield show
        finally:
            if bar is not None:
                bar.stop()

    @contextmanager
    def data(self, part: str) -> Iterator[Callable[[Any], None]]:
        """A callback for :func:`wordloom.data.prepare`: a bar on a terminal, plain lines elsewhere."""
        bar: Progress | None = None
        last = time.monotonic()

        def show(done: Any) -> None:
            nonlocal bar, last
            state = f"{done.documents:,} documents  {done.tokens:,} tokens"
            if self.console.is_terminal:
                if bar is None:
                    bar = Progress(
                        TextColumn(f"preparing {part}"),
                        BarColumn(bar_width=None),
                        TextColumn("{task.percentage:>3.0f}%  {task.fields[state]}"),
                        console=self.console,
                        transient=True,
                    )
                    bar.add_task("", total=done.bytes_total, state="")
                    bar.start()
                bar.update(bar.task_ids[0], completed=done.bytes_read, state=state)
            elif time.monotonic() - last >= _LINE_SECONDS:
                last = time.monotonic()
                self.say(f"preparing {part}: {done.bytes_read / max(1, done.bytes_total):.0%}  {state}")

        try:
            yield show
        finally:
            if bar is not None:
                bar.stop()

    def start(self, *, total: int, done: int) -> None:
        self._total = total
        if self.console.is_terminal:
            self._bar = Progress(
                TextColumn("training"),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TextColumn("{task.fields[state]}"),
                console=self.console,
            )
            self._task = self._bar.add_task("training", total=total, completed=done, state="")
            self._bar.start()

    def update(self, line: dict[str, Any]) -> None:
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
        whole = (
            f"{state}  learning rate {line['learning_rate']:.2e}  gradient norm {norm}"
            f"{used}  memory {line['memory_mb']:,} MB"
        )
        if self._bar is not None and self._task is not None:
            fits = self.console.width >= len(whole) + 50  # room for the bar itself
            self._bar.update(self._task, completed=line["step"], state=whole if fits else state)
            return
        now = time.monotonic()
        if now - self._last_line >= _LINE_SECONDS or line["step"] >= self._total:
            self._last_line = now
            self.say(f"step {line['step']:,}/{self._total:,}  {whole}")

    def _vectors(self, line: dict[str, Any]) -> None:
        loss = "" if line["loss"] is None else f"loss {line['loss']:.3f}  "
        unit = "words" if "words_per_second" in line else "records"
        state = f"epoch {line['epoch']}/{line['epochs']}  {loss}".rstrip()
        if (rate := line[f"{unit}_per_second"]) is not None:  # else the first portion is all there is
            state += f"  {rate:,.0f} {unit}/s  {_clock(line['seconds_left'])} left"
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=line["job"], state=state)
            return
        now = time.monotonic()
        if now - self._last_line >= _LINE_SECONDS or line["job"] >= self._total:
            self._last_line = now
            self.say(f"{line['job'] / max(1, self._total):4.0%}  {state}  alpha {line['alpha']:.4f}")

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class Clock:
    """Words a second and time left, without the first portion: in its time kernels are compiled as well."""

    def __init__(self) -> None:
        self._running, self._seconds, self._words, self._jobs = False, 0.0, 0, 0

    def take(self, seconds: float, words: int, jobs: int) -> None:
        if self._running:
            self._seconds, self._words, self._jobs = (
                self._seconds + seconds, self._words + words, self._jobs + jobs
            )  # fmt: skip
        self._running = True

    @property
    def rate(self) -> float | None:
        return self._words / self._seconds if self._jobs else None

    def seconds_for(self, jobs: int) -> float | None:
        return round(self._seconds / self._jobs * jobs, 1) if self._jobs else None


def _clock(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
