"""What word vectors cannot answer, each with its line: a word that has none, a question that is none, and the
names of gensim's that are not here."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from numbers import Real
from typing import Any

from wordloom.errors import VectorError

__all__ = ["NOT_HERE", "QuestionError", "UnknownAttributeError", "UnknownWordError", "near_words"]

_SCANNED = 4000  # words compared in full with one that is not there: difflib takes microseconds for each
_LETTERS = 64  # tried in each place of it

#: What to use for each public name of gensim's KeyedVectors that ours do not have.
NOT_HERE = {
    "vocab": "key_to_index holds the rows, get_vecattr(word, 'count') a word's count",
    "index2word": "it is called index_to_key",
    "index2entity": "it is called index_to_key",
    "vectors_norm": "call get_normed_vectors()",
    "allocate_vecattrs": "set_vecattr makes the room it needs",
    "resize_vectors": "add_vectors gives new words their vectors",
    "intersect_word2vec_format": "load the file, and set wv[words] = other[words] for the words of both",
    "similarity_unseen_docs": "make vectors of the texts by wordloom.vectors.TextEmbedder",
    "log_accuracy": "print what evaluate_word_analogies returns",
    "log_evaluate_word_pairs": "print what evaluate_word_pairs returns",
    "add_lifecycle_event": "keep notes by save_vectors(wv, folder, **notes)",
}


class QuestionError(VectorError, ValueError):
    """A question that has no answer as it was asked; a ValueError too, as gensim's users expect."""


class UnknownAttributeError(VectorError, KeyError):
    """An attribute that no word was given; a KeyError too, as gensim's users expect."""

    __str__ = Exception.__str__  # KeyError's puts the line in quotes


class UnknownWordError(VectorError, KeyError):
    """A word that has no vector; a KeyError too, as gensim's users expect.

    Which words come near is looked for when the message is read, not when the error is raised: a loop that
    catches it for thousands of words does not pay for that.

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
        str(self)  # the vectors stay here
        return type(self), (self.key, self._hint)


def _shown(key: object) -> str:
    if isinstance(key, str | bytes):
        return repr(key)
    return str(key) if key is None or isinstance(key, Real) else f"a {type(key).__name__}"  # in one line


def near_words(key: str, index_to_key: Sequence[str], key_to_index: Mapping[str, int]) -> list[str]:
    """At most three words that ``key`` may be a slip for, the likeliest first.

    Half a million words cannot each be compared.  What one wrong, missing, superfluous or exchanged letter
    makes of ``key`` is looked up; where that finds nothing, the frequent words of about its length and with
    its first letter are compared.
    """
    cased = dict.fromkeys([key.lower(), key.capitalize(), key.upper(), key.casefold(), key.strip()])
    found = [word for word in cased if word in key_to_index]
    if found:
        return found[:3]
    if len(key) > 100:  # no word: do not try every letter in every place
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
