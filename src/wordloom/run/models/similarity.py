"""Semantic textual similarity: the correlation of cosines with human scores of pairs (Cer et al. 2017)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from wordloom.data import ScoredCorpus, ScoredRow
from wordloom.data.rows.labelled import refuse_empty
from wordloom.errors import DataError
from wordloom.evaluate import Scores, number_agreement
from wordloom.evaluate.forward import dtype_name
from wordloom.evaluate.reading import tokenizer_name
from wordloom.run.models.embedder import Embedder


def similarity_scores(embedder: Embedder, corpus: ScoredCorpus) -> Scores:
    """Return Pearson's and Spearman's correlation of the cosines of pairs in ``corpus`` with their scores.

    Raises DataError for a row of one text, an empty text, and a text that is too long.
    """
    rows: list[Any] = list(corpus.undivided().rows("train"))
    for row in rows:
        if len(row.texts) != 2:
            raise DataError(f"{row.place}: has {len(row.texts)} text(s); similarity needs two")
        refuse_empty(row)
    different = list(dict.fromkeys(text for row in rows for text in row.texts))
    vectors, ledger = embedder(different, place=lambda number: _place(rows, different[number]))
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
    numbers = {text: number for number, text in enumerate(different)}
    pairs: Any = np.array([[numbers[text] for text in row.texts] for row in rows])
    cosines = (unit[pairs[:, 0]] * unit[pairs[:, 1]]).sum(axis=1)
    settings: dict[str, object] = {
        "by": "cosine",
        "pooling": embedder.pooling,
        "layer": "last" if embedder.layer is None else embedder.layer,
        "tok": tokenizer_name(embedder.tokenizer),
        "dtype": dtype_name(embedder.model),
    }
    scores = number_agreement(
        [row.score for row in rows], cosines, metrics=("pearson", "spearman"), settings=settings
    )
    counts = {**scores.counts, "texts": len(different)}
    return Scores(scores.scores, counts, tuple(ledger.lines()[1:]))


def _place(rows: Iterable[ScoredRow], text: str) -> str:
    """Return the file, line and column of the first row with ``text``."""
    row = next(row for row in rows if text in row.texts)
    return f"{row.place}, column {row.columns[row.texts.index(text)]!r}"
