"""The files of a task that a user names: files, folders, globs, or named sets made for that task."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace

from wordloom.data.files.source import COMPRESSIONS, Format, Source, Sources, _suffixes, is_stdin
from wordloom.data.sets.info import files_of, local_files, names_dataset
from wordloom.errors import DataError, did_you_mean

__all__ = ["JSON", "task_files"]

JSON: dict[str, Format] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json"}


def task_files(sources: Sources, formats: Mapping[str, Format], *, task: str, stdin: str) -> Iterator[Source]:
    """Every file of ``sources``, in the order given; those of a folder (at any depth) or glob by name.

    Args:
        formats: the endings that are read, before one of a compression, and how.
        task: what a named set must be for.
        stdin: the ending that ``"-"``, standard input, is read as; ``"-.csv"`` and its like say theirs.

    Raises DataError: nothing given, a missing file, no file in a folder, another ending, a set for something
    else or not here, standard input twice.
    """
    given = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    if not given:
        raise DataError(f"no source given; name at least one file, folder, glob or data set for {task}")
    if sum(map(is_stdin, given)) > 1:
        raise DataError("'-' is given twice; standard input can be read once")
    for source in given:
        item = os.fspath(source)
        if is_stdin(item):
            named = _described(item if len(item) > 1 else f"-{stdin}", formats)
            yield replace(named, path="-", name="standard input")
            continue
        if names_dataset(item):
            info = files_of(item)[0]
            if task not in info.task:
                raise DataError(f"'{item}' is for {info.task} ({info.layout}), not for {task}")
            for known in local_files(item):
                yield _described(str(known), {**formats, ".zip": info.format or "text"})
        else:
            for path in _paths(item, formats):
                yield _described(path, formats)


def _described(path: str, formats: Mapping[str, Format]) -> Source:
    suffix, compression = _suffixes(path)
    if suffix not in formats:
        raise DataError(f"'{path}' is not known by its name; allowed: {_allowed(formats)}")
    return Source(path=path, name=path, format=formats[suffix], compression=compression)


def _paths(item: str, formats: Mapping[str, Format]) -> list[str]:
    path = os.path.expanduser(item)
    if os.path.isdir(path):
        return _folder(path, formats)
    if os.path.exists(path):
        return [path]
    if glob.has_magic(path):
        if not (found := sorted(glob.glob(path, recursive=True))):
            raise DataError(f"no file matches '{item}'; check the pattern (quote it)")
        return found
    raise DataError(f"no file or named data set '{item}'; {_near(path, formats)}")


def _folder(folder: str, formats: Mapping[str, Format]) -> list[str]:
    found = [
        os.path.join(directory, name)
        for directory, _, names in os.walk(folder, followlinks=True)
        for name in names
        if not name.startswith(".") and _suffixes(name)[0] in formats
    ]
    if not found:
        raise DataError(f"folder '{folder}' holds no file to read; allowed: {_allowed(formats)}")
    return sorted(found)


def _near(path: str, formats: Mapping[str, Format]) -> str:
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        return f"the folder '{folder}' does not exist"
    there = [name for name in sorted(os.listdir(folder)) if _suffixes(name)[0] in formats]
    return did_you_mean(os.path.basename(path), there) if there else f"'{folder}' holds no file of this kind"


def _allowed(formats: Mapping[str, Format]) -> str:
    return f"{', '.join(formats)}, each also compressed ({', '.join(COMPRESSIONS)})"
