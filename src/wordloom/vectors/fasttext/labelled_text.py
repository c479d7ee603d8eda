"""Labelled text as fastText has it: one example to a line, and words that begin with ``__label__`` are its
labels.

Words are what stands between the white space that fastText knows (ASCII's, and the character 0), and the end
of a line is the word ``</s>``.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import VectorError
from wordloom.files import write_text
from wordloom.vectors.fasttext.subwords import END_OF_LINE

__all__ = ["LABEL_PREFIX", "LabelledVocabulary"]

LABEL_PREFIX = "__label__"

_WORD = re.compile("\n|[^ \n\r\t\v\f\0]+")
_KINDS = ("word", "label", "rare")


class LabelledVocabulary:
    """V words, L labels and R rare words; ids follow one another in this order.

    It stands in for a tokenizer where a corpus is prepared (:func:`wordloom.data.prepare`).  Rare words are
    those with no row of their own: they have n-grams all the same, and take part in runs of words.

    Attributes:
        words, labels, rare: lists, each by falling count, ties in alphabetical order.
        counts: [V + L + R] int64.
        n_tokens: running words and labels of the text.
        lower: whether words were brought to lower case; labels never are.
        label_prefix: words that begin so are labels.
        ids: word or label -> id.
    """

    kind = "word"  # a text may be cut wherever no word is
    pad_id = None
    special_ids: frozenset[int] = frozenset()

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
        """Takes them as they are; raises VectorError where there are not as many counts as names."""
        self.words, self.labels, self.rare = list(words), list(labels), list(rare)
        self.lower, self.label_prefix = lower, label_prefix
        self.counts: NDArray[np.int64] = np.fromiter(counts, dtype=np.int64)
        names = [*self.words, *self.labels, *self.rare]
        if len(self.counts) != len(names):
            raise VectorError(f"{len(names)} words and labels have {len(self.counts)} counts; give each one")
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
        """Count the words and labels of ``texts``, which are cut where no word is.

        Args:
            min_count: how often a word must occur to have a row; labels are kept however rare.
            max_words: how many words have one at most, the most frequent.
            progress: told the running words so far, after each text.

        Raises:
            VectorError: there are no labels, or no words are left.
        """
        if not label_prefix or _WORD.fullmatch(label_prefix) is None:
            raise VectorError(f"the label prefix {label_prefix!r} is empty or holds white space")
        found: Counter[str] = Counter()
        running = 0
        for text in texts:
            names = _WORD.findall(text)
            found.update(names)
            running += len(names)
            if progress is not None:
                progress(running)
        counts: Counter[str] = Counter()
        for name, number in found.items():  # few, where the running words are many
            counts[_settled(name, lower, label_prefix)] += number
        ranked = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
        labels = [(name, n) for name, n in ranked if name.startswith(label_prefix)]
        others = [(name, n) for name, n in ranked if not name.startswith(label_prefix)]
        words = [(name, n) for name, n in others if n >= min_count][:max_words]
        rare = others[len(words) :]
        if not labels:
            raise VectorError(
                f"no word of the text begins with {label_prefix!r}, so no line has a label; write each as "
                f"{label_prefix}NAME into its line, or give another label_prefix"
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
        """[L]."""
        V = len(self.words)
        return self.counts[V : V + len(self.labels)]

    # -- on disk ---------------------------------------------------------------------------------------

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``vocabulary.tsv``: a name, its count, and whether it is a word, label or rare word."""
        kinds = [kind for kind in _KINDS for _ in self._named(kind)]
        rows = zip(self.ids, self.counts.tolist(), kinds, strict=True)
        text = "".join(f"{name}\t{count}\t{kind}\n" for name, count, kind in rows)
        write_text(Path(folder) / "vocabulary.tsv", text)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, lower: bool, label_prefix: str) -> LabelledVocabulary:
        """The vocabulary that :meth:`save` wrote; raises VectorError where it is missing or damaged."""
        try:
            text = (Path(folder) / "vocabulary.tsv").read_bytes().decode("utf-8")
            rows = [line.split("\t") for line in text.split("\n")[:-1]]
            words, labels, rare = ([name for name, _, kind in rows if kind == one] for one in _KINDS)
            counts = [int(count) for _, count, _ in rows]
            return cls(words, labels, rare, counts, lower=lower, label_prefix=label_prefix)
        except (OSError, ValueError) as error:
            raise VectorError(
                f"cannot read the vocabulary in {folder}: {error}; start again with --force"
            ) from None

    def _named(self, kind: str) -> list[str]:
        return {"word": self.words, "label": self.labels, "rare": self.rare}[kind]

    # -- as a tokenizer --------------------------------------------------------------------------------

    @property
    def vocab_size(self) -> int:
        return len(self.ids)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of everything that decides how a text is encoded."""
        head = f"labelled {self.lower} {self.label_prefix} {len(self.words)} {len(self.labels)}\n"
        return hashlib.sha256((head + "\n".join(self.ids)).encode("utf-8", "surrogatepass")).hexdigest()

    def encode_ids(self, text: str, *, specials: Any = "text") -> list[int]:
        """Ids of the words and labels of ``text`` that were counted; a line break is ``</s>``."""
        settled = (_settled(name, self.lower, self.label_prefix) for name in _WORD.findall(text))
        known = map(self.ids.get, settled)
        return [index for index in known if index is not None]

    def encode_batch(self, texts: Sequence[str], *, specials: Any = "text") -> list[list[int]]:
        """:meth:`encode_ids` of each text."""
        return [self.encode_ids(text) for text in texts]

    def id_to_token(self, index: int) -> str | None:
        for kind in _KINDS:
            if index < len(self._named(kind)):
                return self._named(kind)[index] if index >= 0 else None
            index -= len(self._named(kind))
        return None


def _settled(name: str, lower: bool, label_prefix: str) -> str:
    if name == "\n":
        return END_OF_LINE
    return name.lower() if lower and not name.startswith(label_prefix) else name
