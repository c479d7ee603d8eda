"""Files of words and their counts: one word and one number a line, as word2vec's ``-save-vocab`` writes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from wordloom.errors import VectorError, position
from wordloom.vectors.files.embedded_texts import read_texts
from wordloom.vectors.whole_files import encoded, new_file


def write_word_counts(path: str | os.PathLike[str], words: Iterable[str], counts: Iterable[Any]) -> None:
    """Write one line for each word and its count.

    Raises VectorError if the file cannot be written.
    """
    with new_file(Path(path)) as file:
        for word, count in zip(words, counts, strict=True):
            file.write(encoded(word, " \n", "a file of counts") + f" {count}\n".encode())


def read_word_counts(path: str | os.PathLike[str], words: Sequence[str] | None = None) -> dict[str, int]:
    """Read a file with lines of a word, a space or tab, and a count.

    Args:
        words: return the counts of these words, in this order.  None returns all.

    Raises VectorError if a line has another form, a word occurs twice, or one of ``words`` is missing.
    """
    counts: dict[str, int] = {}
    for number, line in enumerate(read_texts(path), 1):
        word, _, count = line.replace("\t", " ").rpartition(" ")
        if not word or not count.isdecimal():
            raise VectorError(f"{position(path, number)}: not a word and its count: {line!r}")
        if word in counts:
            raise VectorError(f"{position(path, number)}: the word {word!r} occurs twice; keep one")
        counts[word] = int(count)
    if not counts:
        raise VectorError(f"'{path}' is empty; give lines of a word and its count")
    if words is None:
        return counts
    if missing := [word for word in words if word not in counts]:
        others = f", nor of {len(missing) - 1:,} others" if len(missing) > 1 else ""
        raise VectorError(f"'{path}' has no count of {missing[0]!r}{others}; give the counts of all words")
    return {word: counts[word] for word in words}
