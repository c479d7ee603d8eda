"""Token classification: a label for each word of a text, such as the names of persons and places.

The head of Devlin et al. 2018, section 5.3: the first token of a word carries the word's label.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from torch.nn import functional as F

from wordloom.data.batches.causal import IGNORE
from wordloom.data.batches.words import NO_WORD, TaggedRows, WordLabelBatches, tagged_rows
from wordloom.data.rows.tagged import TaggedText, tag_labels, tagged_texts
from wordloom.errors import DataError, RecipeError
from wordloom.evaluate import RatioStatistics, Score, Scores, tag_agreement
from wordloom.evaluate.forward import check_finite, row_outputs
from wordloom.evaluate.token_classification import is_bio
from wordloom.recipe import Recipe
from wordloom.recipe.data import TokenLabelData
from wordloom.run.models.heads.head import Place, ReadRows, TokenizedHead, values_in
from wordloom.run.models.text_readers import order_of
from wordloom.run.prepare import divided

_METRICS = {"loss": "loss", "accuracy": "accuracy", "entity_f1": "f1"}  # of a training run, by score
_JOINS = "-'’."  # characters that stand within words
_WORD = re.compile(r"w+(?:jw+)*|[jp]")  # by kind, see _kind
_CONTEXT = 4  # a window begins with a quarter of its tokens from the window before, for context


class TaggedWord(NamedTuple):
    """A word of a text with its likeliest label, the offset of its first character and the offset behind its
    last.

    ``label`` and ``probability`` are None for a word that the model has not read, because it lies behind a
    truncation or has no token.
    """

    word: str
    label: str | None
    probability: float | None
    start: int
    end: int


class TaggedWords(list[TaggedWord]):
    """The words of a text; ``truncated`` says whether the text lost its end."""

    truncated: bool = False


def words_of(text: str) -> list[tuple[str, int, int]]:
    """Return the words of running text, each with the offsets of its first character and behind its last.

    Letters and digits form a word, also across a hyphen, an apostrophe or a full stop between them. Any other
    mark or sign is a word by itself, as in texts with labels.
    """
    kinds = "".join(map(_kind, text))
    return [(text[slice(*match.span())], *match.span()) for match in _WORD.finditer(kinds)]


def _kind(char: str) -> str:
    """w within a word, j for a character that joins two parts of a word, p for a mark, or a space."""
    if char in _JOINS:
        return "j"
    if char.isspace():
        return " "
    # combining marks are neither, and belong to the letter before them
    return "p" if unicodedata.category(char)[0] in "PS" and char != "_" else "w"


class _WordAnswers(NamedTuple):
    """The model's answers for W words, in order: [W] each; ``nats`` is NaN for a word without a label."""

    texts: NDArray[np.int64]
    words: NDArray[np.int64]
    labels: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    nats: NDArray[np.float64]


@dataclass(kw_only=True)
class TokenClassifier(TokenizedHead[TaggedWords]):
    """A token-classification model and its tokenizer, as :func:`wordloom.load` returns them.

    :meth:`predict` takes str, which it divides by :func:`words_of`, and lists of words, which it joins by one
    space. With ``too_long="window"`` a longer text is read in several rows; each begins with a quarter of its
    length of context, whose words are not labelled again.
    """

    task = "token_classification"

    @classmethod
    def rows_of(cls, recipe: Recipe, counts: Counter[str]) -> dict[str, list[TaggedText]]:
        d = recipe.data_as(TokenLabelData)
        word = d.text_column
        if isinstance(word, list):
            raise RecipeError(f"data.text_column: words are in one column, not in {len(word)}; name one")

        def read(sources: Any) -> list[TaggedText]:
            return list(
                tagged_texts(
                    sources, word=word, label=d.label_column, encoding_errors=d.row_errors, dropped=counts
                )
            )

        return divided(recipe, read, "texts")

    def with_settings(self, recipe: Recipe) -> Self:
        d = recipe.data_as(TokenLabelData)
        return replace(self, max_seq_len=recipe.train.seq_len, too_long=d.too_long)

    @classmethod
    def labels_of(cls, rows: Sequence[TaggedText]) -> tuple[str, ...]:
        return tag_labels(rows)

    @classmethod
    def texts_of(cls, rows: Sequence[TaggedText]) -> Iterator[str]:
        return (text.text for text in rows)

    def read(self, rows: Sequence[TaggedText], *, part: str = "", seed: int | None = None) -> ReadRows:
        return self._read(rows, self.labels, part, seed)

    def read_inputs(self, inputs: list[str | Sequence[str]], place: Place) -> ReadRows:
        words = [_words(text, place(number)) for number, text in enumerate(inputs)]
        texts = [
            TaggedText(tuple(word for word, _, _ in text_words), None, place(number), 0)
            for number, text_words in enumerate(words)
        ]
        read = self._read(texts, (), "", None)
        return read._replace(source=(read.source[0], words))

    def _read(
        self, texts: Sequence[TaggedText], labels: Sequence[str], part: str, seed: int | None
    ) -> ReadRows:
        reader = self.reader
        frame, longest = reader.frame, reader.most_tokens
        rows = tagged_rows(
            reader.tokenizer,
            texts,
            labels,
            start=frame.start,
            end=frame.end,
            longest=longest,
            too_long=self.too_long,
            context=max(0, longest - frame.marks(1)) // _CONTEXT,
            part=part,
        )
        batches = WordLabelBatches(
            rows,
            pad_id=frame.pad,
            places=[texts[number].place() for number in rows.texts],
            **order_of(seed, reader.alike),
        )
        return ReadRows(batches, rows.ledger, (rows, ()))

    def answers(self, read: ReadRows) -> list[TaggedWords]:
        rows, words = read.source
        texts = [
            TaggedWords(TaggedWord(word, None, None, *at) for word, *at in text_words) for text_words in words
        ]
        for row in rows.cut_rows:
            texts[rows.texts[row]].truncated = True
        for text, word, label, probability in zip(*self._words(read)[:4], strict=True):
            unlabelled = texts[text][word]
            texts[text][word] = unlabelled._replace(label=self.labels[label], probability=float(probability))
        return texts

    def scores(self, read: ReadRows, settings: dict[str, object]) -> Scores:
        """Return ``loss`` (nats per word) and the scores of :func:`wordloom.evaluate.tag_agreement`, of the
        words that the model has read."""
        rows: TaggedRows = read.source[0]
        settings = {**settings, "labels": len(self.labels)}
        answers, n_texts = self._words(read), read.ledger.rows
        targets = rows.targets[rows.words != NO_WORD]
        # whether entities are scored depends on all labels, whichever these texts happen to have
        names = self.labels if is_bio(self.labels) else [f"={label}" for label in self.labels]
        right: list[list[str]] = [[] for _ in range(n_texts)]
        predicted: list[list[str]] = [[] for _ in range(n_texts)]
        words = zip(answers.texts.tolist(), targets.tolist(), answers.labels.tolist(), strict=True)
        for text, target, label in words:
            if target != IGNORE:
                right[text].append(names[target])
                predicted[text].append(names[label])
        agreement = tag_agreement(right, predicted, settings=settings)
        loss = self._loss(answers, n_texts, settings)
        return Scores((loss, *agreement.scores), agreement.counts, (), agreement.details)

    def metrics(self, read: ReadRows) -> dict[str, float]:
        scores = self.scores(read, {})
        values = values_in(scores, [name for name in _METRICS if name in scores])
        return {_METRICS[name]: value for name, value in values.items()}

    @property
    def signature(self) -> dict[str, object]:
        return {**self.reader.signature, "longer": self.too_long}

    def _loss(self, answers: _WordAnswers, n_texts: int, settings: dict[str, object]) -> Score:
        """Return the mean loss of the words with labels; its interval is over texts."""
        known = ~np.isnan(answers.nats)
        nats = np.bincount(answers.texts[known], answers.nats[known], n_texts).astype(np.float64)
        words = np.bincount(answers.texts[known], minlength=n_texts).astype(np.float64)
        return RatioStatistics.of(nats, words).score("loss", settings, "texts")

    def _words(self, read: ReadRows) -> _WordAnswers:
        """Return the model's answer for each word that it has read."""
        rows: TaggedRows = read.source[0]
        n = len(rows.ids)
        labels, shares, nats = np.zeros(n, np.int64), np.zeros(n), np.full(n, np.nan)
        for numbers, batch, logits in row_outputs(self.model, read.batches):  # [B, T, C]
            check_finite(logits[batch.inputs[2]])
            best = logits.softmax(-1).max(-1)  # [B, T] each
            lost = F.cross_entropy(
                logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORE, reduction="none"
            ).view_as(batch.targets)  # [B, T]
            for i, row in enumerate(numbers.tolist()):
                begin, end = rows.offsets[row], rows.offsets[row + 1]
                labels[begin:end] = best.indices[i, : end - begin]
                shares[begin:end] = best.values[i, : end - begin]
                nats[begin:end] = lost[i, : end - begin]
        at = np.flatnonzero(rows.words != NO_WORD)
        return _WordAnswers(
            texts=np.repeat(rows.texts, rows.lengths)[at],
            words=rows.words[at],
            labels=labels[at],
            probabilities=shares[at],
            nats=np.where(rows.targets[at] == IGNORE, np.nan, nats[at]),
        )


def _words(text: str | Iterable[str], place: str) -> list[tuple[str, int, int]]:
    if isinstance(text, str):
        words = words_of(text)
    else:
        joined = TaggedText(tuple(text), None, "", 1)
        words = [(word, *span) for word, span in zip(joined.words, joined.spans, strict=True)]
    if not words or not all(word.strip() for word, _, _ in words):
        raise DataError(f"{place}: holds {'an empty' if words else 'no'} word; give it one, or leave it out")
    return words
