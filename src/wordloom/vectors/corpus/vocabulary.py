"""The vocabulary of a corpus: words and their counts, counted in one pass and in bounded memory.

The rules are word2vec.c's: words rarer than ``min_count`` are left out, and if memory is short, so are words
that have been rare so far.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import sys
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import VectorError, did_you_mean
from wordloom.files import write_text
from wordloom.vectors.corpus.phrases import Phrases, read_phrases, write_phrases

SPLITS = ("words", "whitespace")
MOST_WORDS = 21_000_000  # distinct words counted at a time: 70% of word2vec.c's table

_AT_ONCE = 1 << 20  # words of text counted between checks of the limit


@functools.cache
def _word_pattern(end: int) -> re.Pattern[str]:
    """Match letters, digits, underscores and combining marks below the character ``end``.

    Python's \\w has no combining marks; without them the vowels of Hindi would split words.
    """
    marks = "".join(chr(c) for c in range(0x300, end) if unicodedata.category(chr(c)) in ("Mn", "Mc"))
    return re.compile(rf"[\w{marks}]+(?:['’][\w{marks}]+)*")


def _end(text: str) -> int:
    """Return where the characters of ``text`` end: the marks beyond the first plane are a slow pattern."""
    is_beyond = len(text.encode("utf-16-le", "surrogatepass")) > 2 * len(text)
    return sys.maxunicode + 1 if is_beyond else 0x10000


def split_words(
    text: str, *, split: str = "words", lower: bool = True, phrases: Sequence[Phrases] = ()
) -> list[str]:
    """Return the words of ``text``, joined by each pass of ``phrases`` in order.

    ``words`` finds sequences of letters, digits and combining marks, with apostrophes and underscores inside
    (at an edge they mark emphasis).  ``whitespace`` splits at white space.
    """
    if lower:
        text = text.lower()
    words: list[str] = text.split() if split != "words" else _word_pattern(_end(text)).findall(text)
    if split == "words" and "_" in text:
        words = [bare for word in words if (bare := word.strip("_"))]
    for one in phrases:
        words = one.join(words)
    return words


class VocabularyReport(NamedTuple):
    """Statistics of counting.

    Attributes:
        texts: the number of texts.
        words: the number of words of text.
        distinct: the number of distinct words at the end.
        kept: the number of words of text that are in the vocabulary.
        pruned_below: words with this count or less were dropped during counting to save memory; 0: none.  A
            dropped word that occurs again is counted from 0.
    """

    texts: int
    words: int
    distinct: int
    kept: int
    pruned_below: int


class WordEncoder:
    """Takes the place of a tokenizer when a corpus is prepared (:func:`wordloom.data.prepare`).

    Words that have no id are left out.

    Attributes:
        ids: word -> id, in the order of the ids, which count from 0.
    """

    ids: dict[str, int]
    eos_id: int | None = None
    pad_id = None
    special_ids: frozenset[int] = frozenset()

    def split_text(self, text: str) -> Iterable[str]:
        """Return the words of ``text``, including those without an id."""
        raise NotImplementedError

    @property
    def vocab_size(self) -> int:
        return len(self.ids)

    def encode_ids(self, text: str, *, specials: Any = "text") -> list[int]:
        """Return the ids of the words of ``text``, without the words that have none."""
        return [index for index in map(self.ids.get, self.split_text(text)) if index is not None]

    def encode_batch(self, texts: Sequence[str], *, specials: Any = "text") -> list[list[int]]:
        """Return :meth:`encode_ids` of each text."""
        return [self.encode_ids(text) for text in texts]

    @cached_property
    def _names(self) -> list[str]:
        return list(self.ids)

    def id_to_token(self, index: int) -> str | None:
        return self._names[index] if 0 <= index < len(self._names) else None


class WordVocabulary(WordEncoder):
    """Words by falling frequency, with ties in alphabetical order; a word's place is its id.

    Words outside the vocabulary are left out, as the published tools do before they form windows.

    Attributes:
        words: list of V words.
        counts: [V] int64.
        ids: word -> id.
        split, lower: how text is split into words, see :func:`split_words`.
        phrases: the passes that join words before they are looked up.
        report: statistics of counting, or None for a vocabulary that was loaded.
    """

    def __init__(
        self,
        words: Sequence[str],
        counts: Iterable[int],
        *,
        split: str = "words",
        lower: bool = True,
        phrases: Sequence[Phrases] = (),
        report: VocabularyReport | None = None,
    ) -> None:
        """Take V words and their counts in order.

        Raises VectorError if a word occurs twice, the number of counts differs, or ``split`` is unknown.
        """
        _check_split(split)
        self.words = list(words)
        self.counts: NDArray[np.int64] = np.fromiter(counts, dtype=np.int64)
        if len(self.counts) != len(self.words):
            raise VectorError(f"{len(self.words)} words have {len(self.counts)} counts; give one for each")
        self.split, self.lower, self.phrases, self.report = split, lower, tuple(phrases), report
        self.ids = {word: index for index, word in enumerate(self.words)}
        if len(self.ids) != len(self.words):
            twice, _ = Counter(self.words).most_common(1)[0]
            raise VectorError(f"the word {twice!r} occurs twice in the vocabulary")

    @classmethod
    def count(
        cls,
        texts: Iterable[str],
        *,
        min_count: int = 5,
        max_words: int | None = None,
        split: str = "words",
        lower: bool = True,
        most_words: int = MOST_WORDS,
        phrases: Sequence[Phrases] = (),
        progress: Callable[[int], None] | None = None,
    ) -> WordVocabulary:
        """Count the words of ``texts`` and keep the frequent ones.

        Args:
            texts: the texts, read once.
            min_count: the lowest count of a word.
            max_words: the highest number of words, the most frequent.
            split, lower: see :func:`split_words`.
            most_words: whenever there are more distinct words, the rarest are dropped and the lowest count
                rises by one, as in word2vec.c's ReduceVocab; the report has the last lowest count.
            phrases: the passes that join words.
            progress: called after each text with the number of words so far.

        Raises:
            VectorError: no word remains (the message says why), or a setting is out of range.
        """
        _check_split(split)
        for name, number in (("min_count", min_count), ("max_words", max_words), ("most_words", most_words)):
            if number is not None and number < 1:
                raise VectorError(f"{name} {number} makes no vocabulary; give 1 or more")
        counts: Counter[str] = Counter()
        n_texts = n_words = pruned = 0
        for text in texts:
            words = split_words(text, split=split, lower=lower, phrases=phrases)
            n_texts += 1
            n_words += len(words)
            for start in range(0, len(words), _AT_ONCE):
                counts.update(words[start : start + _AT_ONCE])
                while len(counts) > most_words:
                    pruned += 1
                    counts = Counter({word: n for word, n in counts.items() if n > pruned})
            if progress is not None:
                progress(n_words)
        if not n_words:
            raise VectorError("the corpus holds no words; give text, or choose another split")
        if not counts:
            raise VectorError(
                f"most_words {most_words:,} leaves no word of the corpus: all were dropped to save memory; "
                "raise it"
            )
        kept = [(word, number) for word, number in counts.items() if number >= min_count]
        if not kept:
            most = max(counts.values())
            raise VectorError(
                f"min_count {min_count} leaves no word of {len(counts):,}: the most frequent occurs {most:,} "
                "times; lower min_count or give more text"
            )
        kept.sort(key=lambda pair: (-pair[1], pair[0]))
        kept = kept[:max_words]
        report = VocabularyReport(
            texts=n_texts,
            words=n_words,
            distinct=len(counts),
            kept=sum(number for _, number in kept),
            pruned_below=pruned,
        )
        words = [word for word, _ in kept]
        return cls(words, (n for _, n in kept), split=split, lower=lower, phrases=phrases, report=report)

    # -- on disk ---------------------------------------------------------------------------------------

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``phrases.json`` if needed, then ``vocabulary.tsv``, with a word and its count in each line.

        The run's recipe, not this file, has ``split`` and ``lower``.  A folder with ``vocabulary.tsv`` is
        complete.
        """
        folder = Path(folder)
        if self.phrases:
            write_phrases(self.phrases, folder)
        lines = (f"{word}\t{count}\n" for word, count in zip(self.words, self.counts.tolist(), strict=True))
        write_text(folder / "vocabulary.tsv", "".join(lines))

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, split: str, lower: bool) -> WordVocabulary:
        """Read the vocabulary that :meth:`save` wrote; raise VectorError if it is missing or damaged."""
        with reading_rows(folder) as rows:
            words, counts = [word for word, _ in rows], [int(count) for _, count in rows]
            phrases = read_phrases(Path(folder))
        return cls(words, counts, split=split, lower=lower, phrases=phrases)

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self.ids

    # -- as a tokenizer --------------------------------------------------------------------------------

    @property
    def kind(self) -> str:
        """The kind, which decides where a text may be split: a phrase may extend over any place."""
        return "phrases" if self.phrases else "word"

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of everything that determines the encoding."""
        digest = hashlib.sha256(f"words {self.split} {self.lower}\n".encode())
        for number, phrases in enumerate(self.phrases):
            for pair in sorted(phrases.pairs):
                digest.update(f"{number} {' '.join(pair)}\n".encode("utf-8", "surrogatepass"))
        for word in self.words:
            digest.update(word.encode("utf-8", "surrogatepass") + b"\n")
        return digest.hexdigest()

    def split_text(self, text: str) -> list[str]:
        return split_words(text, split=self.split, lower=self.lower, phrases=self.phrases)


@contextmanager
def reading_rows(folder: str | os.PathLike[str]) -> Iterator[list[list[str]]]:
    """Yield the rows of ``vocabulary.tsv``; turn an error of reading them in the block into VectorError."""
    try:
        text = (Path(folder) / "vocabulary.tsv").read_bytes().decode("utf-8")
        yield [line.split("\t") for line in text.split("\n")[:-1]]
    except (OSError, ValueError) as error:
        raise VectorError(
            f"cannot read the vocabulary in {folder}: {error}; start again with --force"
        ) from None


def _check_split(split: str) -> None:
    if split not in SPLITS:
        raise VectorError(f"unknown split {split!r}; {did_you_mean(split, SPLITS)}")


@dataclass(frozen=True)
class WordRule:
    """A function from a text to its words.

    Attributes:
        split, lower: see :func:`wordloom.vectors.split_words`.
        phrases: the passes that join words.
    """

    split: str = "words"
    lower: bool = True
    phrases: Sequence[Phrases] = ()

    def __call__(self, text: str) -> list[str]:
        return split_words(text, split=self.split, lower=self.lower, phrases=self.phrases)

    def __str__(self) -> str:
        joined = ", phrases joined" if self.phrases else ""
        return f"split {self.split!r}, {'lower case' if self.lower else 'case kept'}{joined}"


def word_rule(path: str | os.PathLike[str]) -> WordRule | None:
    """Return how the run in the folder ``path``, or the run its vectors were converted from, splits text.

    Return None for a file, and for vectors of other tools.  Raises VectorError for a damaged folder.
    """
    folder = Path(path)
    try:
        settings = _settings(folder)
        if settings is None:
            return None
        phrases = read_phrases(folder) if settings["phrases"] else ()
        if len(phrases) != settings["phrases"]:
            raise ValueError(
                f"there should be {settings['phrases']} passes of phrases, and there are {len(phrases)}"
            )
        return WordRule(str(settings["split"]), bool(settings["lower"]), phrases)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise VectorError(
            f"the settings for splitting text in '{folder}' are damaged ({error}); restore them"
        ) from None


def saved_rule(rule: WordRule) -> dict[str, Any]:
    """Return the entry of ``vectors.json`` that :func:`word_rule` reads; phrases have a file of their own."""
    return {"split": rule.split, "lower": rule.lower, "phrases": len(rule.phrases)}


def _settings(folder: Path) -> Any:
    """Return the entry that :func:`saved_rule` made, or the table ``[words]`` of the run's recipe."""
    if (folder / "vectors.json").is_file():
        about = json.loads((folder / "vectors.json").read_text(encoding="utf-8"))
        if "word_rule" in about:
            return about["word_rule"]
    if (folder / "recipe.toml").is_file():
        return tomllib.loads((folder / "recipe.toml").read_text(encoding="utf-8")).get("words")
    return None
