"""Labelled text in fastText's format: one example a line, whose labels are words with the prefix
``__label__``.

White space is ASCII's and the character 0, as in fastText.  The end of a line is the word ``</s>``.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import VectorError
from wordloom.files import write_text
from wordloom.vectors.corpus.vocabulary import WordEncoder, reading_rows
from wordloom.vectors.fasttext.subwords import END_OF_LINE

LABEL_PREFIX = "__label__"

_WORD = re.compile("\n|[^ \n\r\t\v\f\0]+")
_KINDS = ("word", "label", "rare")


class LabelledVocabulary(WordEncoder):
    """V words, L labels and R rare words, with consecutive ids in this order.

    Rare words have no row of their own, but they have character n-grams and are part of word n-grams.

    Attributes:
        words, labels, rare: lists by falling count, with ties in alphabetical order.
        counts: [V + L + R] int64.
        n_tokens: the number of words and labels in the text.
        lower: words were lower-cased; labels never are.
        label_prefix: the prefix of labels.
        ids: word or label -> id.
    """

    kind = "word"  # a text may be split between any two words

    def __init__(
        self,
        words: Sequence[str],
        labels: Sequence[str],
        rare: Sequence[str],
        counts: Iterable[int],
        *,
        lower: bool = False,
        label_prefix: str = LABEL_PREFIX,
    ) -> None:
        """Take the names in order; raise VectorError if the number of counts differs."""
        self.words, self.labels, self.rare = list(words), list(labels), list(rare)
        self.lower, self.label_prefix = lower, label_prefix
        self.counts: NDArray[np.int64] = np.fromiter(counts, dtype=np.int64)
        names = [*self.words, *self.labels, *self.rare]
        if len(self.counts) != len(names):
            raise VectorError(
                f"{len(names)} words and labels have {len(self.counts)} counts; give one for each"
            )
        self.ids = {name: index for index, name in enumerate(names)}
        self.eos_id = self.ids.get(END_OF_LINE)

    @classmethod
    def count(
        cls,
        texts: Iterable[str],
        *,
        min_count: int = 1,
        max_words: int | None = None,
        lower: bool = False,
        label_prefix: str = LABEL_PREFIX,
        progress: Callable[[int], None] | None = None,
    ) -> LabelledVocabulary:
        """Count the words and labels of ``texts``, which must be split between words.

        Args:
            min_count: the lowest count of a word that has a row; every label has one.
            max_words: the highest number of words with a row, the most frequent.
            progress: called after each text with the number of words so far.

        Raises VectorError if there are no labels, or no words remain.
        """
        if not label_prefix or _WORD.fullmatch(label_prefix) is None:
            raise VectorError(f"the label prefix {label_prefix!r} is empty or holds white space")
        raw_counts: Counter[str] = Counter()
        n_words = 0
        for text in texts:
            names = _WORD.findall(text)
            raw_counts.update(names)
            n_words += len(names)
            if progress is not None:
                progress(n_words)
        counts: Counter[str] = Counter()
        for name, number in raw_counts.items():  # normalise distinct names only, which are few
            counts[_normalised(name, lower, label_prefix)] += number
        ranked = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
        labels = [(name, n) for name, n in ranked if name.startswith(label_prefix)]
        others = [(name, n) for name, n in ranked if not name.startswith(label_prefix)]
        words = [(name, n) for name, n in others if n >= min_count][:max_words]
        rare = others[len(words) :]
        if not labels:
            raise VectorError(
                f"no word of the text begins with {label_prefix!r}, so no line has a label; write labels as "
                f"{label_prefix}NAME, or set another label_prefix"
            )
        if not words:
            raise VectorError(
                f"min_count {min_count} leaves no word of {len(others):,}; lower it or give more text"
            )
        kept = [*words, *labels, *rare]
        return cls(
            [name for name, _ in words],
            [name for name, _ in labels],
            [name for name, _ in rare],
            [number for _, number in kept],
            lower=lower,
            label_prefix=label_prefix,
        )

    @property
    def n_tokens(self) -> int:
        return int(self.counts.sum())

    @property
    def label_counts(self) -> NDArray[np.int64]:
        """The counts of the labels [L]."""
        V = len(self.words)
        return self.counts[V : V + len(self.labels)]

    # -- on disk ---------------------------------------------------------------------------------------

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``vocabulary.tsv`` with a name, its count and its kind (word, label or rare) in each line."""
        named = zip(_KINDS, (self.words, self.labels, self.rare), strict=True)
        kinds = [kind for kind, names in named for _ in names]
        rows = zip(self.ids, self.counts.tolist(), kinds, strict=True)
        text = "".join(f"{name}\t{count}\t{kind}\n" for name, count, kind in rows)
        write_text(Path(folder) / "vocabulary.tsv", text)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, lower: bool, label_prefix: str) -> LabelledVocabulary:
        """Read the vocabulary that :meth:`save` wrote; raise VectorError if it is missing or damaged."""
        with reading_rows(folder) as rows:
            words, labels, rare = ([name for name, _, kind in rows if kind == one] for one in _KINDS)
            counts = [int(count) for _, count, _ in rows]
        return cls(words, labels, rare, counts, lower=lower, label_prefix=label_prefix)

    # -- as a tokenizer --------------------------------------------------------------------------------

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of everything that determines the encoding."""
        head = f"labelled {self.lower} {self.label_prefix} {len(self.words)} {len(self.labels)}\n"
        return hashlib.sha256((head + "\n".join(self.ids)).encode("utf-8", "surrogatepass")).hexdigest()

    def split_text(self, text: str) -> Iterator[str]:
        """Return the words and labels of ``text``; a line break is ``</s>``."""
        return (_normalised(name, self.lower, self.label_prefix) for name in _WORD.findall(text))


def _normalised(name: str, lower: bool, label_prefix: str) -> str:
    if name == "\n":
        return END_OF_LINE
    return name.lower() if lower and not name.startswith(label_prefix) else name
