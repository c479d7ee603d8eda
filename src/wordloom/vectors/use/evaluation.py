"""How good word vectors are: analogies (a is to b as c is to ?) and agreement with people on similarity.

The rules are those of gensim's ``evaluate_word_analogies`` and ``evaluate_word_pairs``: words are compared in
upper case where ``case_insensitive``, the three words of a question are no answers to it, questions and pairs
with a word that has no vector are left out and counted.  What is returned is what gensim returns, a tuple of
two or three, with names for what else is known::

    score, sections = wv.evaluate_word_analogies(path)
    pearson, spearman, oov_ratio = wv.evaluate_word_pairs(path)
"""

from __future__ import annotations

import gzip
import math
import os
import warnings
import zlib
from codecs import lookup
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import VectorError, did_you_mean, position
from wordloom.vectors.store.keyed import KeyedVectors, QuestionError, Vector
from wordloom.vectors.store.questions import looked_at
from wordloom.vectors.store.word_store import nonzero

__all__ = [
    "Agreement",
    "Analogies",
    "Correlation",
    "Section",
    "evaluate_word_analogies",
    "evaluate_word_pairs",
]

Question: TypeAlias = tuple[str, str, str, str]

_SCORES_AT_ONCE = 1 << 25  # cosines held at a time: 128 MiB
_TOTAL = "Total accuracy"
_SIMILARITIES = ("most_similar", "most_similar_cosmul")


class Section(dict[str, Any]):
    """One section of a file of analogies: a dictionary of gensim's three keys, which are attributes too.

    Attributes:
        name: ``section["section"]``, what stands after its colon.
        correct, incorrect: the questions answered right and wrong, in upper case where that is compared.
        skipped: how many were left out, for a word without a vector.
    """

    def __init__(
        self,
        name: str,
        correct: Iterable[Question] = (),
        incorrect: Iterable[Question] = (),
        skipped: int = 0,
    ) -> None:
        super().__init__(section=name, correct=list(correct), incorrect=list(incorrect))
        self.skipped = skipped

    @property
    def name(self) -> str:
        return str(self["section"])

    @property
    def correct(self) -> list[Question]:
        return self["correct"]

    @property
    def incorrect(self) -> list[Question]:
        return self["incorrect"]

    @property
    def asked(self) -> int:
        return len(self.correct) + len(self.incorrect)

    @property
    def accuracy(self) -> float:
        """Share of the questions asked, 0 where none was."""
        return len(self.correct) / self.asked if self.asked else 0.0


class Analogies(NamedTuple):
    """``score`` is the share of all questions asked that were answered right, 0 where none was asked;
    ``sections`` are those of the file, in its order, and at the end one of them all, ``Total accuracy``.
    """

    score: float
    sections: list[Section]

    @property
    def total(self) -> Section:
        """All questions."""
        return self.sections[-1]

    @property
    def accuracy(self) -> float:
        """``score``."""
        return self.score

    @property
    def asked(self) -> int:
        return self.total.asked

    @property
    def skipped(self) -> int:
        return self.total.skipped


class Correlation(NamedTuple):
    """A correlation, -1 to 1, and how likely one as far from 0 is by chance (two-sided); both NaN where one
    side is the same for all pairs."""

    statistic: float
    pvalue: float


class _Correlations(NamedTuple):
    pearson: Correlation
    spearman: Correlation
    oov_ratio: float


class Agreement(_Correlations):
    """Correlations of cosines with people's scores, and the percentage of the file's pairs, ``oov_ratio``, in
    which a word has no vector; these three are the tuple.

    Attributes:
        pairs: how many were compared.
        unknown: how many have a word that has no vector.
    """

    pairs: int = 0
    unknown: int = 0


def evaluate_word_analogies(
    vectors: KeyedVectors,
    path: str | os.PathLike[str],
    *,
    restrict_vocab: int | None = 300_000,
    case_insensitive: bool = True,
    dummy4unknown: bool = False,
    similarity_function: str = "most_similar",
) -> Analogies:
    """Answer a file such as ``questions-words.txt``: lines of four words under ``: section`` lines.

    The answer is the word nearest, by cosine, to unit(b) - unit(a) + unit(c) among the first
    ``restrict_vocab`` words (Mikolov et al. 2013, arXiv:1301.3781).  Of words alike but for case the first,
    which is the most frequent, stands in the question, and any is the answer.

    Args:
        vectors: the words' vectors.
        path: the file.
        restrict_vocab: look at the first so many words alone.
        case_insensitive: whether words are compared in upper case.
        dummy4unknown: whether questions with a word that has no vector count as answered wrong.
        similarity_function: ``most_similar_cosmul`` looks by 3CosMul (see
            :meth:`KeyedVectors.most_similar_cosmul`).

    Raises:
        VectorError: the file cannot be read, or a line of it is neither, with its number.
    """
    if similarity_function not in _SIMILARITIES:
        hint = did_you_mean(str(similarity_function), _SIMILARITIES)
        raise QuestionError(f"unknown similarity_function {similarity_function!r}; {hint}")
    n = looked_at(restrict_vocab, len(vectors))
    rows, keys = _rows(vectors, n, case_insensitive)
    alike: dict[int, list[int]] = {}  # the further rows of words that several spellings share
    for row in np.flatnonzero(keys != np.arange(n)):
        alike.setdefault(int(keys[row]), []).append(int(row))
    sections, questions = _questions(Path(path), case_insensitive)
    known = [[rows.get(word, -1) for word in words] for _, words in questions]
    asked = [number for number, places in enumerate(known) if min(places) >= 0]
    right = np.zeros(len(questions), dtype=bool)
    at_once = max(1, _SCORES_AT_ONCE // max(1, n))
    for start in range(0, len(asked), at_once):
        part = asked[start : start + at_once]
        *given, d = np.array([known[number] for number in part]).T
        scores = _scores(vectors, n, given, by_product=similarity_function == "most_similar_cosmul")
        for line, number in zip(scores, part, strict=True):
            for place in known[number][:3]:
                line[[place, *alike.get(place, ())]] = -np.inf
        best = scores.argmax(axis=1)
        right[part] = (keys[best] == d) & np.isfinite(scores[np.arange(len(part)), best])
    for (place, words), places, correct in zip(questions, known, right, strict=True):
        if min(places) < 0 and not dummy4unknown:
            sections[place].skipped += 1
        else:
            (sections[place].correct if correct else sections[place].incorrect).append(words)
    total = Section(
        _TOTAL,
        (question for section in sections for question in section.correct),
        (question for section in sections for question in section.incorrect),
        sum(section.skipped for section in sections),
    )
    return Analogies(total.accuracy, [*sections, total])


def _scores(vectors: KeyedVectors, n: int, given: list[NDArray[np.int64]], *, by_product: bool) -> Vector:
    """[questions, n] scores of the first n words as answers to a, b, c ``given`` by their rows."""
    lengths = nonzero(vectors.norms[:n])
    words = vectors.vectors[:n]
    a, b, c = (words[rows] / lengths[rows, None] for rows in given)
    if not by_product:
        scores = (b - a + c) @ words.T
        scores /= lengths
        return scores

    def shifted(side: Vector) -> Vector:
        cosines: Vector = side @ words.T
        cosines /= lengths
        cosines += 1
        cosines /= 2
        return cosines

    return shifted(b) * shifted(c) / (shifted(a) + np.float32(1e-6))


def _rows(vectors: KeyedVectors, n: int, upper: bool) -> tuple[dict[str, int], NDArray[np.int64]]:
    """The first row of each word as it is compared, and for each of ``n`` rows the first of its word."""
    rows: dict[str, int] = {}
    compared = (word.upper() if upper else word for word in vectors.index_to_key[:n])
    keys = np.array([rows.setdefault(word, row) for row, word in enumerate(compared)], dtype=np.int64)
    return rows, keys


def _questions(path: Path, upper: bool) -> tuple[list[Section], list[tuple[int, Question]]]:
    """The sections, empty, and (section, question) in the file's order."""
    sections: list[Section] = []
    questions: list[tuple[int, Question]] = []
    for number, line in enumerate(_lines(path), 1):
        if line.startswith(":"):
            sections.append(Section(line.removeprefix(":").strip()))
            continue
        words = (line.upper() if upper else line).split()
        if not words:
            continue
        if not sections:
            raise QuestionError(
                f"{position(path, number)}: no ': section' line stands before it; begin with one"
            )
        if len(words) != 4:
            raise QuestionError(
                f"{position(path, number)}: an analogy has four words, this line {len(words)}"
            )
        questions.append((len(sections) - 1, (words[0], words[1], words[2], words[3])))
    if not questions:
        raise QuestionError(f"{path} holds no analogies; give lines of four words under ': section' lines")
    return sections, questions


def evaluate_word_pairs(
    vectors: KeyedVectors,
    path: str | os.PathLike[str],
    *,
    delimiter: str = "\t",
    columns: tuple[int, int, int] = (0, 1, 2),
    encoding: str = "utf8",
    restrict_vocab: int | None = 300_000,
    case_insensitive: bool = True,
    dummy4unknown: bool = False,
) -> Agreement:
    """Correlate cosines with people's scores, as WordSim-353 and SimLex-999 list them.

    Args:
        vectors: the words' vectors.
        path: a text file, one pair to a line.  Lines that begin with # are passed over, and so is a first
            line whose score is no number: the columns' names.
        delimiter: what stands between columns.
        columns: which hold the two words and the score, from 0.
        encoding: the file's.
        restrict_vocab: look at the first so many words alone.
        case_insensitive: whether words are compared in upper case.
        dummy4unknown: whether pairs with a word that has no vector are compared as if their cosine were 0.

    Raises:
        VectorError: the file cannot be read, a line has no such columns, or not even two pairs have vectors.
    """
    rows, _ = _rows(vectors, looked_at(restrict_vocab, len(vectors)), case_insensitive)
    cosines: list[float] = []
    people: list[float] = []
    unknown = 0
    for number, line in enumerate(_lines(Path(path), encoding), 1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = line.split(delimiter)
        try:
            a, b = (parts[column].strip() for column in columns[:2])
            score = float(parts[columns[2]])
            if not math.isfinite(score):
                raise ValueError
        except (IndexError, ValueError):
            if number == 1:
                continue
            raise QuestionError(
                f"{position(path, number)}: no two words and a number in columns {columns} "
                f"between {delimiter!r}"
            ) from None
        if case_insensitive:
            a, b = a.upper(), b.upper()
        known = a in rows and b in rows
        unknown += not known
        if known or dummy4unknown:
            cosines.append(vectors.similarity(rows[a], rows[b]) if known else 0.0)
            people.append(score)
    n_read = len(cosines) + (0 if dummy4unknown else unknown)
    if len(cosines) < 2:
        raise QuestionError(f"{path}: {len(cosines)} of {n_read} pairs have vectors where two are needed")
    found = Agreement(*_correlations(people, cosines), 100 * unknown / n_read)
    found.pairs, found.unknown = len(cosines), unknown
    return found


def _correlations(x: list[float], y: list[float]) -> tuple[Correlation, Correlation]:
    """Pearson's and Spearman's."""
    from scipy import stats

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)  # NaN says it
        found = stats.pearsonr(x, y), stats.spearmanr(x, y)
    pearson, spearman = (Correlation(float(each.statistic), float(each.pvalue)) for each in found)
    return pearson, spearman


def _lines(path: Path, encoding: str = "utf8") -> list[str]:
    """The lines of a text file, compressed by gzip or not."""
    try:
        raw = path.read_bytes()
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
        return raw.decode(encoding).removeprefix("\ufeff").splitlines()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise VectorError(f"'{path}' is cut short or damaged ({error}); fetch it again") from None
    except OSError as error:
        raise VectorError(f"cannot read '{path}': {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise VectorError(
            f"'{path}' is not {lookup(encoding).name.upper()} text ({error.reason} at byte {error.start}); "
            "convert it"
        ) from None
    except LookupError as error:
        raise QuestionError(f"{error}; give one that Python knows, such as utf8") from None
