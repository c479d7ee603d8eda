"""Words in files: those that are not valid UTF-8, and files of words and their counts.

word2vec.c and fastText write such words for corpora that are not UTF-8.  A file of counts has one word and
one number a line, as word2vec's ``-save-vocab`` writes it.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import VectorError, did_you_mean, position
from wordloom.vectors.files.embedded_texts import read_texts
from wordloom.vectors.whole_files import encoded, new_file

UNICODE_ERRORS = ("strict", "ignore", "replace", "surrogateescape")
_ADVICE = 'convert the file, or pass unicode_errors="replace" or "ignore" (--unicode-errors replace)'
_ESCAPED = re.compile("[\udc80-\udcff]")  # bytes decoded with "surrogateescape"


def check_unicode_errors(errors: str) -> None:
    """Raise VectorError for a name that is not in :data:`UNICODE_ERRORS`."""
    if errors not in UNICODE_ERRORS:
        raise VectorError(f"unicode_errors is {errors!r}; {did_you_mean(str(errors), UNICODE_ERRORS)}")


def decode(raw: bytes, place: str, errors: str) -> str:
    """Return the text at ``place``, a position in a file, with invalid bytes escaped.

    Raises VectorError for invalid bytes if ``errors`` is ``"strict"``.
    """
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        if errors != "strict":
            return raw.decode("utf-8", "surrogateescape")
        raise VectorError(f"{place}: not UTF-8 ({error.reason}); {_ADVICE}") from None


def readable(words: list[str], errors: str, path: Path) -> tuple[list[str], NDArray[np.intp] | None]:
    """Treat the escaped bytes in the ``words`` of a file as ``errors`` says.

    Words that become equal are reduced to the first, with a warning, as in gensim.

    Returns:
        The words, and the rows that remain (None for all).

    Raises VectorError if a word is invalid and ``errors`` is ``"strict"``.
    """
    if errors == "surrogateescape" or "\n".join(words).isascii():
        return words, None
    invalid = [row for row, word in enumerate(words) if _ESCAPED.search(word)]
    if not invalid:
        return words, None
    if errors == "strict":
        decode(
            words[invalid[0]].encode("utf-8", "surrogateescape"), f"{path}, word {invalid[0] + 1:,}", errors
        )
    words = list(words)
    for row in invalid:
        words[row] = words[row].encode("utf-8", "surrogateescape").decode("utf-8", errors)
    first = {word: row for row, word in reversed(list(enumerate(words)))}
    changed = set(invalid)
    rows = [row for row, word in enumerate(words) if first[word] == row or not {row, first[word]} & changed]
    if len(rows) == len(words):
        return words, None
    warnings.warn(
        f"'{path}': {len(words) - len(rows):,} words that are not UTF-8 become equal to others and are left "
        'out; unicode_errors="surrogateescape" keeps them distinct',
        stacklevel=2,
    )
    return [words[row] for row in rows], np.array(rows)


def write_word_counts(path: str | os.PathLike[str], words: Iterable[str], counts: Iterable[Any]) -> None:
    """Write one line for each word and its count; raise VectorError if the file cannot be written."""
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
