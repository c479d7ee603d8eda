"""Divide the files of a corpus into shares of equal size, for tasks that run on many machines.

Shares are consecutive, so the documents of all shares in order are those of the corpus in order.  Files with
a document on each line are divided between two lines.  Other files are in one share as a whole.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from wordloom.data.files.source import Source
from wordloom.errors import DataError


class ShareNumber(NamedTuple):
    """One of ``of`` equal shares, numbered from 1."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> ShareNumber:
        """Return the share that ``text`` names, such as ``3/64``; raise DataError for anything else."""
        number, slash, of = text.partition("/")
        plain = all(part.isascii() and part.isdigit() for part in (number, of))
        if not (slash and plain and 1 <= int(number) <= int(of)):
            raise DataError(
                f"task (--task) {text!r} is not allowed; give its number and the number of tasks, from 1/64 "
                "to 64/64; an array that counts from 0 needs $((SLURM_ARRAY_TASK_ID + 1))/64"
            )
        return cls(int(number), int(of))


def share_of(files: Sequence[Source], share: ShareNumber, separator: str | None) -> list[Source]:
    """Return the files of a share, of which the first and the last may be read in part (``Source.span``).

    ``separator`` is that of the corpus.  The share is a range of the bytes of all files together.  A file
    that is not divided belongs to the share that holds its middle.
    """
    sizes = [file_size(file) for file in files]
    total = sum(sizes)
    first, after = (total * n // share.of for n in (share.number - 1, share.number))
    taken: list[Source] = []
    at = 0
    for file, size in zip(files, sizes, strict=True):
        if size and is_divisible(file, separator):
            start, stop = max(first, at), min(after, at + size)
            if start < stop:
                whole = (start, stop) == (at, at + size)
                taken.append(file if whole else replace(file, span=(start - at, stop - at)))
        else:
            middle = min(at + size // 2, total - 1)
            if first <= middle < after or (total == 0 and share.number == 1):
                taken.append(file)
        at += size
    return taken


def file_size(file: Source) -> int:
    """Return the bytes of a file; raise DataError if it has no size, as standard input."""
    if file.is_stdin:
        raise DataError("standard input has no shares; give --task a file")
    try:
        return os.path.getsize(file.path)
    except OSError as error:
        raise DataError(f"{file.name}: cannot be opened: {error.strerror}") from error


def is_divisible(file: Source, separator: str | None) -> bool:
    """Return whether each line of a file is a document, so that the file can be divided between lines."""
    if file.compression is not None:
        return False
    by_line = (file.separator if separator is None else separator) == "line"
    return file.format == "jsonl" or (file.format == "text" and by_line)
