"""Reports of long work on standard error: lines, and a progress bar on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

__all__ = ["TerminalReporter", "report_truncated"]

_SECONDS_BETWEEN_LINES = 10.0  # without a terminal
_NUMBERS_SHOWN = 20


class TerminalReporter:
    """Shows lines and progress on standard error; see :class:`wordloom.run.checkpoint.reporting.Reporter`."""

    def say(self, line: str) -> None:
        typer.echo(line, err=True)

    @contextmanager
    def progress(self, total: float) -> Iterator[Callable[[float, str], None]]:
        """Show a bar on a terminal, else a plain line every ten seconds."""
        console = Console(file=sys.stderr, highlight=False)
        if not console.is_terminal:
            done, last = 0.0, time.monotonic()

            def print_line(amount: float, state: str) -> None:
                nonlocal done, last
                done += amount
                if time.monotonic() - last >= _SECONDS_BETWEEN_LINES:
                    last = time.monotonic()
                    console.print(f"{done / total:.0%}  {state}")

            yield print_line
            return
        columns = (
            *(BarColumn(), TaskProgressColumn()),
            *(TextColumn("{task.fields[state]}"), TimeRemainingColumn()),
        )
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("", total=total, state="")
            yield lambda amount, state: bar.update(task, advance=amount, state=state)


def report_truncated(rows: str, numbers: Sequence[int]) -> None:
    """Report the ``numbers``, from 1, of the ``rows`` ("texts" or "questions") that were truncated."""
    if not numbers:
        return
    shown = ", ".join(f"{number:,}" for number in numbers[:_NUMBERS_SHOWN])
    more = f" and {len(numbers) - _NUMBERS_SHOWN:,} more" if len(numbers) > _NUMBERS_SHOWN else ""
    what = f"1 {rows.removesuffix('s')} is" if len(numbers) == 1 else f"{len(numbers):,} {rows} are"
    verb = "was" if len(numbers) == 1 else "were"
    print(f"note: {what} longer than the model reads and {verb} truncated: {shown}{more}", file=sys.stderr)
