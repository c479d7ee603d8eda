"""How well a model that writes texts after their labels predicts the held-out ones of each."""

from __future__ import annotations

from typing import Any

from wordloom.data.labelled_documents import LabelledDocuments, label_token
from wordloom.evaluate import Scores, perplexity

__all__ = ["scores_after_labels"]


def scores_after_labels(lm: Any, corpus: LabelledDocuments, **settings: Any) -> Scores:
    """:func:`wordloom.evaluate.perplexity` of the validation texts after their labels, which are not scored.

    The notes, and ``labels`` in the details, hold the loss and the number of texts of each label.
    """
    settings = {**settings, "specials": "interpret"}
    if settings.get("start", "auto") == "auto":
        settings["start"] = "none"  # nothing stands before a label, so nothing predicts it
    documents = list(corpus.documents("validation"))
    whole = perplexity(lm.model, lm.tokenizer, documents, **settings)
    notes, found = [], {}
    for label in corpus.labels:
        own = [document for document in documents if str(document.text).startswith(label_token(label))]
        if not own:
            continue
        scores = perplexity(lm.model, lm.tokenizer, own, **settings)
        loss, n = scores["loss"].value, len(own)
        found[label] = {"loss": loss, "texts": n}
        notes.append(f"{label}: loss {loss:.4f} a token, {n:,} {'text' if n == 1 else 'texts'}")
    return Scores(whole.scores, whole.counts, (*whole.notes, *notes), {**whole.details, "labels": found})
