"""The rows of a labelled corpus as batches for a loaded model, with a report of what was read."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wordloom.data.batches.bags import LabelBatches, LabelLedger
from wordloom.data.files.source import Sources
from wordloom.data.rows.digest import RowDigest
from wordloom.data.rows.labelled import REPEATED, LabelledCorpus, refuse_empty, unseen_label
from wordloom.errors import RecipeError, position
from wordloom.evaluate.glue import glue_task
from wordloom.run.models.text_readers import ReadTexts, TextReader

__all__ = ["Rows", "labelled_batches", "ledger", "positive_of"]


@dataclass
class Rows:
    """Labelled rows as they go by: their texts are handed on, all else is kept."""

    labels: list[str] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    digest: RowDigest = field(default_factory=RowDigest)

    def texts(self, corpus: LabelledCorpus, part: Any, known: Sequence[str] = ()) -> Iterator[str]:
        """The texts of ``part``, one of each row; raises DataError for a label that is not ``known``."""
        return (text for (text,) in self.rows(corpus, part, known))

    def rows(
        self,
        corpus: LabelledCorpus,
        part: Any,
        known: Sequence[str] = (),
        *,
        most_texts: int = 1,
        whole: bool = False,
    ) -> Iterator[tuple[str, ...]]:
        """As :meth:`texts`, of rows of up to ``most_texts``; ``whole``: none of which may be empty."""
        for row in corpus.rows(part, self.dropped):
            if len(row.texts) > most_texts:
                allowed = "one" if most_texts == 1 else f"{most_texts} at most"
                raise RecipeError(f"{row.place}: has {len(row.texts)} texts; this model classifies {allowed}")
            if whole:
                refuse_empty(row)
            if known and row.label not in known:
                raise unseen_label(row, known)
            self.labels.append(str(row.label))
            self.places.append(position(row.source, row.line))
            self.digest.add((row.texts, row.label))
            yield row.texts

    def targets(self, labels: Sequence[str]) -> Any:
        number = {label: index for index, label in enumerate(labels)}
        return np.fromiter((number[label] for label in self.labels), np.int64, len(self.labels))


def ledger(
    part: str, corpus: LabelledCorpus, rows: Rows, labels: Sequence[str], reader: TextReader, read: ReadTexts
) -> LabelLedger:
    """The account of the rows of ``part``."""
    by_label = np.bincount(rows.targets(labels), minlength=len(labels)).tolist()
    return LabelLedger(
        part=part,
        split=corpus.describe_split(),
        rows=len(rows.labels),
        terms=read.terms,
        unknown=read.unknown,
        empty=read.empty,
        labels=dict(zip(labels, by_label, strict=True)),
        unit=reader.unit,
        cut=read.cut,
        repeated=rows.dropped[REPEATED],
        text=str(rows.digest),
    )


def labelled_batches(
    reader: TextReader, labels: Sequence[str], corpus: LabelledCorpus, part: Any, *, seed: int | None = None
) -> tuple[LabelBatches, LabelLedger]:
    """The rows of ``part``, permuted by ``seed`` or (None) for one pass, and their account.

    Raises DataError for a label not among ``labels``.
    """
    rows = Rows()
    given: Any = rows.rows(corpus, part, labels, most_texts=reader.most_texts, whole=reader.whole)
    if reader.most_texts == 1:
        given = (text for (text,) in given)
    read = reader.read(given, lambda row: rows.places[row])
    batches = reader.batches(read, rows.targets(labels), places=rows.places, seed=seed)
    return batches, ledger(part, corpus, rows, labels, reader, read)


def positive_of(sources: Sources, labels: Sequence[str]) -> str | None:
    """The label that F1 is of: GLUE's of such a set, of other pairs of labels the second (None)."""
    named = [sources] if isinstance(sources, str | os.PathLike) else sources
    found = {glue_task(str(source)) for source in named}
    task = found.pop() if len(found) == 1 else None
    return task.positive if task is not None and task.positive in labels else None
