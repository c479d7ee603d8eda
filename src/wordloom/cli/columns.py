"""The options that name the columns of tables, the same in every verb."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from wordloom.cli.usage import UsageError

if TYPE_CHECKING:
    from wordloom.data.files.source import Columns

__all__ = ["HEADER", "TEXT_COLUMN", "column_of", "columns_of", "refuse_columns", "report_columns"]

TEXT_COLUMN = typer.Option(
    metavar="COLUMN",
    help="tables: the column of the text, by name or by number from 1; for pairs of texts give the option "
    "twice, or two columns with a comma between.",
)
HEADER = typer.Option(
    "--header/--no-header",
    help="tables: whether a .csv or .tsv begins with the names of its columns.  [default: if one is given by "
    "name]",
)


def column_of(given: str | None) -> str | int | None:
    """A column by name, or by number where only digits are given."""
    return int(given) if given is not None and given.isdecimal() else given


def columns_of(given: Sequence[str] | None) -> list[str | int] | None:
    """The columns of a repeated option, each of which may hold several with commas between; raises
    UsageError for an empty one."""
    if given is None:
        return None
    columns = [column_of(name.strip()) for one in given for name in one.split(",")]
    if not all(columns):
        raise UsageError(
            f"--text-column names a column, or several with commas between, not {' '.join(given)!r}; columns "
            "are numbered from 1"
        )
    return [column for column in columns if column is not None]


def refuse_columns(checkpoint: Path, columns: Sequence[str | int] | None, most: int) -> None:
    """Raise UsageError where more ``columns`` are given than a row of this model has texts."""
    if columns is not None and len(columns) > most:
        reads = "one text" if most == 1 else "one or two texts"
        raise UsageError(
            f"--text-column: {checkpoint} reads rows of {reads}, and {len(columns)} columns are given; "
            f"name {'one' if most == 1 else 'one or two'}"
        )


def report_columns(read: Iterable[Columns], recipe: Path) -> None:
    """Report the columns that are read, of which ``recipe`` names those that were not given."""
    for columns in read:
        texts = ", ".join(map(repr, columns.texts))
        what, answer = ("label", columns.label) if columns.score is None else ("score", columns.score)
        typer.echo(f"columns: text {texts}; {what} {answer!r} (by default those in {recipe})", err=True)
