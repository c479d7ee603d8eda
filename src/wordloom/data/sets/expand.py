"""Expand the sources that a user names (files, folders, globs, ``-``, data sets) into a list of files."""

from __future__ import annotations

import glob
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import IO

from wordloom.data.files.source import (
    COMPRESSIONS,
    FORMATS,
    Format,
    PathLike,
    Source,
    Sources,
    describe,
    is_stdin,
    suffixes,
)
from wordloom.data.sets.catalogue import DATASETS
from wordloom.data.sets.fetch import files_of, local_files, names_dataset, resolve
from wordloom.errors import DataError, did_you_mean

_warn_once = cache(logging.getLogger(__name__).warning)

JSON: dict[str, Format] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json"}


@dataclass(frozen=True, kw_only=True)
class Accepts:
    """The files that a reader accepts.

    Attributes:
        formats: the format of each suffix, before that of a compression.
        noun: the word for one file in messages.
        hint: appended to the message about a suffix that is not among ``formats``.
        stdin: the suffix that ``"-"`` is read as.
        describe: the :class:`Source` of a file that the user names; None takes ``formats`` alone.
        named: the files of a named data set; raises DataError for a set of another kind.
    """

    formats: Mapping[str, Format]
    noun: str = "file"
    hint: str = ""
    stdin: str = ""
    describe: Callable[[str], Source] | None = None
    named: Callable[[str], list[Source]] = resolve

    @property
    def allowed(self) -> str:
        return f"allowed: {', '.join(self.formats)}, each also compressed ({', '.join(COMPRESSIONS)})"

    def source(self, path: str) -> Source:
        """Return the file at ``path``; raise DataError if the reader does not accept its name."""
        if self.describe is not None:
            return self.describe(path)
        suffix, compression = suffixes(path)
        if suffix not in self.formats:
            raise DataError(f"'{path}' has a suffix that is not read here; {self.allowed}{self.hint}")
        return Source(path=path, name=path, format=self.formats[suffix], compression=compression)


RUNNING_TEXT = Accepts(formats=FORMATS, describe=describe)


def expand(
    sources: Sources | Iterable[PathLike | Source],
    accepts: Accepts = RUNNING_TEXT,
    *,
    skipped: list[str] | None = None,
) -> list[Source]:
    """Return the files of ``sources``, in order.

    A source is a file, a folder (its files with an accepted suffix, at any depth), a glob, ``-`` for standard
    input (``-.jsonl``, ``-.jsonl.zst`` and so on name its format), a named data set such as
    ``tiny-shakespeare`` or ``gutenberg/train``, or a Source, which is returned as it is.  The files of a
    folder or glob are sorted by name, and each is read once.  A link to a folder above it is not followed.
    Hidden files and folders are skipped; other files of a folder are appended to ``skipped``.  A file that
    two sources name is read twice, with a warning.  A pipe is copied to a temporary file, because readers may
    read a file more than once.

    Raises DataError for no source, a missing file, a glob without a match, a folder without readable files, a
    file of another kind, and standard input given twice.
    """
    items = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    if not items:
        raise DataError(
            f"no source given; name at least one {accepts.noun}, folder, glob, data set, or '-' for stdin"
        )
    files: list[Source] = []
    for item in items:
        files += [item] if isinstance(item, Source) else _expand_one(os.fspath(item), accepts, skipped)
    if sum(file.is_stdin for file in files) > 1:
        raise DataError("'-' is given twice; standard input can be read once")
    report_repeated(files)
    return files


def task_files(sources: Sources, formats: Mapping[str, Format], *, task: str, stdin: str) -> list[Source]:
    """Return the files of ``sources``; see :func:`expand`.

    Args:
        formats: the format of each suffix that is read, before that of a compression.
        task: the word that the task of a named data set must hold.
        stdin: the suffix that ``"-"`` is read as.

    Raises DataError as :func:`expand`, and for a data set made for another task.
    """

    def named(item: str) -> list[Source]:
        info = files_of(item)[0]
        if task not in info.task:
            raise DataError(f"'{item}' is for {info.task} ({info.layout}), not for {task}")
        known = Accepts(formats={**formats, ".zip": info.format or "text"})
        return [known.source(str(path)) for path in local_files(item)]

    return expand(sources, Accepts(formats=formats, stdin=stdin, named=named))


def report_repeated(files: Iterable[Source]) -> None:
    """Log one line with the repeated files among ``files``."""
    seen: set[str] = set()
    repeated: dict[str, None] = {}
    for file in files:
        real = os.path.realpath(file.path)
        if real in seen:
            repeated[file.name] = None
        seen.add(real)
    if repeated:
        names = list(repeated)
        more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
        _warn_once(  # a run expands its sources several times
            f"named more than once, and read as often: {', '.join(map(repr, names[:3]))}{more}; name each "
            "file once unless its rows are to count again"
        )


def refuse_shared(training: Iterable[Source], validation: Iterable[Source]) -> None:
    """Raise DataError for a file that is in both parts."""
    trained_on = {os.path.realpath(source.path) for source in training}
    for source in validation:
        if os.path.realpath(source.path) in trained_on:
            raise DataError(f"{source.name}: is both a training and a validation file; take it from one")


def _expand_one(given: str, accepts: Accepts, skipped: list[str] | None) -> list[Source]:
    if is_stdin(given):
        named = f"-{accepts.stdin}" if given == "-" else given
        return [replace(accepts.source(named), path="-", name="standard input" if accepts.stdin else given)]
    path = os.path.expanduser(given)
    if names_dataset(given):
        if os.path.exists(path):
            raise DataError(
                f"'{given}' is a named data set and also a path here; write './{given}' for the path, "
                "or work in another folder for the data set"
            )
        return accepts.named(given)
    if os.path.isdir(path):
        return _once(_folder(path, accepts, skipped))
    if os.path.exists(path):
        return [_file(path, accepts)]
    if glob.has_magic(path):
        if not (files := _matches(path, accepts, skipped)):
            raise DataError(
                f"no file matches '{given}'; check the pattern (quote it, so the shell leaves it)"
            )
        return files
    if os.path.islink(path):
        raise DataError(f"'{given}' is a link to '{os.readlink(path)}', where no file is; give the file")
    raise DataError(_missing(given, accepts))


def _once(files: Iterable[Source]) -> list[Source]:
    """Return the first of the ``files`` with each real path, without later links to it."""
    by_path: dict[str, Source] = {}
    for file in files:
        by_path.setdefault(os.path.realpath(file.path), file)
    return list(by_path.values())


def _file(path: str, accepts: Accepts) -> Source:
    source = accepts.source(path)
    if os.path.islink(path) and not os.path.exists(path):
        raise DataError(f"'{path}' is a link to '{os.readlink(path)}', where no file is; remove the link")
    return replace(source, path=spooled(path)) if stat.S_ISFIFO(os.stat(path).st_mode) else source


def _folder(folder: str, accepts: Accepts, skipped: list[str] | None) -> Iterator[Source]:
    empty = True
    for directory, names in walk(folder):
        for name in names:
            path = os.path.join(directory, name)
            if suffixes(name)[0] in accepts.formats:
                empty = False
                yield _file(path, accepts)
            elif skipped is not None:
                skipped.append(path)
    if empty:
        raise DataError(f"folder '{folder}' holds no {accepts.noun} to read; {accepts.allowed}{accepts.hint}")


def walk(folder: str) -> Iterator[tuple[str, list[str]]]:
    """Yield ``folder`` and each folder below it, with the sorted names of its files.

    Links are followed, but no folder is visited twice.  Hidden files and folders are left out.

    Raises DataError for a folder that cannot be read.
    """
    visited = set()

    def refuse(error: OSError) -> None:
        if isinstance(error, NotADirectoryError | FileNotFoundError):  # a pattern below a file
            return
        raise DataError(f"'{error.filename}' cannot be read: {error.strerror}; allow it, or name other files")

    for directory, folders, names in os.walk(folder, followlinks=True, onerror=refuse):
        if (real := os.path.realpath(directory)) in visited:
            folders.clear()
            continue
        visited.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield directory, sorted(name for name in names if not name.startswith("."))


def _matches(pattern: str, accepts: Accepts, skipped: list[str] | None) -> list[Source]:
    """Return the files of a glob, with those in matching folders."""
    files: list[Source] = []
    for match in matches(pattern):
        files += _folder(match, accepts, skipped) if os.path.isdir(match) else [_file(match, accepts)]
    return _once(files)


def matches(pattern: str) -> list[str]:
    """Return the files and folders that match a glob, sorted; ``**`` does not follow link cycles."""
    top = os.sep if pattern.startswith(os.sep) else ""
    return sorted(set(_glob(top, [part for part in pattern.split(os.sep) if part])))


def _glob(folder: str, parts: list[str]) -> Iterator[str]:
    """Yield the matches of ``parts``, the components of a pattern, below ``folder``.

    The rules are those of :func:`glob.glob` with ``recursive=True``, but for link cycles.
    """
    if not parts:
        yield folder
        return
    part, *others = parts
    if part == "**":
        for directory, names in walk(folder or "."):
            inside = directory if folder else directory.removeprefix(".").removeprefix(os.sep)
            if others:
                yield from _glob(inside, others)
            else:
                yield from filter(None, (inside, *(os.path.join(inside, name) for name in names)))
    elif glob.has_magic(part):
        if os.path.isdir(folder or "."):
            _check_readable(folder or ".")
        for match in glob.iglob(os.path.join(glob.escape(folder), part)):
            yield from _glob(match, others)
    elif os.path.lexists(path := os.path.join(folder, part)):
        yield from _glob(path, others)


def _check_readable(folder: str) -> None:
    """Raise DataError for a folder whose names cannot be listed; :mod:`glob` takes it for an empty one."""
    try:
        os.scandir(folder).close()
    except OSError as error:
        raise DataError(
            f"'{folder}' cannot be read: {error.strerror}; allow it, or name other files"
        ) from None


_SPOOLS: dict[tuple[int, int], IO[bytes]] = {}


def spooled(path: str) -> str:
    """Return a temporary file with the bytes of a pipe, which is kept until the process ends."""
    status = os.stat(path)
    key = status.st_dev, status.st_ino
    if key not in _SPOOLS:
        file = tempfile.NamedTemporaryFile(prefix="wordloom-pipe-")  # noqa: SIM115  lives as long as the process
        with open(path, "rb") as pipe:
            shutil.copyfileobj(pipe, file)
        file.flush()
        _SPOOLS[key] = file
    return _SPOOLS[key].name


def _missing(given: str, accepts: Accepts) -> str:
    """Return the error message for a missing source, with the most similar name."""
    missing = f"no {accepts.noun} or named data set '{given}'"
    if "://" in given:
        return (
            f"{missing}: text is read from files; copy it to this machine (a recipe's data.train may be the "
            "URL of prepared tokens)"
        )
    path = os.path.expanduser(given)
    folder = os.path.dirname(path) or "."
    here = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    files = [name for name in here if suffixes(name)[0] in accepts.formats]
    for name, names in ((os.path.basename(path), files), (given.partition("/")[0], list(DATASETS))):
        if names and (near := did_you_mean(name, names)).startswith("did you mean"):
            return f"{missing}; {near}"
    if not os.path.isdir(folder):
        return f"{missing}: the folder '{folder}' does not exist"
    return f"{missing}; see `wordloom data list` for the named data sets"
