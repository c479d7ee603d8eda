"""Perplexity of a model that writes texts after their labels, for each label."""

from __future__ import annotations

from typing import Any

from wordloom.data.rows.labelled_documents import LabelledDocuments, label_token
from wordloom.errors import EvaluationError
from wordloom.evaluate import Scores, perplexity

__all__ = ["scores_after_labels"]


def scores_after_labels(lm: Any, corpus: LabelledDocuments, **settings: Any) -> Scores:
    """Return :func:`wordloom.evaluate.perplexity` of the validation texts after their labels.

    The labels are neither scored nor counted among the bytes.

    The notes, and ``labels`` in the details, hold the loss and the number of texts of each label.

    Raises EvaluationError for a ``start`` other than "auto", "label" and "none".
    """
    if (start := settings.pop("start", "auto")) not in ("auto", "label", "none"):
        raise EvaluationError(f"start '{start}': nothing stands before a label; leave it out")
    pieces = list(corpus.pieces("validation"))
    overall = perplexity(lm.model, lm.tokenizer, pieces, start="label", **settings)
    notes, by_label = [], {}
    for label in corpus.labels:
        labelled = [piece for piece in pieces if piece.prefix == label_token(label)]
        if not labelled:
            continue
        scores = perplexity(lm.model, lm.tokenizer, labelled, start="label", **settings)
        loss, n = scores["loss"].value, len(labelled)
        by_label[label] = {"loss": loss, "texts": n}
        notes.append(f"{label}: loss {loss:.4f} a token, {n:,} {'text' if n == 1 else 'texts'}")
    return Scores(
        overall.scores, overall.counts, (*overall.notes, *notes), {**overall.details, "labels": by_label}
    )
