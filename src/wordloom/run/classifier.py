"""A trained classifier from its folder, and what one does with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from wordloom.data.batches import to_device
from wordloom.data.document_bags import Neighbour, nearest_rows
from wordloom.data.label_batches import BagBatches
from wordloom.data.labels import LabelledCorpus
from wordloom.data.vectorizer import BagVectorizer, weighted
from wordloom.errors import ConfigError, DataError
from wordloom.evaluate import Scores, classification
from wordloom.evaluate.likelihood import DTYPE_NAMES
from wordloom.run.classification import labelled_batches
from wordloom.weights import save_model

__all__ = ["Neighbour", "Prediction", "TextClassifier"]

_AT_ONCE = 1 << 12  # texts in a forward pass


class Prediction(NamedTuple):
    """The likeliest class of a text."""

    label: str
    probability: float


@dataclass(kw_only=True)
class TextClassifier:
    """A bag-of-words model and its vocabulary, as :func:`wordloom.load` gives them.

    V terms, C classes; ``vectorizer.terms`` and ``labels`` are their names in order.
    """

    model: Any
    vectorizer: BagVectorizer
    config: Any
    folder: Path | None = None

    @property
    def tokenizer(self) -> Any:
        """The tokenizer whose tokens are the words; None where texts are split by words or white space."""
        return self.vectorizer.tokenizer

    @property
    def labels(self) -> tuple[str, ...]:
        names: tuple[str, ...] = self.config.labels
        return names

    # -- classes -----------------------------------------------------------------------------------------

    def predict(self, texts: Iterable[str]) -> list[Prediction]:
        """The likeliest class of each text and its probability; of equals the first."""
        probabilities = self.probabilities(texts)
        best = probabilities.argmax(axis=1).tolist()
        return [Prediction(self.labels[c], float(row[c])) for c, row in zip(best, probabilities, strict=True)]

    @torch.no_grad()
    def probabilities(self, texts: Iterable[str]) -> NDArray[np.float64]:
        """The probability of every class for N texts: [N, C] float64."""
        if isinstance(texts, str):
            raise DataError("one text was given where a list of texts is expected; write [text]")
        device = next(self.model.parameters()).device
        found, texts = [np.empty((0, len(self.labels)))], iter(texts)
        while some := list(islice(texts, _AT_ONCE)):
            counts = self.vectorizer.counts(some)
            batches = BagBatches(counts, np.zeros(len(some), np.int64), order="sequential")
            logits = self.model(*to_device(batches.batch(0, len(some)), device).inputs)
            found.append(torch.softmax(logits.double(), dim=1).cpu().numpy())
        return np.concatenate(found)

    def evaluate(self, corpus: LabelledCorpus, *, part: str = "train") -> Scores:
        """Accuracy, macro-F1 and loss on the labelled rows of ``corpus``; see
        :func:`wordloom.evaluate.classification`.  Raises DataError for a label the model does not know."""
        batches, ledger = labelled_batches(self.vectorizer, self.labels, corpus, part)
        n = batches.samples_per_epoch
        cuts = ((start, min(_AT_ONCE, n - start)) for start in range(0, n, _AT_ONCE))
        kind = next(self.model.parameters()).dtype
        settings = {
            "rows": batches.fingerprint[:8],
            "vocab": self.vectorizer.fingerprint[:8],
            "features": self.config.features,
            "dtype": DTYPE_NAMES.get(kind, "other"),
        }
        scores = classification(
            self.model,
            (batches.batch(start, count) for start, count in cuts),
            labels=self.labels,
            settings=settings,
        )
        counts = {**scores.counts, "words": ledger.terms, "unknown_words": ledger.unknown}
        return Scores(scores.scores, counts, scores.notes)

    # -- features ----------------------------------------------------------------------------------------

    def vectorize(self, texts: Iterable[str]) -> Any:
        """The features of N texts that the model weighs, as scipy CSR [N, V] float64."""
        if isinstance(texts, str):
            raise DataError("one text was given where a list of texts is expected; write [text]")
        return self.weigh(self.vectorizer.counts(texts))

    def weigh(self, counts: Any) -> Any:
        """The features of ``counts`` [N, V] by this vocabulary, as :meth:`vectorize` makes them."""
        idf = None if self.model.idf is None else self.model.idf.double().cpu().numpy()
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
        weight = self.model.classifier.weight.detach().double().cpu()  # [C, V]
        weight = weight - weight.mean(0)
        if self.model.idf is not None:
            weight = weight * self.model.idf.double().cpu()
        values, ids = weight.topk(min(k, weight.shape[1]), dim=1)
        terms = self.vectorizer.terms
        return {
            label: [(terms[i], v) for i, v in zip(ids[c].tolist(), values[c].tolist(), strict=True)]
            for c, label in enumerate(self.labels)
        }

    def save_pretrained(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write a folder that :func:`wordloom.load` reads as it is."""
        save_model(self.model, Path(folder), tokenizer=self.vectorizer, overwrite=overwrite)
