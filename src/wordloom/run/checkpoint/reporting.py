"""Where evaluations and predictions report what they read and how far they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from wordloom.data.files.source import Columns
    from wordloom.run.checkpoint.contents import Checkpoint

__all__ = ["Advance", "Reporter", "SilentReporter", "report_columns"]

Advance = Callable[[float, str], None]


class Reporter(Protocol):
    """Receives lines for the user and the progress of long work."""

    def say(self, line: str) -> None:
        """Show one line."""
        ...

    def progress(self, total: float) -> AbstractContextManager[Advance]:
        """Return a context whose ``advance(amount, state)`` moves a bar of length ``total``."""
        ...


class SilentReporter:
    """A reporter that shows nothing."""

    def say(self, line: str) -> None:
        pass

    def progress(self, total: float) -> AbstractContextManager[Advance]:
        return nullcontext(lambda amount, state: None)


def report_columns(reporter: Reporter, checkpoint: Checkpoint, read: Iterable[Columns]) -> None:
    """Report the columns that are read; the recipe of ``checkpoint`` names those that were not given."""
    for columns in read:
        texts = ", ".join(map(repr, columns.texts))
        what, answer = ("label", columns.label) if columns.score is None else ("score", columns.score)
        recipe = checkpoint.folder / "recipe.toml"
        reporter.say(f"columns: text {texts}; {what} {answer!r} (by default those in {recipe})")
