"""Texts as bags of words: sparse rows of counts over a vocabulary, and the weights made of them.

>>> vectorizer, counted = BagVectorizer.fit_counts(["that is a cute dog my cat is cute"])
>>> vectorizer.terms
['that', 'is', 'a', 'cute', 'dog', 'my', 'cat']
>>> counted.rows.toarray().tolist()
[[1, 2, 1, 2, 1, 1, 1]]
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import CheckpointError, DataError, DataTypeError, did_you_mean
from wordloom.files import write_text
from wordloom.text import Tokenizer
from wordloom.text.arguments import check_texts, describe

SPLITS = ("words", "whitespace")
FEATURES = ("counts", "binary", "tfidf")
VOCABULARY = "vocabulary.json"

# Words and single punctuation marks of a text in ASCII, exactly as BERT's pre-tokenizer splits it.
_ASCII_WORDS = re.compile(r"[^\s!-/:-@\[-`{-~]+|[!-/:-@\[-`{-~]", re.ASCII)
_AT_ONCE = 512  # texts held at a time


class Counted(NamedTuple):
    """The counts of N texts (CSR [N, V] int32, ids ascending), and the numbers of terms and unknown terms."""

    rows: Any
    terms: int
    unknown: int


class BagVectorizer:
    """A vocabulary of V terms in the order of their first appearance, and the splitter of texts into terms.

    A term is a word or, with ``max_ngram`` above 1, a run of up to that many words, joined by one space.
    Terms that are not in the vocabulary are not counted.

    Attributes:
        terms, ids: the list of V terms, and the id of each term.
        split: ``"words"`` (words and single punctuation marks, as the word tokenizer splits) or
            ``"whitespace"``.
        lower: lower-case texts first.
        tokenizer: takes its tokens for words; ``split`` and ``lower`` then have no effect.
    """

    # read when a model's folder is saved
    vocab_size: int
    bos_id: int | None = None
    eos_id: int | None = None
    pad_id: int | None = None

    def __init__(
        self,
        terms: Sequence[str],
        *,
        split: str = "words",
        lower: bool = False,
        max_ngram: int = 1,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        """Raise DataError for a setting that is not allowed, or a repeated term."""
        _check(split, max_ngram)
        self.split, self.lower, self.max_ngram, self.tokenizer = split, lower, max_ngram, tokenizer
        self._name(list(check_texts(terms, "terms", error=DataTypeError)))
        if len(self.ids) != len(self.terms):
            raise DataError(f"{len(self.terms) - len(self.ids)} terms are in the vocabulary twice")

    def _name(self, terms: list[str]) -> None:
        self.terms = terms
        self.ids = {term: index for index, term in enumerate(self.terms)}
        self.vocab_size = len(self.terms)

    def __len__(self) -> int:
        return len(self.terms)

    @classmethod
    def fit(cls, texts: Iterable[str], **settings: Any) -> BagVectorizer:
        """Return the vocabulary of ``texts``; see :meth:`fit_counts`."""
        return cls.fit_counts(texts, **settings)[0]

    @classmethod
    def fit_counts(
        cls,
        texts: Iterable[str],
        *,
        split: str = "words",
        lower: bool = False,
        max_ngram: int = 1,
        min_count: int = 1,
        max_terms: int | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> tuple[BagVectorizer, Counted]:
        """The vocabulary of ``texts``, and their counts, in one pass.

        Args:
            texts: read once, one after another; only their counts are kept.
            split, lower, max_ngram, tokenizer: see the class.
            min_count: how often a term must occur in all texts together.
            max_terms: how many terms to keep, the most frequent (of equals, those that came first).

        Raises:
            DataError: a setting that is not allowed, texts without a word, or no word that is left.
        """
        for name, number in (("min_count", min_count), ("max_terms", max_terms)):
            if isinstance(number, bool) or not isinstance(number, int | np.integer):
                if number is None and name == "max_terms":
                    continue
                raise DataTypeError(f"{name} must be an integer, not {describe(number)}")
            if number < 1:
                raise DataError(f"{name} {number} makes no vocabulary; give 1 or more")
        vectorizer = cls([], split=split, lower=lower, max_ngram=max_ngram, tokenizer=tokenizer)
        found: defaultdict[str, int] = defaultdict()
        found.default_factory = found.__len__  # a term that is new gets the next id
        ids, ends = _numbered(vectorizer.split_texts(texts), found.__getitem__)
        if not len(ids):
            raise DataError("the texts hold no words; give text, or choose another split")
        totals = np.bincount(ids)
        counts = _rows(ids, ends, len(found))
        all_terms = list(found)
        kept = _kept(totals, min_count, max_terms)
        if len(kept) < len(all_terms):
            counts = counts[:, kept]
            all_terms = [all_terms[index] for index in kept.tolist()]
        vectorizer._name(all_terms)
        return vectorizer, Counted(counts, len(ids), len(ids) - int(counts.sum()))

    def counts(self, texts: Iterable[str]) -> Any:
        """Return the count of each term in each of N texts: CSR [N, V] int32."""
        return self.count(texts).rows

    def count(self, texts: Iterable[str]) -> Counted:
        """Return :meth:`counts`, and the numbers of terms and of unknown terms."""
        known = self.ids
        ids, ends = _numbered(self.split_texts(texts), lambda term: known.get(term, -1))
        is_known = ids >= 0
        before = np.concatenate(([0], np.cumsum(is_known)))  # known terms before each place
        rows = _rows(ids[is_known], before[ends], len(self.terms))
        return Counted(rows, len(ids), len(ids) - int(before[-1]))

    def split_texts(self, texts: Iterable[str]) -> Iterator[list[str]]:
        """Yield the terms of each text: its words, then its pairs of words, and so on."""
        types = (str,) if self.tokenizer is None else (str, bytes)
        texts = check_texts(texts, types=types, error=DataTypeError)
        if self.tokenizer is not None:
            words = self._tokens(texts)
        else:
            plain = map(str.lower, texts) if self.lower else texts
            words = map(str.split if self.split == "whitespace" else _split_words, plain)
        if self.max_ngram == 1:
            return iter(words)
        return map(self._with_ngrams, words)

    def _tokens(self, texts: Iterable[str]) -> Iterator[list[str]]:
        assert self.tokenizer is not None
        spelt, texts = _Spellings(self.tokenizer), iter(texts)
        while some := list(islice(texts, _AT_ONCE)):
            # "text": a text may quote a special token
            for ids in self.tokenizer.encode_batch(some, specials="text"):
                yield [spelt[index] for index in ids.tolist()]

    def _with_ngrams(self, words: list[str]) -> list[str]:
        runs = (zip(*(words[i:] for i in range(n)), strict=False) for n in range(2, self.max_ngram + 1))
        return [*words, *map(" ".join, chain.from_iterable(runs))]

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of everything that affects counts."""
        digest = hashlib.sha256(json.dumps(self._settings()).encode())
        for term in self.terms:
            digest.update(term.encode("utf-8", "surrogatepass") + b"\n")
        return digest.hexdigest()

    def _settings(self) -> dict[str, Any]:
        if self.tokenizer is not None:
            return {"tokenizer": self.tokenizer.fingerprint, "max_ngram": self.max_ngram}
        return {"split": self.split, "lower": self.lower, "max_ngram": self.max_ngram}

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write ``vocabulary.json`` (settings and terms), and the files of the tokenizer, if any."""
        folder = Path(folder)
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(folder)
        content = json.dumps({**self._settings(), "terms": self.terms}, ensure_ascii=False, indent=0)
        write_text(folder / VOCABULARY, content + "\n")

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str]) -> BagVectorizer:
        """Load a vectorizer; raise CheckpointError for a missing or damaged file, or another tokenizer."""
        path = Path(folder) / VOCABULARY
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            terms = [str(term) for term in content.pop("terms")]
            expected = content.pop("tokenizer", None)
            if expected is None:
                return cls(terms, **content)
        except FileNotFoundError:
            raise CheckpointError(
                f"{folder} has no {VOCABULARY}; put back the one it was saved with"
            ) from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, DataError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from None
        tokenizer = Tokenizer.from_pretrained(folder)
        if tokenizer.fingerprint != expected:
            raise CheckpointError(
                f"the tokenizer in {folder} is not the one {VOCABULARY} was counted with; put that back"
            )
        return cls(terms, max_ngram=content["max_ngram"], tokenizer=tokenizer)


def smooth_idf(counts: Any) -> NDArray[np.float64]:
    """Return the inverse document frequencies [V] of the terms of ``counts`` [N, V], as scikit-learn does.

    They are ln((1 + N) / (1 + df)) + 1, where df is the number of rows with the term.
    """
    _check_rows(counts, "counts")
    N, V = counts.shape
    df = np.bincount(counts.indices, minlength=V)  # a row holds a term once
    return np.log((1.0 + N) / (1.0 + df)) + 1.0


def weighted(counts: Any, features: str, idf: NDArray[Any] | None = None) -> Any:
    """Return the features of ``counts`` [N, V]: CSR [N, V] float64.

    ``"counts"`` keeps the counts, and ``"binary"`` is 1 where a term occurs.  ``"tfidf"`` is the counts times
    ``idf`` [V], with rows of length 1, as in scikit-learn's TfidfVectorizer.  Raises DataError for another
    name.
    """
    if features not in FEATURES:
        raise DataError(f"unknown features {features!r}; {did_you_mean(str(features), FEATURES)}")
    _check_rows(counts, "counts")
    rows = counts.astype(np.float64)
    if features == "binary":
        rows.data[:] = 1.0
    elif features == "tfidf":
        if idf is None:
            raise DataError("features 'tfidf' need the inverse document frequencies; give idf")
        rows.data *= np.asarray(idf, dtype=np.float64)[rows.indices]
        rows = unit_rows(rows)
    return rows


def row_lengths(rows: Any) -> NDArray[np.float64]:
    """Return the Euclidean length of each row of a CSR [N, V]: [N]."""
    _check_rows(rows, "rows")
    return np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())


def unit_rows(rows: Any) -> Any:
    """Divide each row of a CSR of floats by its length, in place; a row of zeros stays as it is."""
    lengths = row_lengths(rows)
    rows.data /= np.repeat(np.where(lengths > 0, lengths, 1.0), np.diff(rows.indptr))
    return rows


def _check(split: str, max_ngram: int) -> None:
    if split not in SPLITS:
        raise DataError(f"unknown split {split!r}; {did_you_mean(str(split), SPLITS)}")
    if not isinstance(max_ngram, int) or not 1 <= max_ngram <= 9:
        raise DataError(f"max_ngram {max_ngram} is not allowed; runs of 1 to 9 words are counted")


def _check_rows(rows: Any, name: str) -> None:
    if getattr(rows, "format", None) != "csr":
        raise DataTypeError(
            f"{name} must be a CSR matrix, such as BagVectorizer.counts returns, not {describe(rows)}"
        )


class _Spellings(dict[int, str]):
    """The spelling of each id, looked up once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __missing__(self, index: int) -> str:
        self[index] = token = self._tokenizer.id_to_token(index)
        return token


def _numbered(
    texts: Iterable[list[str]], number: Callable[[str], int]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the number of every term [n], and the starts of texts with the last end [N + 1].

    Several texts are numbered at a time, because one call for many terms costs less than many calls.
    """
    parts: list[NDArray[np.int32]] = [np.empty(0, np.int32)]
    lengths = array("q", [0])
    texts = iter(texts)
    while some := list(islice(texts, _AT_ONCE)):
        sizes = list(map(len, some))
        lengths.extend(sizes)
        parts.append(np.fromiter(map(number, chain.from_iterable(some)), np.int32, sum(sizes)))
    return np.concatenate(parts), np.cumsum(np.frombuffer(lengths, np.int64))


def _rows(ids: NDArray[np.int32], ends: NDArray[np.int64], V: int) -> Any:
    """Return the counts, CSR [N, V] int32, of ``ids``; text n ends at ``ends[n + 1]``.  ``ids`` is reused."""
    from scipy.sparse import csr_matrix

    if ends[-1] <= np.iinfo(np.int32).max:
        ends = ends.astype(np.int32)
    rows = csr_matrix((np.ones(len(ids), np.int32), ids, ends), shape=(len(ends) - 1, V))
    rows.sum_duplicates()
    return rows


def _kept(totals: NDArray[np.int64], min_count: int, max_terms: int | None) -> NDArray[np.int64]:
    """Return the ids of the terms that are kept, ascending."""
    kept = np.flatnonzero(totals >= min_count)
    if not len(kept):
        raise DataError(
            f"min_count {min_count} leaves no word of {len(totals):,}: the most frequent occurs "
            f"{totals.max():,} times; lower it or give more text"
        )
    if max_terms is not None and len(kept) > max_terms:
        kept = np.sort(kept[np.argsort(-totals[kept], kind="stable")[:max_terms]])
    return kept


@cache
def _bert() -> Any:
    from tokenizers.pre_tokenizers import BertPreTokenizer

    return BertPreTokenizer()


def _split_words(text: str) -> list[str]:
    return _ASCII_WORDS.findall(text) if text.isascii() else _bert_split(text)


def _bert_split(text: str) -> list[str]:
    try:
        return [word for word, _ in _bert().pre_tokenize_str(text)]
    except UnicodeEncodeError as error:
        raise DataError(
            f"a text holds half of a surrogate pair ({text[error.start]!r}), which is not text; correct it"
        ) from None
