"""How a command was called: options that do nothing there are refused, and usage errors are one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from wordloom.errors import WordloomError

__all__ = ["UsageError", "is_given", "names_of", "refuse", "usage_line"]

# typer brings a click of its own (older ones import click) and exports of its errors only this one's child
UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def is_given(ctx: typer.Context, name: str) -> bool:
    """Whether the parameter stands on the command line, even with its default value."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def refuse(ctx: typer.Context, why: str, *names: str) -> None:
    """Raise WordloomError naming those of these options that were given; ``why`` says why they do nothing."""
    flags = [f"--{name.replace('_', '-')}" for name in names if is_given(ctx, name)]
    if flags:
        raise WordloomError(f"{why}: leave out {', '.join(flags)}")


def names_of(folders: list[str]) -> dict[str, str]:
    """The last part of each path where these differ, else the paths themselves; raises WordloomError for one
    folder that is given twice."""
    if len({Path(folder).resolve() for folder in folders}) < len(folders):
        raise WordloomError(f"one folder is given twice: {', '.join(folders)}; name each once")
    last = [Path(folder).resolve().name for folder in folders]
    apart = len(folders) > 1 and len(set(last)) == len(last)
    return dict(zip(folders, last if apart else folders, strict=True))


def usage_line(error: Any) -> str:
    """A UsageError in one line: what was given, what is allowed or near, else where the help is."""
    close = getattr(error, "possibilities", None)
    if close:
        message = f"{error.message}; did you mean {' or '.join(close)}?"
    else:
        message = " ".join(error.format_message().replace("Value error, ", "").split()).rstrip(".")
    for detail in getattr(error.__cause__, "errors", list)()[:1]:  # pydantic's, which leave out the value
        if repr(detail["input"]) not in message:
            message += f", not {detail['input']!r}"
    if error.ctx is not None and not message.endswith("?"):
        message += f"; see '{error.ctx.command_path} --help'"
    return message[:1].lower() + message[1:]
