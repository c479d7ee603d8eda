"""Help pages: one name for one option, an example for every verb, panels for the long ones."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from wordloom.cli import app
from wordloom.cli.help import EXAMPLES, PANELS
from wordloom.cli.usage import UsageError

MOST = 15  # options of a verb without panels


def walk(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    for part, inner in getattr(command, "commands", {}).items():
        yield from walk(inner, f"{name} {part}".strip())
    if not hasattr(command, "commands"):
        yield name, command


ROOT = typer.main.get_command(app)
VERBS = dict(walk(ROOT))


def options(command: Any) -> list[Any]:
    return [one for one in command.params if one.param_type_name == "option"]


def test_one_thing_has_one_name_in_every_verb():
    old = {"--overwrite", "--confusion", "--top", "--topn", "--k", "--overlong", "--cut"}
    for verb, command in VERBS.items():
        names = {name for one in options(command) for name in one.opts}
        assert not names & old, verb
        for one in options(command):
            if "--plot" in one.opts:
                assert one.metavar == "FILE", verb
            if "--text-column" in one.opts:
                assert one.multiple, verb
            text = one.help or ""
            assert "(default" not in text.lower(), (verb, one.name)
            assert re.search(r"\[default: [^]]+\]$", text) or "[default" not in text, (verb, one.name)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_examples_that_it_can_read(verb):
    page = CliRunner().invoke(app, [*verb.split(), "--help"], env={"COLUMNS": "200"}).stdout
    assert EXAMPLES[verb]
    for example in EXAMPLES[verb]:
        assert f"wordloom {example}" in page
        arguments = shlex.split(example)
        if arguments[0] == "inspect":  # the view stands behind the model, and may be left out
            arguments = [arguments[0], *(arguments[2:] or ["parameters"])]
        assert " ".join(arguments).startswith(verb)
        try:
            VERBS[verb].make_context(verb, arguments[len(verb.split()) :])
        except UsageError as error:
            pytest.fail(f"{example}: {error}")


def test_long_verbs_have_panels():
    for verb, command in VERBS.items():
        if len(options(command)) > MOST:
            assert verb in PANELS, verb
    for verb, panels in PANELS.items():
        names = [name for some in panels.values() for name in some.split()]
        assert len(set(names)) == len(names), verb
        assert set(names) <= {one.name for one in options(VERBS[verb])}, verb
        page = CliRunner().invoke(app, [*verb.split(), "--help"], env={"COLUMNS": "200"}).stdout
        for panel in panels:
            assert f"\n{panel}:\n" in page
        assert len(options(VERBS[verb])) - len(names) <= MOST, verb
        for one in options(VERBS[verb]):  # none is lost
            assert max(one.opts, key=len) in page, (verb, one.name)


def test_verbs_are_in_the_imperative():
    """The first word is a verb in its base form: neither an article nor a preposition, nor in -s or -ing."""
    for verb, command in VERBS.items():
        first = inspect.cleandoc(command.help or "").split()[0]
        assert re.fullmatch(r"[A-Z][a-z]+", first), verb
        assert not re.search(r"(s|ing|ed)$", first), (verb, first)
        assert first not in ("The", "A", "An", "What", "Of", "How"), verb


@pytest.mark.parametrize(
    "group", ["", "tokenize", "data", "vectors", "inspect", "lab", "lab capacity", "lab superposition"]
)
def test_the_list_of_verbs_is_not_truncated(group):
    """A terminal of 80 columns shows the first sentence of each verb's help."""
    page = CliRunner().invoke(app, [*group.split(), "--help"], env={"COLUMNS": "80"}).stdout
    _, _, verbs = page.partition("Commands:")
    assert verbs
    assert "..." not in verbs
