"""Rows of texts with a label or a score, as a reader's batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wordloom.data.rows.labelled import REPEATED, CorpusPart, LabelledCorpus, refuse_empty, unseen_label
from wordloom.data.rows.ledger import RowDigest, RowLedger
from wordloom.errors import RecipeError, position
from wordloom.run.models.heads.head import Place, ReadRows
from wordloom.run.models.text_readers import ReadTexts, TextReader


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
    reader: TextReader,
    rows: LabelledCorpus | CorpusPart,
    labels: Sequence[str],
    *,
    seed: int | None = None,
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
