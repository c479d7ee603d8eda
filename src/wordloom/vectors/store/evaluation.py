"""Evaluate word vectors: analogies (a is to b as c is to ?) and correlation with human similarity scores.

The rules are those of gensim's ``evaluate_word_analogies`` and ``evaluate_word_pairs``: words are compared in
upper case if ``case_insensitive``, the three words of a question are never its answer, and questions and
pairs with an unknown word are skipped and counted.  Both functions return gensim's tuples, with names::

    score, sections = wv.evaluate_word_analogies(path)
    pearson, spearman, oov_ratio = wv.evaluate_word_pairs(path)
"""

from __future__ import annotations

import math
import os
import warnings
from codecs import lookup
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import VectorError, did_you_mean, position
from wordloom.vectors.store.questions import Questions, searched_rows
from wordloom.vectors.store.refusals import QuestionError
from wordloom.vectors.store.word_store import Vector, nonzero
from wordloom.vectors.whole_files import opened, reading

Question: TypeAlias = tuple[str, str, str, str]

_SCORES_AT_ONCE = 1 << 25  # cosines in memory at a time: 128 MiB
_TOTAL = "Total accuracy"
_SIMILARITIES = ("most_similar", "most_similar_cosmul")


class Section(dict[str, Any]):
    """One section of a file of analogies: a dict with gensim's three keys, which are also attributes.

    Attributes:
        name: the text after the colon; gensim's key ``section``.
        correct, incorrect: the questions, in upper case if words are compared so.
        skipped: the number of questions with an unknown word.
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
        """The share of correct answers, 0 if no question was asked."""
        return len(self.correct) / self.asked if self.asked else 0.0


class Analogies(NamedTuple):
    """The accuracy over all questions (0 if none was asked), the file's sections, and last their total."""

    score: float
    sections: list[Section]

    @property
    def total(self) -> Section:
        """The section of all questions."""
        return self.sections[-1]

    @property
    def accuracy(self) -> float:
        """The share of correct answers, another name of ``score``."""
        return self.score

    @property
    def asked(self) -> int:
        return self.total.asked

    @property
    def skipped(self) -> int:
        return self.total.skipped


class Correlation(NamedTuple):
    """A correlation and its two-sided p-value.  Both are NaN if one side is constant."""

    statistic: float
    pvalue: float


class _Correlations(NamedTuple):
    pearson: Correlation
    spearman: Correlation
    oov_ratio: float


class Agreement(_Correlations):
    """Correlations of cosines with human scores.  ``oov_ratio`` is the percentage of pairs with unknown
    words.

    Attributes:
        pairs: the number of pairs that were compared.
        unknown: the number of pairs with an unknown word.
    """

    pairs: int = 0
    unknown: int = 0


def evaluate_word_analogies(
    vectors: Questions,
    analogies: str | os.PathLike[str],
    restrict_vocab: int | None = 300000,
    case_insensitive: bool = True,
    dummy4unknown: bool = False,
    similarity_function: str = "most_similar",
) -> Analogies:
    """Answer the questions of a file such as ``questions-words.txt``.

    The file has lines of four words under ``: section`` lines.  The answer is the word nearest, by cosine, to
    unit(b) - unit(a) + unit(c) (Mikolov et al. 2013, arXiv:1301.3781).  If several words differ only in case,
    the question uses the first, usually the most frequent; any of them is a correct answer.

    Args:
        restrict_vocab: search only this many words, from the start of the vocabulary.
        case_insensitive: compare words in upper case.
        dummy4unknown: count questions with an unknown word as answered wrong.
        similarity_function: ``most_similar_cosmul`` uses 3CosMul (see :meth:`Questions.most_similar_cosmul`).

    Raises VectorError if the file cannot be read, or one of its lines has another form.
    """
    if similarity_function not in _SIMILARITIES:
        hint = did_you_mean(str(similarity_function), _SIMILARITIES)
        raise QuestionError(f"unknown similarity_function {similarity_function!r}; {hint}")
    n = searched_rows(restrict_vocab, len(vectors))
    rows, keys = _first_rows(vectors, n, case_insensitive)
    spellings: dict[int, list[int]] = {}  # first row of a word -> rows of its other spellings
    for row in np.flatnonzero(keys != np.arange(n)):
        spellings.setdefault(int(keys[row]), []).append(int(row))
    sections, questions = _read_questions(Path(analogies), case_insensitive)
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
                line[[place, *spellings.get(place, ())]] = -np.inf
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


def _scores(vectors: Questions, n: int, given: list[NDArray[np.int64]], *, by_product: bool) -> Vector:
    """Return [questions, n] scores of the first n words; ``given`` holds the rows of a, b and c."""
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


def _first_rows(vectors: Questions, n: int, upper: bool) -> tuple[dict[str, int], NDArray[np.int64]]:
    """Return word -> first row of any of its spellings, and [n] the first row of each row's word."""
    rows: dict[str, int] = {}
    compared = (word.upper() if upper else word for word in vectors.index_to_key[:n])
    keys = np.array([rows.setdefault(word, row) for row, word in enumerate(compared)], dtype=np.int64)
    return rows, keys


def _read_questions(path: Path, upper: bool) -> tuple[list[Section], list[tuple[int, Question]]]:
    """Return the empty sections, and (section, question) in the order of the file."""
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
            raise QuestionError(f"{position(path, number)}: the file must begin with a ': section' line")
        if len(words) != 4:
            raise QuestionError(
                f"{position(path, number)}: an analogy has four words, and this line has {len(words)}"
            )
        questions.append((len(sections) - 1, (words[0], words[1], words[2], words[3])))
    if not questions:
        raise QuestionError(f"{path} holds no analogies; give lines of four words under ': section' lines")
    return sections, questions


def evaluate_word_pairs(
    vectors: Questions,
    pairs: str | os.PathLike[str],
    delimiter: str = "\t",
    encoding: str = "utf8",
    restrict_vocab: int | None = 300000,
    case_insensitive: bool = True,
    dummy4unknown: bool = False,
    *,
    columns: tuple[int, int, int] = (0, 1, 2),
) -> Agreement:
    """Correlate cosines with human scores in files such as WordSim-353 and SimLex-999.

    Args:
        pairs: a text file with one pair a line.  Lines that begin with # are skipped, and so is a header: a
            first line whose score is not a number.
        delimiter: the text between columns.
        restrict_vocab: use only this many words, from the start of the vocabulary.
        case_insensitive: compare words in upper case.
        dummy4unknown: give pairs with an unknown word the cosine 0 instead of skipping them.
        columns: the columns of the two words and the score, counted from 0.

    Raises VectorError if the file cannot be read, a line lacks a column, or fewer than two pairs are known.
    """
    rows, _ = _first_rows(vectors, searched_rows(restrict_vocab, len(vectors)), case_insensitive)
    cosines: list[float] = []
    human: list[float] = []
    unknown = 0
    for number, line in enumerate(_lines(Path(pairs), encoding), 1):
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
                f"{position(pairs, number)}: no two words and a number in columns {columns} "
                f"between {delimiter!r}"
            ) from None
        if case_insensitive:
            a, b = a.upper(), b.upper()
        known = a in rows and b in rows
        unknown += not known
        if known or dummy4unknown:
            cosines.append(vectors.similarity(rows[a], rows[b]) if known else 0.0)
            human.append(score)
    n_read = len(cosines) + (0 if dummy4unknown else unknown)
    if len(cosines) < 2:
        raise QuestionError(f"{pairs}: {len(cosines)} of {n_read} pairs have vectors, and two are needed")
    agreement = Agreement(*_correlations(human, cosines), 100 * unknown / n_read)
    agreement.pairs, agreement.unknown = len(cosines), unknown
    return agreement


def _correlations(x: list[float], y: list[float]) -> tuple[Correlation, Correlation]:
    """Return Pearson's and Spearman's correlations."""
    from scipy import stats

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)  # the result is NaN
        results = stats.pearsonr(x, y), stats.spearmanr(x, y)
    pearson, spearman = (Correlation(float(each.statistic), float(each.pvalue)) for each in results)
    return pearson, spearman


def _lines(path: Path, encoding: str = "utf8") -> list[str]:
    """Return the lines of a text file, which may be compressed with gzip."""
    try:
        with reading(path, "give a text file"), opened(path) as file:
            return file.read().decode(encoding).removeprefix("\ufeff").splitlines()
    except UnicodeDecodeError as error:
        raise VectorError(
            f"'{path}' is not {lookup(encoding).name.upper()} text ({error.reason} at byte {error.start}); "
            "convert it"
        ) from None
    except LookupError as error:
        raise QuestionError(f"{error}; give an encoding that Python knows, such as utf8") from None
