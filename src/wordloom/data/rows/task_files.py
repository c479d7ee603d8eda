"""Files of a task, with the named data sets made for it."""

from __future__ import annotations

from collections.abc import Mapping

from wordloom.data.files.source import Format, Source, Sources
from wordloom.data.sets.expand import Accepts, expand
from wordloom.data.sets.fetch import files_of, local_files
from wordloom.errors import DataError

JSON: dict[str, Format] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json"}


def task_files(sources: Sources, formats: Mapping[str, Format], *, task: str, stdin: str) -> list[Source]:
    """Return the files that ``sources`` stand for; see :func:`~wordloom.data.sets.expand.expand`.

    Args:
        formats: the format of each suffix that is read, before that of a compression.
        task: the word that the task of a named data set must hold.
        stdin: the suffix that ``"-"`` is read as.

    Raises DataError as :func:`~wordloom.data.sets.expand.expand`, and for a data set made for another task.
    """

    def named(item: str) -> list[Source]:
        info = files_of(item)[0]
        if task not in info.task:
            raise DataError(f"'{item}' is for {info.task} ({info.layout}), not for {task}")
        known = Accepts(formats={**formats, ".zip": info.format or "text"})
        return [known.source(str(path)) for path in local_files(item)]

    return expand(sources, Accepts(formats=formats, stdin=stdin, named=named))
