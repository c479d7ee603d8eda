"""The table of kinds names options that the commands and the functions of the table have."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from typer.main import get_command

from wordloom.cli import app
from wordloom.run.checkpoint.kinds import KINDS

COMMANDS = getattr(get_command(app), "commands")  # noqa: B009
USES = [
    *(("evaluate", name, use) for name, kind in KINDS.items() for use in kind.evaluations.values()),
    *(("predict", name, kind.prediction) for name, kind in KINDS.items() if kind.prediction),
]


@pytest.mark.parametrize(("verb", "name", "use"), USES)
def test_options_are_known_to_the_command_and_to_the_function(verb: str, name: str, use: Any) -> None:
    options = {parameter.name for parameter in COMMANDS[verb].params}
    assert set(use.all_options) <= options
    assert not set(use.file_options) & set(use.options)
    parameters = inspect.signature(use.run).parameters.values()
    named = {one.name for one in parameters if one.kind is one.KEYWORD_ONLY}
    assert any(one.kind is one.VAR_KEYWORD for one in parameters) or set(use.all_options) <= named
