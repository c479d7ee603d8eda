"""Labels of words, such as names of persons and places: a head on every token, trained on tagged texts
(Devlin et al. 2018, section 5.3: the first token of a word carries its label)."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from wordloom.data.batches.causal import IGNORE, to_device
from wordloom.data.batches.words import NO_WORD, TaggedRows, WordLabelBatches, tagged_rows
from wordloom.data.rows.tagged import TaggedText, tag_labels, tagged_texts
from wordloom.errors import DataError, NonFiniteError, RecipeError
from wordloom.evaluate import RatioStatistics, Score, Scores, signature, tag_agreement
from wordloom.evaluate.tags import is_bio
from wordloom.nn.evaluating import evaluating
from wordloom.recipe import Recipe
from wordloom.recipe.data import TokenLabelData
from wordloom.run.models.headed_model import HeadedModel
from wordloom.run.models.text_readers import MarkedReader
from wordloom.run.progress import TrainingProgress
from wordloom.run.tasks.heads.fine_tuning import given_tokenizer, head_config, head_parts
from wordloom.run.tasks.labelled import account_of, divided
from wordloom.run.tasks.task import Task, figures_in
from wordloom.weights import save_model

__all__ = ["TaggedWord", "TaggedWords", "Tagger", "tagged_parts", "tagging_task", "words_of"]

TooLong: TypeAlias = Literal["error", "window", "cut"]
_FIGURES = {"loss": "loss", "accuracy": "accuracy", "entity_f1": "f1"}  # of a run, by score
_JOINS = "-'’."  # characters that stand within words
_WORD = re.compile(r"w+(?:jw+)*|[jp]")  # by kind, see _kind
_CONTEXT = 4  # a window reads the last quarter of its tokens' number once more of what stands before it


class TaggedWord(NamedTuple):
    """A word of a text with its likeliest label, and where it stands there: its first character, and the one
    behind its last.  ``label`` and ``probability`` are None for a word that the model has not read: one
    behind a cut, or of which the tokenizer makes no token."""

    word: str
    label: str | None
    probability: float | None
    start: int
    end: int


class TaggedWords(list[TaggedWord]):
    """The words of a text; ``cut`` says whether the text lost its end."""

    cut: bool = False


def words_of(text: str) -> list[tuple[str, int, int]]:
    """The words of running text, each with its first character and the one behind its last.

    Letters and digits go together, also over a hyphen, an apostrophe or a full stop between them; any other
    mark or sign is a word by itself, as in texts with labels.
    """
    kinds = "".join(map(_kind, text))
    return [(text[slice(*found.span())], *found.span()) for found in _WORD.finditer(kinds)]


def _kind(char: str) -> str:
    """w within a word, j what joins two parts of one, p for a mark or sign by itself, or a space."""
    if char in _JOINS:
        return "j"
    if char.isspace():
        return " "
    # combining marks, which are neither, belong to the letter before them
    return "p" if unicodedata.category(char)[0] in "PS" and char != "_" else "w"


@dataclass(kw_only=True)
class Tagger(HeadedModel):
    """A model of words' labels and its tokenizer, as :func:`wordloom.load` gives them.

    Attributes:
        max_seq_len: tokens of a row at most, marks included; None: what the model reads.
        too_long: what a longer text is: an error; read in several rows ("window"), of which each has a
            quarter of its length of what stands before it; or "cut".
    """

    max_seq_len: int | None = None
    too_long: TooLong = "error"

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels, in order."""
        return self.config.labels

    def tag(
        self, texts: Iterable[str | Sequence[str]], *, place: Callable[[int], str] | None = None
    ) -> list[TaggedWords]:
        """The words of each text with their labels, and whether it was cut.

        A str is divided by :func:`words_of`; a list of str is of words, which count as joined by one space.
        Raises DataError for a text without a word, and as :attr:`too_long` says; ``place`` names a text by
        its number, from 0, there.
        """
        if isinstance(texts, str):
            raise DataError("one text was given where a list of texts is expected; write [text]")
        named = place or (lambda number: f"text {number + 1:,}")
        given = [_words(text, named(number)) for number, text in enumerate(texts)]
        if not given:
            return []
        tagged = [
            TaggedText(tuple(word for word, _, _ in words), None, named(number), 0)
            for number, words in enumerate(given)
        ]
        found = [TaggedWords(TaggedWord(word, None, None, *at) for word, *at in words) for words in given]
        rows = self._rows(tagged)
        for row in rows.cut_rows:
            found[rows.texts[row]].cut = True
        read = _read(self.model, _batches(self._reader, rows), rows)
        for text, word, label, probability in zip(*read[:4], strict=True):
            old = found[text][word]
            found[text][word] = old._replace(label=self.labels[label], probability=float(probability))
        return found

    def evaluate(self, texts: Sequence[TaggedText]) -> Scores:
        """``loss`` (nats per word), and what :func:`wordloom.evaluate.tag_agreement` gives of the words that
        were read; raises DataError for a label that the model does not know."""
        rows = self._rows(texts, self.labels)
        batches = _batches(self._reader, rows)
        settings = {
            "rows": batches.fingerprint[:8],
            **_signature(self._reader, self.too_long),
            "labels": len(self.labels),
            "dtype": self.dtype,
        }
        return _scores(self.model, batches, rows, self.labels, settings)

    @property
    def _reader(self) -> MarkedReader:
        return MarkedReader(self.text_tokenizer, self.config, self.max_seq_len)

    def _rows(self, texts: Sequence[TaggedText], labels: Sequence[str] = ()) -> TaggedRows:
        return _tagged_rows(self._reader, texts, labels, self.too_long)


def _words(text: str | Sequence[str], place: str) -> list[tuple[str, int, int]]:
    if isinstance(text, str):
        found = words_of(text)
    else:
        spans = TaggedText(tuple(text), None, "", 1).spans
        found = [(word, *span) for word, span in zip(text, spans, strict=True)]
    if not found or not all(word.strip() for word, _, _ in found):
        raise DataError(f"{place}: holds {'an empty' if found else 'no'} word; give it one, or leave it out")
    return found


def _signature(reader: MarkedReader, too_long: TooLong) -> dict[str, object]:
    return {**reader.signature, "longer": too_long}


def _tagged_rows(
    reader: MarkedReader, texts: Sequence[TaggedText], labels: Sequence[str], too_long: TooLong
) -> TaggedRows:
    frame, longest = reader.frame, reader.most_tokens
    return tagged_rows(
        reader.tokenizer,
        texts,
        labels,
        start=frame.start,
        end=frame.end,
        longest=longest,
        too_long=too_long,
        context=max(0, longest - frame.marks(1)) // _CONTEXT,
    )


def _batches(
    reader: MarkedReader, rows: TaggedRows, *, places: Sequence[str] = (), seed: int | None = None
) -> WordLabelBatches:
    """The rows permuted by ``seed``, or with None for one pass."""
    return WordLabelBatches(
        rows,
        pad_id=reader.frame.pad,
        places=places,
        seed=seed or 0,
        order="length" if seed is None else "permutation",
        alike=1 if seed is None else reader.alike,
    )


class _Read(NamedTuple):
    """Of W words that were read, in order: [W] each; nats NaN where no label is known."""

    texts: NDArray[np.int64]
    words: NDArray[np.int64]
    labels: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    nats: NDArray[np.float64]


def _read(model: Any, batches: WordLabelBatches, rows: TaggedRows) -> _Read:
    """What ``model`` makes of every word; raises NonFiniteError where that is nothing."""
    device = next(model.parameters()).device
    label = np.zeros(len(rows.ids), np.int64)
    share, nats = np.zeros(len(rows.ids)), np.full(len(rows.ids), np.nan)
    with evaluating(model):
        for start, count in batches.passes():
            batch = batches.batch(start, count)
            logits = model(*to_device(batch, device).inputs).cpu().double()  # [B, T, C]
            if not torch.isfinite(logits[batch.inputs[2]]).all():
                raise NonFiniteError("the model gives no finite probability; its weights are damaged")
            best = logits.softmax(-1).max(-1)  # [B, T] each
            lost = F.cross_entropy(
                logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORE, reduction="none"
            ).view_as(batch.targets)
            for i, row in enumerate(batches.rows(start, count).tolist()):
                begin, end = rows.offsets[row], rows.offsets[row + 1]
                label[begin:end] = best.indices[i, : end - begin]
                share[begin:end] = best.values[i, : end - begin]
                nats[begin:end] = lost[i, : end - begin]
    at = np.flatnonzero(rows.words != NO_WORD)
    of_text = np.repeat(rows.texts, rows.lengths)[at]
    return _Read(
        of_text, rows.words[at], label[at], share[at], np.where(rows.targets[at] == IGNORE, np.nan, nats[at])
    )


def _scores(
    model: Any,
    batches: WordLabelBatches,
    rows: TaggedRows,
    labels: Sequence[str],
    settings: dict[str, object],
) -> Scores:
    """Loss and agreement of the words of ``rows`` that have labels."""
    read = _read(model, batches, rows)
    targets = rows.targets[rows.words != NO_WORD]
    # entities are scored where all labels are of such, whichever these texts happen to have
    names = labels if is_bio(labels) else [f"={label}" for label in labels]
    right: list[list[str]] = [[] for _ in range(rows.ledger.texts)]
    taken: list[list[str]] = [[] for _ in range(rows.ledger.texts)]
    for text, target, label in zip(read.texts.tolist(), targets.tolist(), read.labels.tolist(), strict=True):
        if target != IGNORE:
            right[text].append(names[target])
            taken[text].append(names[label])
    agreement = tag_agreement(right, taken, settings=settings)
    known = ~np.isnan(read.nats)
    by_text = np.bincount(read.texts[known], read.nats[known], rows.ledger.texts).astype(np.float64)
    words = np.bincount(read.texts[known], minlength=rows.ledger.texts).astype(np.float64)
    errors = RatioStatistics.of(by_text, words)
    interval = errors.interval()
    signed = signature("loss", **settings, ci="no" if interval is None else f"{rows.ledger.texts}-texts")
    loss = Score("loss", errors.ratio, interval, signed)
    notes = tuple(line for line in rows.ledger.lines() if line.startswith(("cut:", "silent:")))
    return Scores((loss, *agreement.scores), agreement.counts, notes, agreement.details)


# -- training --------------------------------------------------------------------------------------------


def tagging_task(recipe: Recipe, given: Path | None, progress: TrainingProgress) -> Task:
    """Labels of the words of the recipe's texts; ``given`` is a checkpoint to begin with."""
    s, d = recipe.train, recipe.data_as(TokenLabelData)
    dropped = Counter[str]()
    texts = tagged_parts(recipe, dropped)
    labels = tag_labels(texts["train"])
    tokenizer = given_tokenizer(recipe, given, (text.text for text in texts["train"]), progress, "texts")
    config = head_config(recipe, tokenizer, given, task="token_classification", labels=labels)
    reader = MarkedReader(tokenizer, config, s.seq_len, alike=s.batch_size)
    rows = {part: _tagged_rows(reader, some, labels, d.too_long) for part, some in texts.items()}
    parts = {}
    for part, made in rows.items():
        places = [texts[part][number].place() for number in made.texts]
        parts[part] = (
            _batches(reader, made, places=places, seed=recipe.seed if part == "train" else None),
            made.ledger,
        )
        progress.say(f"{part}: {line}" for line in made.ledger.lines())
    progress.say(f"left out: {count:,} {what}" for what, count in dropped.items() if count)
    rest = account_of(
        parts,
        lambda batches: _evaluator(batches, rows["validation"], labels),
        labels=labels,
        signature=_signature(reader, d.too_long),
    )

    def save(model: Any, folder: Path, overwrite: bool) -> None:
        save_model(model, folder, tokenizer=tokenizer, overwrite=overwrite)

    return Task(
        settings=s,
        batches=parts["train"][0],
        fingerprints={"data": rest.fingerprint, "tokenizer": tokenizer.fingerprint},
        ledger=rest.ledger,
        evaluate=rest.evaluate,
        scored=rest.scored,
        save=save,
        **head_parts(
            recipe, config, given, progress, tokens=len(rows["train"].ids) / len(rows["train"].texts)
        ),
    )


def tagged_parts(recipe: Recipe, dropped: Counter[str] | None = None) -> dict[str, list[TaggedText]]:
    """The texts to learn from, "train", and those held out, "validation", if any; ``dropped`` counts lines
    that are no words."""
    d = recipe.data_as(TokenLabelData)
    word = d.text_column
    if isinstance(word, list):
        raise RecipeError(f"data.text_column: words stand in one column, not in {len(word)}; give one")

    def read(sources: Any) -> list[TaggedText]:
        return list(
            tagged_texts(
                sources, word=word, label=d.label_column, encoding_errors=d.row_errors, dropped=dropped
            )
        )

    return divided(recipe, read, "texts")


def _evaluator(
    batches: WordLabelBatches, rows: TaggedRows, labels: Sequence[str]
) -> Callable[[Any], dict[str, float]]:
    """Loss and accuracy over the validation words, and F1 of entities where the labels are of such."""

    def evaluate(model: Any) -> dict[str, float]:
        scores = _scores(model, batches, rows, labels, {})
        figures = figures_in(scores, [name for name in _FIGURES if name in scores])
        return {_FIGURES[name]: value for name, value in figures.items()}

    return evaluate
