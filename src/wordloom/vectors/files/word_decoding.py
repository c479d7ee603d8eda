"""Decode words that are not valid UTF-8, which word2vec.c and fastText write for corpora that are not."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import VectorError, did_you_mean

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
