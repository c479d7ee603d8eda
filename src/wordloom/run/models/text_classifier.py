"""A trained classifier from its folder, and what one does with it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from wordloom.data.bags.documents import Neighbour, nearest_rows
from wordloom.data.bags.vectorizer import BagVectorizer, weighted
from wordloom.data.batches.causal import to_device
from wordloom.data.rows.labelled import LabelledCorpus
from wordloom.errors import CheckpointError, ConfigError, DataError, NonFiniteError
from wordloom.evaluate import Scores, classification
from wordloom.evaluate.likelihood import DTYPE_NAMES
from wordloom.models import family_of
from wordloom.nn.evaluating import evaluating
from wordloom.run.models.labelled_rows import labelled_batches, positive_of
from wordloom.run.models.text_readers import BagReader, MarkedReader, TextReader
from wordloom.weights import save_model

__all__ = ["Neighbour", "Prediction", "TextClassifier"]

log = logging.getLogger(__name__)

_AT_ONCE = 1 << 12  # texts in a forward pass


class Prediction(NamedTuple):
    """The likeliest class of a text; ``cut``: it was longer than the model reads, and was cut as asked."""

    label: str
    probability: float
    cut: bool = False


@dataclass(kw_only=True)
class TextClassifier:
    """A classifier and what reads texts for it, as :func:`wordloom.load` gives them.

    C classes, whose names in order are ``labels``.  A bag of words has V terms, ``vectorizer.terms``.
    """

    model: Any
    reader: TextReader
    config: Any
    folder: Path | None = None

    @property
    def tokenizer(self) -> Any:
        """The tokenizer whose tokens are read; None where texts are split by words or white space."""
        vocabulary = self.reader.vocabulary
        return getattr(vocabulary, "tokenizer", None) if isinstance(self.reader, BagReader) else vocabulary

    @property
    def too_long(self) -> Literal["error", "cut"]:
        """What a text is that is longer than the model reads: an error, or cut.  Raises ConfigError for a cut
        by a model that reads texts whole, whatever their length."""
        return getattr(self.reader, "too_long", "error")

    @too_long.setter
    def too_long(self, wanted: Literal["error", "cut"]) -> None:
        if wanted not in ("error", "cut"):
            raise ConfigError(f"too_long is {wanted!r}; allowed: 'error', 'cut'")
        if isinstance(self.reader, MarkedReader):
            self.reader = replace(self.reader, too_long=wanted)
        elif wanted != "error":
            where = "this model" if self.folder is None else self.folder
            raise ConfigError(f"{where} reads texts whole, whatever their length; leave too_long out")

    @property
    def vectorizer(self) -> BagVectorizer:
        """The vocabulary of a bag of words; raises CheckpointError for a classifier of sequences."""
        if family_of(self.config) != "bag_of_words":
            where = "this model" if self.folder is None else self.folder
            raise CheckpointError(
                f"{where} is a {family_of(self.config)}, which reads texts as sequences of tokens; words "
                "with weights, and documents near one another, are what a bag_of_words has"
            )
        reader: Any = self.reader
        vectorizer: BagVectorizer = reader.vectorizer
        return vectorizer

    @property
    def labels(self) -> tuple[str, ...]:
        names: tuple[str, ...] = self.config.labels
        return names

    # -- classes -----------------------------------------------------------------------------------------

    def predict(self, texts: Iterable[str]) -> list[Prediction]:
        """The likeliest class of each text and its probability; of equals the first."""
        found = []
        for probabilities, cut in self.parts(texts):
            best = probabilities.argmax(axis=1).tolist()
            found += [
                Prediction(self.labels[c], float(row[c]), number in cut)
                for number, (c, row) in enumerate(zip(best, probabilities, strict=True))
            ]
        return found

    def probabilities(self, texts: Iterable[str]) -> NDArray[np.float64]:
        """The probability of every class for N texts: [N, C] float64.  Where texts are cut, as asked, the log
        says how many; :meth:`predict` and :meth:`parts` say which."""
        parts = list(self.parts(texts))
        if cut := sum(len(shortened) for _, shortened in parts):
            n = sum(len(probabilities) for probabilities, _ in parts)
            log.warning("%s of %s texts are longer than a row and were cut", f"{cut:,}", f"{n:,}")
        return np.concatenate([np.empty((0, len(self.labels))), *(found for found, _ in parts)])

    def parts(
        self, texts: Iterable[Any], *, place: Callable[[int], str] | None = None
    ) -> Iterator[tuple[NDArray[np.float64], set[int]]]:
        """As :meth:`probabilities`, some thousand texts at a time, each with the numbers, in its part, of the
        texts that were cut; ``place`` names a text by its number, from 0, in an error.  Raises NonFiniteError
        for what is no probability."""
        if isinstance(texts, str):
            raise DataError("one text was given where a list of texts is expected; write [text]")
        device = next(self.model.parameters()).device
        named = place or (lambda number: f"text {number + 1:,}")
        texts, before = iter(texts), 0
        while some := list(islice(texts, _AT_ONCE)):
            read = self.reader.read(some, lambda row, before=before: named(before + row))  # type: ignore[misc]
            batches = self.reader.batches(read, np.zeros(len(some), np.int64))
            found = np.empty((len(some), len(self.labels)))
            with evaluating(self.model):
                for cut in batches.passes():
                    logits = self.model(*to_device(batches.batch(*cut), device).inputs)
                    found[batches.rows(*cut)] = torch.softmax(logits.cpu().double(), dim=1).numpy()
            if not np.isfinite(found).all():
                raise NonFiniteError("the model gives no finite probability; its weights are damaged")
            yield found, set(read.cut_rows)
            before += len(some)

    def evaluate(
        self, corpus: LabelledCorpus, *, part: Literal["train", "validation"] | None = None
    ) -> Scores:
        """Accuracy, F1 and loss on all labelled rows of ``corpus``, or on one ``part``; see
        :func:`wordloom.evaluate.classification`.  Raises DataError for a label the model does not know."""
        whole = corpus.undivided() if part is None else corpus
        batches, ledger = labelled_batches(self.reader, self.labels, whole, part or "train")
        kind = next(self.model.parameters()).dtype
        features = {"features": self.config.features} if hasattr(self.config, "features") else {}
        settings = {
            "rows": batches.fingerprint[:8],
            **self.reader.signature,
            **features,
            "dtype": DTYPE_NAMES.get(kind, "other"),
        }
        scores = classification(
            self.model,
            (batches.batch(*cut) for cut in batches.passes()),
            labels=self.labels,
            settings=settings,
            positive=positive_of(corpus.sources, self.labels),
        )
        unit = self.reader.unit
        counts = {**scores.counts, unit: ledger.terms, f"unknown_{unit}": ledger.unknown}
        cut = [line for line in ledger.lines() if line.startswith("cut:")]
        return replace(scores, counts=counts, notes=(*scores.notes, *cut))

    # -- features ----------------------------------------------------------------------------------------

    def vectorize(self, texts: Iterable[str]) -> Any:
        """The features of N texts that the model weighs, as scipy CSR [N, V] float64."""
        if isinstance(texts, str):
            raise DataError("one text was given where a list of texts is expected; write [text]")
        return self.weigh(self.vectorizer.counts(texts))

    def weigh(self, counts: Any) -> Any:
        """The features of ``counts`` [N, V] by this vocabulary, as :meth:`vectorize` makes them."""
        self.vectorizer  # noqa: B018  others than a bag of words weigh nothing
        idf = None if self.model.idf is None else self.model.idf.cpu().double().numpy()
        return weighted(counts, self.config.features, idf)

    def nearest(self, text: str, documents: Sequence[str] | Any, topn: int = 10) -> list[Neighbour]:
        """The ``topn`` documents most like ``text``, nearest first; those that share no word are left out.

        ``documents`` are texts, or what :meth:`vectorize` made of them, which saves doing it again.
        """
        rows: Any = documents if hasattr(documents, "tocsr") else self.vectorize(documents)
        if rows.shape[1] != len(self.vectorizer):
            raise DataError(
                f"the documents have {rows.shape[1]:,} features, the model {len(self.vectorizer):,} words; "
                "give texts, or what this model's vectorize() makes of them"
            )
        return nearest_rows(rows, self.vectorize([text]), topn)

    def top_words(self, k: int = 10) -> dict[str, list[tuple[str, float]]]:
        """For each label the ``k`` terms that speak most for it, with their weights.

        A weight is the logit that one unit of the feature adds to the label, less its mean over all labels,
        which changes no probability.  For tf-idf a unit is the term's idf, so that rare words do not seem
        stronger than they act.
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

    def save_pretrained(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write a folder that :func:`wordloom.load` reads as it is."""
        save_model(self.model, Path(folder), tokenizer=self.reader.vocabulary, overwrite=overwrite)
