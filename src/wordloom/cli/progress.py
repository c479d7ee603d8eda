"""A bar for work that a command waits for."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

__all__ = ["progress_bar"]

_LINE_SECONDS = 10.0  # between plain lines where there is no terminal


@contextmanager
def progress_bar(total: float) -> Iterator[Any]:
    """``advance(amount, state)``: a bar on a terminal, a plain line every ten seconds elsewhere."""
    console = Console(file=sys.stderr, highlight=False)
    if not console.is_terminal:
        done, last = 0.0, time.monotonic()

        def line(amount: float, state: str) -> None:
            nonlocal done, last
            done += amount
            if time.monotonic() - last >= _LINE_SECONDS:
                last = time.monotonic()
                console.print(f"{done / total:.0%}  {state}")

        yield line
        return
    columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[state]}"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total, state="")
        yield lambda amount, state: bar.update(task, advance=amount, state=state)
