"""The table of scores that ``wordloom evaluate`` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from wordloom.evaluate import Scores

__all__ = ["print_scores"]


def print_scores(console: Console, scores: Scores, seconds: float) -> None:
    """Print the values with their intervals, then the counts, the signatures and the notes."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    table.add_column("score")
    table.add_column("value", justify="right")
    table.add_column("95 % interval", justify="right")
    notes = []
    for score in scores.scores:
        interval = "" if score.interval is None else " to ".join(map(_number, score.interval))
        table.add_row(score.name, "undefined" if score.value is None else _number(score.value), interval)
        if score.value is None:
            notes.append(f"{score.name} is undefined: {score.note}")
        elif score.note:
            notes.append(score.note)
    console.print(table)
    counts = {name.replace("_", " "): n for name, n in scores.counts.items() if n and name != "nats"}
    counted = [f"{n:,} {_singular(name) if n == 1 else name}" for name, n in counts.items()]
    signatures = dict.fromkeys(score.signature.partition("|")[2] for score in scores.scores)
    note_lines = [f"note: {note}" for note in dict.fromkeys([*notes, *scores.notes])]
    console.print()
    for text in [", ".join([*counted, f"{seconds:.1f} s"]), *signatures, *note_lines]:
        console.print(text, highlight=False, markup=False, soft_wrap=True)


def _singular(name: str) -> str:
    return f"{name.removesuffix('ies')}y" if name.endswith("ies") else name.removesuffix("s")


def _number(value: float) -> str:
    return f"{value:.4f}" if value < 1000 else f"{value:,.1f}"
