"""Tables show every text as it is."""

from __future__ import annotations

import io

from rich.console import Console

from wordloom.cli.evaluate import _singular
from wordloom.cli.tables import plain_table, print_unwrapped


def test_brackets_of_names_are_no_markup() -> None:
    """Names come from users' files; such as these once ended the command, or lost their brackets."""
    table = plain_table("of [b]", "name [/i]", "value")
    table.add_row("[/b] x", "1")
    table.add_row("x[bold]y", None)
    file = io.StringIO()
    print_unwrapped(table, Console(file=file, width=20))
    lines = [line.split() for line in file.getvalue().splitlines()]
    assert lines[0] == ["of", "[b]"]
    assert lines[1] == ["name", "[/i]", "value"]
    assert lines[3:] == [["[/b]", "x", "1"], ["x[bold]y"]]


def test_one_of_each() -> None:
    counted = {"ties": "tie", "queries": "query", "texts": "text", "bytes": "byte"}
    assert {name: _singular(name) for name in counted} == counted
