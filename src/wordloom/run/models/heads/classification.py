"""Classification: a label for each text or pair of texts, by an encoder or causal model with a head, a
recurrent classifier or a bag of words."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from wordloom.data.bags.documents import Neighbour, nearest_rows
from wordloom.data.bags.vectorizer import BagVectorizer, weighted
from wordloom.data.files.source import Sources
from wordloom.data.rows.labelled import CorpusPart, LabelledCorpus, sorted_labels
from wordloom.errors import CheckpointError, ConfigError, DataError
from wordloom.evaluate import Scores, classification
from wordloom.evaluate.agreement import class_values, glue_task, macro_f1
from wordloom.evaluate.classification import judge
from wordloom.evaluate.forward import check_finite, row_outputs
from wordloom.models import TaskConfig, family_of
from wordloom.recipe import Recipe
from wordloom.recipe.data import RowLengths
from wordloom.run.models.heads.head import Head, Place, ReadRows, read_part, read_texts
from wordloom.run.models.text_readers import BagReader, MarkedReader, TextReader, TokenReader
from wordloom.run.prepare import parts_of
from wordloom.text import Tokenizer


class Prediction(NamedTuple):
    """The likeliest label of a text, and the probabilities of all labels in order.

    ``truncated`` says whether the text was longer than the model reads and lost its end.
    """

    label: str
    probability: float
    truncated: bool = False
    probabilities: tuple[float, ...] = ()


@dataclass(kw_only=True)
class TextClassifier(Head[Prediction]):
    """A classifier and the reader of its texts, as :func:`wordloom.load` returns them.

    C classes, whose names in order are ``labels``.  A bag of words has V terms, ``vectorizer.terms``.
    """

    task = "classification"

    reader: TextReader

    @classmethod
    def for_training(cls, recipe: Recipe, tokenizer: Tokenizer, config: TaskConfig) -> Self:
        reader = MarkedReader(tokenizer, config=config, alike=recipe.train.batch_size)
        return cls(model=None, reader=reader, config=config).with_settings(recipe)

    def with_settings(self, recipe: Recipe) -> Self:
        if not isinstance(self.reader, TokenReader):
            return self
        reader = replace(
            self.reader, longest=recipe.train.seq_len, too_long=recipe.data_as(RowLengths).too_long
        )
        return replace(self, reader=reader)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of the texts; None for a bag of words that is split at words or white space."""
        vocabulary = self.reader.vocabulary
        return getattr(vocabulary, "tokenizer", None) if isinstance(self.reader, BagReader) else vocabulary

    @property
    def too_long(self) -> Literal["error", "cut"]:
        """The treatment of a text that is longer than the model reads: "error", or truncation ("cut").

        Setting it to "cut" raises ConfigError for a model that reads texts of any length. A recurrent
        classifier does, unless :meth:`with_settings` sets the length of training.
        """
        return getattr(self.reader, "too_long", "error")

    @too_long.setter
    def too_long(self, value: Literal["error", "cut"]) -> None:
        if value not in ("error", "cut"):
            raise ConfigError(f"too_long is {value!r}; allowed: 'error', 'cut'")
        reader = self.reader
        if isinstance(reader, TokenReader) and (
            isinstance(reader, MarkedReader) or reader.longest is not None
        ):
            self.reader = replace(reader, too_long=value)
        elif value != "error":
            where = "this model" if self.folder is None else self.folder
            raise ConfigError(f"{where} reads texts of any length; leave too_long out")

    @property
    def vectorizer(self) -> BagVectorizer:
        """The vocabulary of a bag of words; raises CheckpointError for a classifier of sequences."""
        if family_of(self.config) != "bag_of_words":
            where = "this model" if self.folder is None else self.folder
            raise CheckpointError(
                f"{where} is a {family_of(self.config)}, which reads texts as sequences of tokens; only a "
                "bag_of_words has words with weights and documents that are near one another"
            )
        reader: Any = self.reader
        vectorizer: BagVectorizer = reader.vectorizer
        return vectorizer

    @property
    def vocabulary(self) -> Any:
        return self.reader.vocabulary

    # -- classes -----------------------------------------------------------------------------------------

    @classmethod
    def rows_of(cls, recipe: Recipe, counts: Counter[str]) -> dict[str, CorpusPart]:
        return parts_of(recipe, LabelledCorpus)

    @classmethod
    def labels_of(cls, rows: CorpusPart) -> tuple[str, ...]:
        """Return the labels of the training rows; raise DataError if each row has a label of its own."""
        counts = Counter(str(row.label) for row in rows)
        if not counts:
            raise rows.corpus.no_rows(rows.name)
        if len(counts) == counts.total() > 2:
            raise DataError(
                f"each of the {len(counts):,} training rows has a label of its own, so there is no class to "
                "train on; name the columns of text and label: data.text_column, data.label_column"
            )
        return sorted_labels(counts)

    @classmethod
    def texts_of(cls, rows: CorpusPart) -> Iterator[str]:
        return (text for row in rows for text in row.texts)

    def read(self, rows: LabelledCorpus | CorpusPart, *, part: str = "", seed: int | None = None) -> ReadRows:
        return read_part(self.reader, rows, self.labels, seed=seed)

    def read_inputs(self, inputs: list[Any], place: Place) -> ReadRows:
        return read_texts(self.reader, inputs, place, np.int64)

    def answers(self, read: ReadRows) -> list[Prediction]:
        probabilities = self._probabilities(read)  # [N, C]
        return [
            Prediction(self.labels[best], row[best], number in read.source, tuple(row))
            for number, (best, row) in enumerate(
                zip(probabilities.argmax(axis=1).tolist(), probabilities.tolist(), strict=True)
            )
        ]

    def probabilities(self, texts: Iterable[Any]) -> NDArray[np.float64]:
        """Return the probability of each class for N texts: [N, C] float64.

        The log says how many texts were truncated; :meth:`predict` says which.
        """
        chunks = [(self._probabilities(read), len(read.source)) for read in self._chunks(texts, None)]
        shares = np.concatenate([np.empty((0, len(self.labels))), *(part for part, _ in chunks)])
        self._warn_truncated(sum(truncated for _, truncated in chunks), len(shares))
        return shares

    def _probabilities(self, read: ReadRows) -> NDArray[np.float64]:
        """Return [N, C]; raise NonFiniteError for a number that is not a probability."""
        shares = np.empty((read.batches.samples_per_epoch, len(self.labels)))
        for rows, _, logits in row_outputs(self.model, read.batches):
            shares[rows] = torch.softmax(logits, dim=1).numpy()
        check_finite(shares)
        return shares

    def scores(self, read: ReadRows, settings: dict[str, object]) -> Scores:
        """Return accuracy, F1 and loss; see :func:`wordloom.evaluate.classification`."""
        batches, unit = read.batches, self.reader.unit
        scores = classification(
            self.model,
            (batches.batch(*span) for span in batches.passes()),
            labels=self.labels,
            settings=settings,
            positive=positive_label(read.source.corpus.sources, self.labels),
        )
        counts = {**scores.counts, unit: read.ledger.terms, f"unknown_{unit}": read.ledger.unknown}
        return replace(scores, counts=counts)

    def metrics(self, read: ReadRows) -> dict[str, float]:
        """Return the loss, accuracy, F1 of two classes or its mean over more, and Matthews' correlation."""
        batches = read.batches
        judged = judge(self.model, (batches.batch(*span) for span in batches.passes()))
        metrics = {"loss": float(judged.nats.mean()), "accuracy": judged.accuracy}
        if len(self.labels) > 2:
            metrics["macro_f1"] = macro_f1(judged.confusion)
        positive = positive_label(read.source.corpus.sources, self.labels)
        return {**metrics, **class_values(judged.confusion, self.labels, positive)}

    @property
    def signature(self) -> dict[str, object]:
        features = {"features": self.config.features} if hasattr(self.config, "features") else {}
        return {**self.reader.signature, **features}

    # -- features ----------------------------------------------------------------------------------------

    def vectorize(self, texts: Iterable[str]) -> Any:
        """Return the features of N texts as scipy CSR [N, V] float64."""
        return self.weigh(self.vectorizer.counts(texts))

    def weigh(self, counts: Any) -> Any:
        """Return the features of ``counts`` [N, V], which :attr:`vectorizer` counted."""
        self.vectorizer  # noqa: B018  raises for a model that is not a bag of words
        idf = None if self.model.idf is None else self.model.idf.cpu().double().numpy()
        return weighted(counts, self.config.features, idf)

    def nearest(self, text: str, documents: Sequence[str] | Any, topn: int = 10) -> list[Neighbour]:
        """Return the ``topn`` documents that are most similar to ``text``, nearest first.

        Documents that share no word with it are left out. ``documents`` are texts, or the features that
        :meth:`vectorize` returned for them.
        """
        rows: Any = documents if hasattr(documents, "tocsr") else self.vectorize(documents)
        if rows.shape[1] != len(self.vectorizer):
            raise DataError(
                f"the documents have {rows.shape[1]:,} features, the model {len(self.vectorizer):,} words; "
                "give texts, or what this model's vectorize() returns for them"
            )
        return nearest_rows(rows, self.vectorize([text]), topn)

    def top_words(self, k: int = 10) -> dict[str, list[tuple[str, float]]]:
        """Return for each label the ``k`` terms with the highest weights, and their weights.

        A weight is the logit that one unit of the feature adds to the label, minus its mean over all labels,
        which changes no probability. For tf-idf a unit is the term's idf: a rare word then has no more weight
        than it has effect.
        """
        if k < 1:
            raise ConfigError(f"{k} words per label are none; give 1 or more")
        terms = self.vectorizer.terms
        weight = self.model.classifier.weight.detach().cpu().double()  # [C, V]
        weight = weight - weight.mean(0)
        if self.model.idf is not None:
            weight = weight * self.model.idf.cpu().double()
        values, ids = weight.topk(min(k, weight.shape[1]), dim=1)
        return {
            label: [(terms[i], v) for i, v in zip(ids[c].tolist(), values[c].tolist(), strict=True)]
            for c, label in enumerate(self.labels)
        }


def positive_label(sources: Sources, labels: Sequence[str]) -> str | None:
    """Return the label that F1 is about: that of the GLUE task, or None for the second of two labels."""
    names = [sources] if isinstance(sources, str | os.PathLike) else sources
    tasks = {glue_task(str(name)) for name in names}
    task = tasks.pop() if len(tasks) == 1 else None
    return task.positive if task is not None and task.positive in labels else None
