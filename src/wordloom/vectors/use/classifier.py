"""Classify texts with a supervised fastText model (Joulin et al. 2017, arXiv:1607.01759).

The model averages the rows of a line's words, character n-grams and word n-grams, and applies a linear layer.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import VectorError
from wordloom.vectors.fasttext.model import FastTextModel
from wordloom.vectors.fasttext.subwords import END_OF_LINE, word_hash, word_hashes, word_ngrams
from wordloom.vectors.files.saved_state import unfinished
from wordloom.vectors.word2vec.sampling import huffman

_SPACE = re.compile("[ \n\r\t\v\f\0]+")  # white space in fastText


class LabelScore(NamedTuple):
    """Precision and recall, as fastText's ``test`` computes them.

    Attributes:
        examples: the scored lines, which have a known label and a known word or n-gram.
        precision: the share of correct labels among the predicted ones; NaN if none were predicted.
        recall: the share of predicted labels among the known ones.
        passed_over: lines that could not be scored.
        unknown: labels that the model does not know, which are ignored.
    """

    examples: int
    precision: float
    recall: float
    passed_over: int
    unknown: int


class FastTextClassifier:
    """Predicts labels as fastText's ``predict``, with exact probabilities.

    fastText adds 1e-5 to each probability and uses a table of sigmoids.

    Attributes:
        model: the model.
        labels: the L labels, including their prefix.
    """

    def __init__(self, model: FastTextModel, *, label_prefix: str = "__label__", lower: bool = False) -> None:
        """
        Args:
            label_prefix: words with this prefix are labels and not part of the text.
            lower: lower-case words, but not labels, as in training.

        Raises VectorError if the model is not supervised, or has no labels.
        """
        if model.args.model != "supervised" or not model.labels:
            raise VectorError(
                f"a {model.args.model} model with {len(model.labels)} labels cannot predict labels; give a "
                "supervised one"
            )
        self.model = model
        self.labels = list(model.labels)
        self._prefix, self._lower = label_prefix, lower
        self._known_labels = frozenset(self.labels)
        self._ids = {word: row for row, word in enumerate(model.words)}
        self._starts, self._ngrams = model.args.subwords.table(model.words)
        self._hashes = word_hashes(model.words)
        self._output = np.require(model.output_matrix, requirements=["C", "A"])  # [L, D]
        self._tree = None
        if model.args.loss == "hs":
            assert model.label_counts is not None
            self._tree = huffman(model.label_counts)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> FastTextClassifier:
        """Load the classifier of a fastText model, or of a run's folder, whose recipe has the label prefix.

        Raises VectorError if there is no classifier at ``path``, or it is damaged.
        """
        from wordloom.vectors.files.fasttext import load_fasttext

        path, settings = Path(path), {}
        if path.is_dir():
            settings = _recipe_of(path)
            path = path / "model.bin"
            if not path.exists():
                vectors = (path.parent / "vectors.json").exists()
                content = (
                    "word vectors and no classifier" if vectors else "no classifier: it has no model.bin"
                )
                raise VectorError(
                    unfinished(path.parent)
                    or f"'{path.parent}' holds {content}; give a run of 'vectors train --algorithm "
                    "fasttext-supervised', or a fastText model"
                )
        return cls(load_fasttext(path), **settings)

    def _words(self, text: str) -> list[str]:
        """Return the words and labels of a line up to the first ``</s>``."""
        if "\n" in text:
            raise VectorError("there is a line break in the text; give one line at a time")
        words = [*filter(None, _SPACE.split(text)), END_OF_LINE]
        if self._lower:
            words = [word if word.startswith(self._prefix) else word.lower() for word in words]
        return words[: words.index(END_OF_LINE) + 1]

    def rows(self, text: str) -> NDArray[np.int64]:
        """Return the rows of the input matrix for a line of text, as fastText's Dictionary::getLine does.

        These are the rows of each word and its character n-grams, and then of the word n-grams.  The line
        ends with ``</s>``.

        Raises VectorError if there is a line break in ``text``.
        """
        V, args = len(self.model.words), self.model.args
        rows: list[int] = []
        hashes: list[int] = []
        for word in self._words(text):
            row = self._ids.get(word)
            if row is None:
                if word in self._known_labels or word.startswith(self._prefix):
                    continue
                rows.extend(V + bucket for bucket in args.subwords.ngrams(word))
                hashes.append(word_hash(word))
            else:
                rows.append(row)
                rows.extend((V + self._ngrams[self._starts[row] : self._starts[row + 1]]).tolist())
                hashes.append(int(self._hashes[row]))
        runs = word_ngrams(np.array(hashes, dtype=np.uint32), args.word_ngrams, args.buckets)
        return np.concatenate([np.array(rows, dtype=np.int64), V + runs])

    def probabilities(self, text: str) -> NDArray[np.float32] | None:
        """Return the probability of each label [L], or None if ``text`` has no rows.

        They sum to 1 with the losses ``softmax`` and ``hs``, and are independent with ``ns`` and ``ova``.

        Raises VectorError if there is a line break in ``text``.
        """
        rows = self.rows(text)
        if not len(rows):
            return None
        hidden = self.model.input_matrix[rows].mean(axis=0)  # [D]
        scores = self._output @ hidden  # [L]
        if self.model.args.loss == "softmax":
            weights = np.exp(scores - scores.max())
            return weights / weights.sum()
        if self._tree is None:
            return np.exp(-np.logaddexp(np.float32(0), -scores))
        starts, nodes, codes = self._tree
        steps = -np.logaddexp(np.float32(0), np.where(codes, -scores[nodes], scores[nodes]))  # [N]
        label = np.repeat(np.arange(len(self.labels)), np.diff(starts))
        return np.exp(np.bincount(label, weights=steps, minlength=len(self.labels))).astype(np.float32)

    def predict(self, text: str, k: int = 1, threshold: float = 0.0) -> list[tuple[str, float]]:
        """Return up to ``k`` labels (-1: all) with a probability of at least ``threshold``, best first.

        The list is empty for a text without known words or n-grams.

        Raises VectorError if there is a line break in ``text``, or ``k`` is neither positive nor -1.
        """
        if k < 1 and k != -1:
            raise VectorError(f"k {k} asks for no labels; give 1 or more, or -1 for all")
        p = self.probabilities(text)
        if p is None:
            return []
        best = np.argsort(-p, kind="stable")[: len(p) if k == -1 else k]
        return [(self.labels[label], float(p[label])) for label in best if p[label] >= threshold]

    def labels_of(self, text: str) -> tuple[list[str], int]:
        """Return the known labels in a line, and the number of other labels.

        Raises VectorError if there is a line break in ``text``.
        """
        words = self._words(text)
        known = [word for word in words if word in self._known_labels]
        others = [w for w in words if w.startswith(self._prefix) and w not in self._known_labels]
        return known, len(others)

    def test(self, lines: Iterable[str], k: int = 1, threshold: float = 0.0) -> LabelScore:
        """Predict up to ``k`` labels for each line, and compare them with the labels in the line.

        Raises:
            VectorError: no line has a known label; or as :meth:`predict`.
        """
        examples = right = predicted = labels = passed_over = unknown = 0
        for line in lines:
            known, others = self.labels_of(line)
            unknown += others
            if not known or not len(self.rows(line)):
                passed_over += 1
                continue
            answers = [label for label, _ in self.predict(line, k, threshold)]
            examples += 1
            predicted, labels = predicted + len(answers), labels + len(known)
            right += sum(label in known for label in answers)
        if not examples:
            raise VectorError(
                f"none of {passed_over:,} lines has a known label and a known word; the model has labels "
                f"such as {self.labels[0]!r}"
            )
        precision = right / predicted if predicted else float("nan")
        return LabelScore(examples, precision, right / labels, passed_over, unknown)


def _recipe_of(folder: Path) -> dict[str, Any]:
    """Return the label prefix and the lower-casing of a run's recipe."""
    try:
        recipe = tomllib.loads((folder / "recipe.toml").read_text(encoding="utf-8"))
        return {"label_prefix": recipe["vectors"]["label_prefix"], "lower": recipe["words"]["lower"]}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise VectorError(
            f"'{folder}': its recipe.toml is damaged ({error}); give model.bin itself"
        ) from None
