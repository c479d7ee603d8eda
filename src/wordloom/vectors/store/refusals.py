"""Errors of word vectors: an unknown word, a question without an answer, and names of gensim's that are not
supported."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from numbers import Real
from typing import Any

from wordloom.errors import VectorError

_SCANNED = 4000  # words that difflib compares with an unknown one, at some microseconds each
_LETTERS = 64  # letters tried in each place of an unknown word

#: Advice for each public name of gensim's KeyedVectors that :class:`KeyedVectors` here lacks.
NOT_HERE = {
    "vocab": "key_to_index holds the rows, and get_vecattr(word, 'count') returns a count",
    "index2word": "it is called index_to_key",
    "index2entity": "it is called index_to_key",
    "vectors_norm": "call get_normed_vectors()",
    "allocate_vecattrs": "set_vecattr allocates what it needs",
    "resize_vectors": "add_vectors gives new words their vectors",
    "intersect_word2vec_format": "load the file, and set wv[words] = other[words] for the words of both",
    "similarity_unseen_docs": "embed the texts with wordloom.vectors.TextEmbedder",
    "log_accuracy": "print what evaluate_word_analogies returns",
    "log_evaluate_word_pairs": "print what evaluate_word_pairs returns",
    "add_lifecycle_event": "save notes with save_vectors(wv, folder, **notes)",
}


class QuestionError(VectorError, ValueError):
    """A question without a meaningful answer.  It is also a ValueError, as in gensim."""


class UnknownAttributeError(VectorError, KeyError):
    """An attribute that no word has.  It is also a KeyError, as in gensim."""

    __str__ = Exception.__str__  # KeyError's puts the line in quotes


class UnknownWordError(VectorError, KeyError):
    """A word that has no vector.  It is also a KeyError, as in gensim.

    The error searches for similar words only when its message is read, so that a loop that catches thousands
    of these errors stays fast.

    Attributes:
        key: the word.
    """

    def __init__(self, key: object, hint: str | Callable[[], str] = "") -> None:
        super().__init__(key)
        self.key = key
        self._hint = hint

    def __str__(self) -> str:
        if not isinstance(self._hint, str):
            self._hint = self._hint()
        return f"{_shown(self.key)} is not in the vocabulary{self._hint}"

    def __reduce__(self) -> tuple[Any, ...]:
        str(self)  # replaces the hint, which holds the vectors
        return type(self), (self.key, self._hint)


def _shown(key: object) -> str:
    if isinstance(key, str | bytes):
        return repr(key)
    return str(key) if key is None or isinstance(key, Real) else f"a {type(key).__name__}"


def near_words(key: str, index_to_key: Sequence[str], key_to_index: Mapping[str, int]) -> list[str]:
    """Return up to three words that ``key`` may be a misspelling of, the likeliest first.

    Comparing ``key`` with half a million words takes too long.  The function looks up every spelling with one
    wrong, missing, additional or swapped letter.  If there is none, it compares frequent words with the same
    first letter and about the same length.
    """
    cased = dict.fromkeys([key.lower(), key.capitalize(), key.upper(), key.casefold(), key.strip()])
    found = [word for word in cased if word in key_to_index]
    if found:
        return found[:3]
    if len(key) > 100:  # not a word: trying every letter in every place would take too long
        return []
    letters = dict.fromkeys(key + "".join(index_to_key[:1000]))
    tried = set()
    for cut in range(len(key) + 1):
        before, after = key[:cut], key[cut:]
        tried.add(before + after[1:])
        tried.add(before + after[1:2] + after[:1] + after[2:])
        for letter in islice(letters, _LETTERS):
            tried.update((before + letter + after, before + letter + after[1:]))
    rows = sorted(key_to_index[word] for word in tried if word in key_to_index)
    if rows:
        return [index_to_key[row] for row in rows[:3]]
    like = (word for word in index_to_key if abs(len(word) - len(key)) <= 2 and word[:1] == key[:1])
    return difflib.get_close_matches(key, islice(like, _SCANNED), n=3, cutoff=0.7)
