"""How good word vectors are: analogies (a is to b as c is to ?) and agreement with people on similarity.

The rules are those of gensim's ``evaluate_word_analogies`` and ``evaluate_word_pairs``: words are compared in
upper case where ``case_insensitive``, the three words of a question are no answers to it, questions and pairs
with a word that has no vector are left out and counted.
"""

from __future__ import annotations

import gzip
import os
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import VectorError
from wordloom.vectors.keyed import KeyedVectors

__all__ = ["Agreement", "Analogies", "Section", "evaluate_word_analogies", "evaluate_word_pairs"]

Question: TypeAlias = tuple[str, str, str, str]

_SCORES_AT_ONCE = 1 << 25  # cosines held at a time: 128 MiB


@dataclass
class Section:
    """One section of a file of analogies.

    Attributes:
        name: what stands after its colon.
        correct, incorrect: the questions answered right and wrong, in upper case where that is compared.
        skipped: how many have a word without a vector.
    """

    name: str
    correct: list[Question] = field(default_factory=list)
    incorrect: list[Question] = field(default_factory=list)
    skipped: int = 0

    @property
    def asked(self) -> int:
        return len(self.correct) + len(self.incorrect)

    @property
    def accuracy(self) -> float:
        """Share of the questions asked, 0 where none was."""
        return len(self.correct) / self.asked if self.asked else 0.0


@dataclass
class Analogies:
    """The sections of a file, in its order."""

    sections: list[Section]

    @property
    def asked(self) -> int:
        return sum(section.asked for section in self.sections)

    @property
    def accuracy(self) -> float:
        """Share of all questions asked, 0 where none was."""
        return sum(len(section.correct) for section in self.sections) / self.asked if self.asked else 0.0

    @property
    def skipped(self) -> int:
        return sum(section.skipped for section in self.sections)


@dataclass
class Agreement:
    """Correlations of cosines with people's scores.

    Attributes:
        spearman, pearson: -1 to 1; NaN where one side is the same for all pairs.
        pairs: how many were compared.
        oov: share of the file's pairs that were left out, a word having no vector.
    """

    spearman: float
    pearson: float
    pairs: int
    oov: float


def evaluate_word_analogies(
    vectors: KeyedVectors,
    path: str | os.PathLike[str],
    *,
    restrict_vocab: int | None = 300_000,
    case_insensitive: bool = True,
) -> Analogies:
    """Answer a file such as ``questions-words.txt``: lines of four words under ``: section`` lines.

    The answer is the word nearest, by cosine, to unit(b) - unit(a) + unit(c) among the first
    ``restrict_vocab`` words (Mikolov et al. 2013, arXiv:1301.3781).  Of words alike but for case the first,
    which is the most frequent, stands in the question, and any is the answer.

    Raises:
        VectorError: the file cannot be read, or a line of it is neither, with its number.
    """
    n = min(restrict_vocab or len(vectors), len(vectors))
    rows, keys = _rows(vectors, n, case_insensitive)
    alike: dict[int, list[int]] = {}  # the further rows of words that several spellings share
    for row in np.flatnonzero(keys != np.arange(n)):
        alike.setdefault(int(keys[row]), []).append(int(row))
    sections, questions = _questions(Path(path), case_insensitive)
    asked: list[tuple[int, list[int], Question]] = []
    for place, words in questions:
        known = [rows.get(word, -1) for word in words]
        if min(known) < 0:
            sections[place].skipped += 1
        else:
            asked.append((place, known, words))
    lengths = np.where(vectors.norms[:n] > 0, vectors.norms[:n], np.float32(1))
    at_once = max(1, _SCORES_AT_ONCE // n)
    for start in range(0, len(asked), at_once):
        part = asked[start : start + at_once]
        a, b, c, d = np.array([known for _, known, _ in part]).T
        unit_a, unit_b, unit_c = (vectors.vectors[row] / lengths[row, None] for row in (a, b, c))
        scores = (unit_b - unit_a + unit_c) @ vectors.vectors[:n].T  # [questions, n]
        scores /= lengths
        for number, (_, known, _) in enumerate(part):
            for given in known[:3]:
                scores[number, [given, *alike.get(given, ())]] = -np.inf
        best = scores.argmax(axis=1)
        right = (keys[best] == d) & np.isfinite(scores[np.arange(len(part)), best])
        for (place, _, words), correct in zip(part, right, strict=True):
            (sections[place].correct if correct else sections[place].incorrect).append(words)
    return Analogies(sections)


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
            raise VectorError(f"{path}, line {number}: no ': section' line stands before it; begin with one")
        if len(words) != 4:
            raise VectorError(f"{path}, line {number}: an analogy has four words, this line {len(words)}")
        questions.append((len(sections) - 1, (words[0], words[1], words[2], words[3])))
    if not questions:
        raise VectorError(f"{path} holds no analogies; give lines of four words under ': section' lines")
    return sections, questions


def evaluate_word_pairs(
    vectors: KeyedVectors,
    path: str | os.PathLike[str],
    *,
    delimiter: str = "\t",
    columns: tuple[int, int, int] = (0, 1, 2),
    restrict_vocab: int | None = 300_000,
    case_insensitive: bool = True,
) -> Agreement:
    """Correlate cosines with people's scores, as WordSim-353 and SimLex-999 list them.

    Args:
        vectors: the words' vectors; the first ``restrict_vocab`` words are looked at.
        path: a text file, one pair to a line.  Lines that begin with # are passed over, and so is a first
            line whose score is no number: the columns' names.
        delimiter: what stands between columns.
        columns: which hold the two words and the score, from 0.

    Raises:
        VectorError: the file cannot be read, a line has no such columns, or not even two pairs have vectors.
    """
    rows, _ = _rows(vectors, min(restrict_vocab or len(vectors), len(vectors)), case_insensitive)
    cosines: list[float] = []
    people: list[float] = []
    left_out = 0
    for number, line in enumerate(_lines(Path(path)), 1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = line.split(delimiter)
        try:
            a, b = (parts[column].strip() for column in columns[:2])
            score = float(parts[columns[2]])
        except (IndexError, ValueError):
            if number == 1:
                continue
            raise VectorError(
                f"{path}, line {number}: no two words and a number in columns {columns} between {delimiter!r}"
            ) from None
        if case_insensitive:
            a, b = a.upper(), b.upper()
        if a not in rows or b not in rows:
            left_out += 1
            continue
        cosines.append(vectors.similarity(rows[a], rows[b]))
        people.append(score)
    if len(cosines) < 2:
        raise VectorError(
            f"{path}: {len(cosines)} of {left_out + len(cosines)} pairs have vectors where two are needed"
        )
    return Agreement(
        spearman=_correlation(_ranks(cosines), _ranks(people)),
        pearson=_correlation(np.array(cosines), np.array(people)),
        pairs=len(cosines),
        oov=left_out / (left_out + len(cosines)),
    )


def _correlation(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Pearson's; NaN where one side does not vary."""
    x, y = x - x.mean(), y - y.mean()
    lengths = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y) / lengths if lengths > 0 else float("nan")


def _ranks(values: list[float]) -> NDArray[np.float64]:
    """1 for the smallest; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def _lines(path: Path) -> list[str]:
    """The lines of a text file, compressed by gzip or not."""
    try:
        raw = path.read_bytes()
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
        return raw.decode("utf-8-sig").splitlines()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise VectorError(f"'{path}' is cut short or damaged ({error}); fetch it again") from None
    except OSError as error:
        raise VectorError(f"cannot read '{path}': {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise VectorError(
            f"'{path}' is not UTF-8 text ({error.reason} at byte {error.start}); convert it"
        ) from None
