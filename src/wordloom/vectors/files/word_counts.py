"""Files of words and their counts, as word2vec's ``-save-vocab`` writes them: a word and a number a line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from wordloom.errors import VectorError, position
from wordloom.vectors.files.embedded_texts import read_texts
from wordloom.vectors.files.whole_files import encoded, new_file

__all__ = ["counts_of", "read_counts", "write_counts"]


def write_counts(path: str | os.PathLike[str], words: Iterable[str], counts: Iterable[Any]) -> None:
    """Write ``counts``, one for each of ``words``.

    Raises VectorError where the file cannot be written.
    """
    with new_file(Path(path)) as file:
        for word, count in zip(words, counts, strict=True):
            file.write(encoded(word, " \n", "a file of counts") + f" {count}\n".encode())


def read_counts(path: str | os.PathLike[str]) -> dict[str, int]:
    """The counts in a file of lines ``word count``, a space or a tab between.

    Raises VectorError, with the line, for a file that is no such thing or says a word twice.
    """
    counts: dict[str, int] = {}
    for number, line in enumerate(read_texts(path), 1):
        word, _, count = line.replace("\t", " ").rpartition(" ")
        if not word or not count.isdecimal():
            raise VectorError(f"{position(path, number)}: not a word and its count: {line!r}")
        if word in counts:
            raise VectorError(f"{position(path, number)}: the word {word!r} stands there twice; keep one")
        counts[word] = int(count)
    if not counts:
        raise VectorError(f"'{path}' is empty; give lines of a word and its count")
    return counts


def counts_of(words: Sequence[str], path: str | os.PathLike[str]) -> list[int]:
    """The counts of ``words`` in such a file; raises VectorError where it does not say one of them."""
    counts = read_counts(path)
    if missing := [word for word in words if word not in counts]:
        others = f", nor of {len(missing) - 1:,} others" if len(missing) > 1 else ""
        raise VectorError(f"'{path}' says no count of {missing[0]!r}{others}; give the counts of all words")
    return [counts[word] for word in words]
