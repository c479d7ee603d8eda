"""Files of words and their counts, as word2vec's ``-save-vocab`` writes them: a word and a number a line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from wordloom.errors import VectorError
from wordloom.vectors.embedding_files import read_texts
from wordloom.vectors.whole_files import new_file

__all__ = ["read_counts", "write_counts"]


def write_counts(path: str | os.PathLike[str], words: Sequence[str], counts: Iterable[Any]) -> None:
    """Write ``counts``, one for each of ``words``.

    Raises VectorError where the file cannot be written.
    """
    with new_file(Path(path)) as file:
        for word, count in zip(words, counts, strict=True):
            file.write(f"{word} {count}\n".encode())


def read_counts(path: str | os.PathLike[str], words: Sequence[str]) -> list[int]:
    """The counts of ``words``.

    Raises VectorError where the file cannot be read, or does not say one of them.
    """
    counts: dict[str, int] = {}
    for number, line in enumerate(read_texts(path), 1):
        word, _, count = line.strip().rpartition(" ")
        if not word or not count.isdecimal():
            raise VectorError(f"'{path}', line {number:,}: no word and its count")
        counts[word] = int(count)
    if missing := [word for word in words if word not in counts]:
        raise VectorError(
            f"'{path}' says no count of {missing[0]!r}, nor of {len(missing) - 1:,} other words; "
            "give the counts of all words"
        )
    return [counts[word] for word in words]
