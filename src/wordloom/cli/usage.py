"""Checks of the options on the command line: refuse those without effect, report errors in one line."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from wordloom.errors import WordloomError

if TYPE_CHECKING:
    from wordloom.run.checkpoint.kinds import Kind, Use
    from wordloom.run.checkpoint.loaders import Checkpoint

# typer brings its own click (older versions import click) and exports only this subclass of its errors
UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def is_given(ctx: typer.Context, name: str) -> bool:
    """Return whether the option is on the command line, even with its default value."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def refuse(ctx: typer.Context, why: str, *names: str) -> None:
    """Raise WordloomError if one of these options is given; ``why`` says why they have no effect."""
    if flags := _flags(ctx, (name for name in names if is_given(ctx, name))):
        raise WordloomError(f"{why}: leave out {flags}")


def _flags(ctx: typer.Context, names: Iterable[str]) -> str:
    """Return the options as they are written on the command line, such as ``--no-echo`` for False."""
    flags = []
    options = {parameter.name: parameter for parameter in ctx.command.params}
    for name in names:
        option = options[name]
        off = ctx.params[name] is False and option.secondary_opts
        flags.append((option.secondary_opts if off else option.opts)[0])
    return ", ".join(flags)


def check_options(
    ctx: typer.Context, checkpoint: Checkpoint, kind: Kind, use: Use, uses: Iterable[Use], *, files: bool
) -> None:
    """Raise WordloomError for an option that has no effect on ``use`` of this kind of checkpoint.

    An option of another of ``uses`` is refused, and without ``files`` an option that describes a file.
    """
    folder = checkpoint.folder
    given = [name for name in ctx.params if is_given(ctx, name)]
    options_of_kinds = {name for other in uses for name in other.all_options}
    unused = [name for name in given if name in options_of_kinds.difference(use.all_options)]
    if unused:
        raise WordloomError(
            f"{folder} holds {kind.description}, which {use.reads}: leave out {_flags(ctx, unused)}; "
            f"allowed: {_flags(ctx, use.all_options)}"
        )
    if not files:
        why = f"without a FILE, the recipe in {folder} says what to read and how"
        refuse(ctx, why, *use.file_options)
    if "too_long" in given and ctx.params["too_long"] not in use.too_long:
        raise UsageError(
            f"--too-long {ctx.params['too_long']} is not for {kind.description} ({folder}); allowed: "
            f"{', '.join(use.too_long)}"
        )
    columns = ctx.params.get("text_column") or ()
    if len(columns) > use.most_texts:
        number = "one" if use.most_texts == 1 else "one or two"
        raise UsageError(
            f"--text-column: {folder} reads rows of {number} text{'s' * (use.most_texts > 1)}, and "
            f"{len(columns)} columns are given; name {number}"
        )


def refuse_existing(
    *paths: Path | None,
    force: bool,
    plot: Path | None = None,
    inputs: Iterable[Path | str | None] = (),
    models: Iterable[Path | None] = (),
) -> None:
    """Raise WordloomError for files that cannot be written.

    These are files that exist, unless ``force``; devices, pipes and sockets; files that the system refuses;
    files that are written twice, or that are read: those of the ``inputs`` (files, folders, globs and data
    sets) and the own files of the ``models``' folders; and a ``plot`` of an unknown format.
    """
    from wordloom.files import is_special, refusal

    if plot is not None:
        from wordloom.inspect.figures import check_format

        check_format(plot)
    written = set[str]()
    for path in filter(None, (*paths, plot)):
        if os.path.isdir(path):
            raise WordloomError(f"'{path}' is a folder; name a file")
        if is_special(path):
            raise WordloomError(f"'{path}' is a device, a pipe or a socket; name a file")
        if error := refusal(path):
            raise WordloomError(f"'{path}' cannot be written ({error.strerror}); choose another name")
        if path.exists() and not force:
            raise WordloomError(f"'{path}' exists; choose another name, or replace it with --force")
        real = os.path.realpath(path)
        if real in written:
            raise WordloomError(f"'{path}' is named for two files; choose another name for one of them")
        if path.exists() and _is_read(path, inputs, models):
            raise WordloomError(f"'{path}' would be read and written; choose another name")
        if path.exists() and _is_standard_stream(path):
            raise WordloomError(f"'{path}' is standard input or output of this command; choose another name")
        written.add(real)


def _is_standard_stream(path: Path) -> bool:
    """Return True for the file that standard input or output is redirected to."""
    for descriptor in (0, 1, 2):
        with suppress(OSError):
            if os.path.samestat(path.stat(), os.fstat(descriptor)):
                return True
    return False


def _is_read(path: Path, inputs: Iterable[Path | str | None], models: Iterable[Path | None]) -> bool:
    """Return True if an existing file is among the ``inputs``, or belongs to one of the ``models``."""
    from wordloom.run.folder import is_own_file
    from wordloom.run.prepare import real_files

    for given in filter(None, inputs):
        with suppress(WordloomError):  # a data set that is not here
            if os.path.realpath(path) in real_files(str(given)):
                return True
    return any(is_own_file(path, model) for model in models if model is not None)


@contextmanager
def decoded_stdin() -> Iterator[None]:
    """Raise WordloomError where standard input, which the block reads as text, is in another encoding."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="strict")
    try:
        yield
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise WordloomError(
            f"standard input is not {error.encoding} (byte {byte:#04x}); convert it"
        ) from None


def check_plot(ctx: typer.Context, plot: Path | None, *, force: bool) -> None:
    """Raise WordloomError if ``plot`` cannot be written, or if ``force`` has nothing to replace."""
    if plot is None:
        refuse(ctx, "without --plot no file is written", "force")
    refuse_existing(plot=plot, force=force)


def short_names(folders: list[str]) -> dict[str, str]:
    """Return the last part of each path if these differ, else the paths themselves.

    Raises WordloomError for a folder that is given twice.
    """
    if len({Path(folder).resolve() for folder in folders}) < len(folders):
        raise WordloomError(f"a folder is given twice: {', '.join(folders)}; name each once")
    last = [Path(folder).resolve().name for folder in folders]
    unique = len(folders) > 1 and len(set(last)) == len(last)
    return dict(zip(folders, last if unique else folders, strict=True))


def usage_line(error: Any) -> str:
    """Return a UsageError in one line: what was given, what is allowed or similar, else where the help is."""
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
