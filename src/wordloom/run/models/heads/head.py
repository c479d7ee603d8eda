"""The protocol of a head: how the model of a fine-tuning task reads rows, answers them and is scored."""

from __future__ import annotations

import hashlib
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from wordloom.data.batches.labelled import LabelBatches
from wordloom.data.ledgers import RowDigest, RowLedger
from wordloom.data.rows.labelled import REPEATED, CorpusPart, LabelledCorpus, refuse_empty, unseen_label
from wordloom.errors import DataTypeError, RecipeError, position
from wordloom.evaluate import Scores
from wordloom.evaluate.forward import dtype_name
from wordloom.models import TaskConfig
from wordloom.recipe import Recipe
from wordloom.recipe.data import RowLengths
from wordloom.run.models.text_readers import MarkedReader, ReadTexts, TextReader
from wordloom.run.models.tokenizers import ReadsText
from wordloom.text import Tokenizer
from wordloom.text.arguments import check_texts
from wordloom.weights import save_model

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")
Place: TypeAlias = Callable[[int], str]
TooLong: TypeAlias = Literal["error", "window", "cut"]
_CHUNK = 1 << 12  # rows that are read and answered at a time


class ReadRows(NamedTuple):
    """Rows as the model reads them.

    Attributes:
        batches: the rows with their targets, if they have any.
        ledger: the report on the rows.
        source: the data that turn the model's outputs into answers, besides the batches.
        further_answers: a hash of right answers that are not among the targets of the batches.
    """

    batches: LabelBatches
    ledger: RowLedger
    source: Any = None
    further_answers: str = ""

    @property
    def fingerprint(self) -> str:
        """sha256 of everything that decides the batches and the scores on them."""
        fingerprint = self.batches.fingerprint
        if not self.further_answers:
            return fingerprint
        return hashlib.sha256(f"{fingerprint}{self.further_answers}".encode()).hexdigest()


@dataclass(kw_only=True)
class Head(Generic[Answer]):
    """A model with a head for one task, and the reader of its rows.

    A subclass defines a task: it reads rows (:meth:`rows_of`, :meth:`read`), predicts
    (:meth:`read_inputs`, :meth:`answers`) and scores (:meth:`scores`, :meth:`metrics`). Training, prediction
    and evaluation of all tasks are built on these methods.

    Attributes:
        task: the name of the task, which is the training objective's name too.
        noun: the name of one row, for messages.
        model: the model; None while a training run reads its rows.
        config: the model's config.
        folder: the folder that the model was loaded from.
    """

    task: ClassVar[str]
    noun: ClassVar[str] = "text"

    model: Any
    config: Any
    folder: Path | None = None

    # -- defined by each task ----------------------------------------------------------------------------

    @classmethod
    def rows_of(cls, recipe: Recipe, counts: Counter[str]) -> Mapping[str, Iterable[Any]]:
        """Return the rows that ``recipe`` names: "train", and "validation" if it holds out any.

        ``counts`` counts the lines that are left out or changed, by a description.
        """
        raise NotImplementedError

    @classmethod
    def for_training(cls, recipe: Recipe, tokenizer: Tokenizer, config: TaskConfig) -> Self:
        """Return the head of a training run, which reads its rows before the model is built."""
        raise NotImplementedError

    @classmethod
    def labels_of(cls, rows: Any) -> tuple[str, ...]:
        """Return the labels in the training rows; empty for a task without labels."""
        return ()

    @classmethod
    def texts_of(cls, rows: Any) -> Iterator[str]:
        """Yield the texts of the training rows, to train a tokenizer on."""
        raise NotImplementedError

    def read(self, rows: Any, *, part: str = "", seed: int | None = None) -> ReadRows:
        """Return rows with answers as batches: permuted by ``seed``, or (None) for one pass over them.

        ``part`` is the name of the part, for the ledger.
        """
        raise NotImplementedError

    def read_inputs(self, inputs: list[Any], place: Place) -> ReadRows:
        """Return inputs without answers as batches; ``place`` names an input by its number in an error."""
        raise NotImplementedError

    def answers(self, read: ReadRows) -> list[Answer]:
        """Return the model's answer to each row, in order."""
        raise NotImplementedError

    def scores(self, read: ReadRows, settings: dict[str, object]) -> Scores:
        """Return the scores of the model on rows with answers; ``settings`` go into their signatures."""
        raise NotImplementedError

    def metrics(self, read: ReadRows) -> dict[str, float]:
        """Return the metrics of a training run on its validation rows, the loss among them."""
        raise NotImplementedError

    @property
    def signature(self) -> dict[str, object]:
        """The settings that decide how rows are read, for the signatures of scores."""
        raise NotImplementedError

    # -- shared by all tasks -----------------------------------------------------------------------------

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels, in order."""
        names: tuple[str, ...] = self.config.labels
        return names

    def predict(self, inputs: Iterable[Any], *, place: Place | None = None) -> list[Answer]:
        """Return the answer to each input, in order.

        An answer says with ``truncated`` whether its input was longer than the model reads and lost its end.
        ``place`` names an input by its number, from 0, in an error. Raises DataError for an empty text and,
        unless ``too_long`` says otherwise, for one that is too long.
        """
        return [answer for read in self._chunks(inputs, place) for answer in self.answers(read)]

    def evaluate(self, rows: Any) -> Scores:
        """Return the scores on rows with answers, each with an interval and a signature.

        Raises DataError for a label that the model does not know.
        """
        read = self.read(rows)
        settings = {"rows": read.fingerprint[:8], **self.signature, "dtype": dtype_name(self.model)}
        scores = self.scores(read, settings)
        return replace(scores, notes=(*scores.notes, *read.ledger.unread()))

    def with_settings(self, recipe: Recipe) -> Self:
        """Return the head that reads rows as ``recipe`` says."""
        raise NotImplementedError

    def save_pretrained(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write a folder that :func:`wordloom.load` reads, and transformers where it has the task."""
        save_model(self.model, Path(folder), tokenizer=self.vocabulary, overwrite=overwrite)

    @property
    def vocabulary(self) -> Any:
        """The tokenizer, or the vocabulary of a bag of words, which is saved beside the model."""
        raise NotImplementedError

    def _chunks(self, inputs: Iterable[Any], place: Place | None) -> Iterator[ReadRows]:
        """Read some thousand inputs at a time."""
        inputs = check_texts(inputs, types=(str, tuple, list), error=DataTypeError)
        named = place or (lambda number: f"{self.noun} {number + 1:,}")
        before = 0
        while chunk := list(islice(inputs, _CHUNK)):
            yield self.read_inputs(chunk, lambda number, before=before: named(before + number))  # type: ignore[misc]
            before += len(chunk)

    def _warn_truncated(self, count: int, total: int) -> None:
        """Log how many inputs were truncated, for methods whose results do not say it."""
        if count:
            log.warning("%s of %s texts are longer than a row and were truncated", f"{count:,}", f"{total:,}")


@dataclass(kw_only=True)
class TokenizedHead(ReadsText, Head[Answer]):
    """A head whose rows are tokens between marks.

    Attributes:
        tokenizer: None for a folder without one; reading a text then raises CheckpointError.
        max_seq_len: tokens of a row at most, marks included; None: as many as the model reads.
        too_long: what happens to a longer text: an error, or "cut", which leaves out its end.
        alike: how many samples in a row have about one length, in training.
    """

    tokenizer: Tokenizer | None
    config: TaskConfig
    max_seq_len: int | None = None
    too_long: TooLong = "error"
    alike: int = 1

    @classmethod
    def for_training(cls, recipe: Recipe, tokenizer: Tokenizer, config: TaskConfig) -> Self:
        head = cls(model=None, tokenizer=tokenizer, config=config, alike=recipe.train.batch_size)
        return head.with_settings(recipe)

    def with_settings(self, recipe: Recipe) -> Self:
        return replace(self, max_seq_len=recipe.train.seq_len, too_long=recipe.data_as(RowLengths).too_long)

    @property
    def reader(self) -> MarkedReader:
        """The reader of the texts."""
        too_long: Literal["error", "cut"] = "cut" if self.too_long == "cut" else "error"
        return MarkedReader(self.text_tokenizer, self.max_seq_len, too_long, self.alike, config=self.config)

    @property
    def signature(self) -> dict[str, object]:
        return self.reader.signature

    @property
    def vocabulary(self) -> Tokenizer | None:
        return self.tokenizer


def values_in(scores: Scores, names: Iterable[str]) -> dict[str, float]:
    """Return the values of these ``scores``; NaN for one that is not defined."""
    values = {name: scores[name].value for name in names}
    return {name: math.nan if value is None else value for name, value in values.items()}


@dataclass
class RowFacts:
    """The labels or scores, positions and digest of labelled rows, collected while their texts are read."""

    labels: list[Any] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    digest: RowDigest = field(default_factory=RowDigest)

    def texts(
        self, rows: CorpusPart, known: Sequence[str] = (), *, most_texts: int = 1, whole: bool = False
    ) -> Iterator[Any]:
        """Yield the texts of each row: a str, or a tuple if rows may have up to ``most_texts`` above 1.

        Raises DataError for a part without rows, for a label that is not ``known``, and with ``whole`` for an
        empty text.
        """
        for row in rows:
            if len(row.texts) > most_texts:
                allowed = "one" if most_texts == 1 else f"{most_texts} at most"
                raise RecipeError(f"{row.place}: has {len(row.texts)} texts; this model reads {allowed}")
            if whole:
                refuse_empty(row)
            if known and row.label not in known:
                raise unseen_label(row, known)
            self.labels.append(row.label)
            self.places.append(position(row.source, row.line))
            self.digest.add((row.texts, row.label))
            yield row.texts[0] if most_texts == 1 else row.texts
        if not self.labels:
            raise rows.corpus.no_rows(rows.name)

    def targets(self, labels: Sequence[str]) -> NDArray[np.int64] | NDArray[np.float32]:
        """Return the number of each row's label among ``labels``, or without labels the scores."""
        if not labels:
            return np.array(self.labels, np.float32)
        number = {label: index for index, label in enumerate(labels)}
        return np.fromiter((number[label] for label in self.labels), np.int64, len(self.labels))


def read_part(
    reader: TextReader, rows: LabelledCorpus | CorpusPart, labels: Sequence[str], *, seed: int | None = None
) -> ReadRows:
    """Return the rows as batches of ``reader``; without ``labels`` their scores are the targets."""
    part = rows.undivided().part("train") if isinstance(rows, LabelledCorpus) else rows
    facts = RowFacts()
    texts = facts.texts(part, labels, most_texts=reader.most_texts, whole=reader.whole)
    read = reader.read(texts, lambda row: facts.places[row])
    return rows_read(reader, part, facts, read, labels, seed=seed)


def read_texts(reader: TextReader, texts: list[Any], place: Place, dtype: type[np.generic]) -> ReadRows:
    """Return texts without answers as batches with targets 0; the source is the numbers of truncated rows."""
    read = reader.read(texts, place)
    batches = reader.batches(read, np.zeros(len(texts), dtype))
    ledger = RowLedger(rows=len(texts), terms=read.terms, unknown=read.unknown, cut=read.cut)
    return ReadRows(batches, ledger, frozenset(read.cut_rows))


def rows_read(
    reader: TextReader,
    rows: CorpusPart,
    facts: RowFacts,
    read: ReadTexts,
    labels: Sequence[str],
    *,
    seed: int | None = None,
) -> ReadRows:
    """Return rows whose texts have been read as batches, with their ledger."""
    targets = facts.targets(labels)
    batches = reader.batches(read, targets, places=facts.places, seed=seed)
    if labels:
        counts = np.bincount(targets.astype(np.int64), minlength=len(labels)).tolist()
        of_targets: dict[str, Any] = {"labels": dict(zip(labels, counts, strict=True))}
    else:
        mean = float(targets.mean(dtype=np.float64))
        of_targets = {"scores": (float(targets.min()), float(targets.max()), mean)}
    ledger = RowLedger(
        part=rows.name,
        split=rows.corpus.describe_split(),
        rows=len(targets),
        terms=read.terms,
        unknown=read.unknown,
        empty=read.empty,
        unit=reader.unit,
        cut=read.cut,
        repeated=rows.dropped[REPEATED],
        text=str(facts.digest),
        **of_targets,
    )
    return ReadRows(batches, ledger, rows)
