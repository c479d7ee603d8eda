"""Labelled rows as a corpus for a causal model: each text is a document after the special token of its label.

A model trained on this corpus writes a text of a given label after that label's token, which is a control
code of CTRL (Keskar et al. 2019, arXiv:1909.05858).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from wordloom.data.files.source import Document, Source
from wordloom.data.files.stream import Meter
from wordloom.data.rows.labelled import FILE, LabelledCorpus, LabelledRow, sorted_labels, tables, unseen_label
from wordloom.data.text.corpus import EMPTY, Part, Tally
from wordloom.data.text.documents import Piece
from wordloom.errors import DataError

_ROLES = ("bos", "eos", "pad", "unk", "mask", "cls", "sep")


def label_token(label: str) -> str:
    """Return the token before the texts of ``label``, such as ``<Italian>``."""
    return f"<{label}>"


class LabelledDocuments:
    """A corpus for :func:`wordloom.data.prepare`, as :class:`~wordloom.data.Corpus` is, from ``rows``."""

    skipped: tuple[str, ...] = ()
    note = "each document follows the special token of its label"

    def __init__(self, rows: LabelledCorpus) -> None:
        self.rows = rows
        self.encoding_errors, self.split = rows.encoding_errors, rows.split
        self.validation_fraction = rows.validation_fraction

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The labels of the training rows, sorted."""
        return sorted_labels(str(row.label) for row in self.rows.rows("train"))

    @property
    def tokens(self) -> tuple[str, ...]:
        """The special tokens of :attr:`labels`."""
        return tuple(map(label_token, self.labels))

    def check(self, tokenizer: Any) -> None:
        """Raise DataError unless ``tokenizer`` has a special token for each label, with no other role."""
        ids = {getattr(tokenizer, f"{role}_id") for role in _ROLES} - {None}
        roles = {tokenizer.id_to_token(index) for index in ids}
        for label, token in zip(self.labels, self.tokens, strict=True):
            if tokenizer.token_to_id(token) not in tokenizer.special_ids:
                raise DataError(
                    f"the tokenizer has no special token '{token}' for the label '{label}'; train one with "
                    "tokenizer.kind, or add it to its special tokens"
                )
            if token in roles:
                raise DataError(
                    f"the label '{label}' would precede texts as '{token}', which has another meaning; "
                    "call it otherwise"
                )

    def documents(self, part: Part = "all") -> Iterator[Document]:
        """Yield the documents of ``part``, each after the token of its label."""
        for piece in self.pieces(part):
            yield Document(piece.prefix + str(piece.text), piece.source, piece.index)

    def pieces(
        self,
        part: Part,
        *,
        tally: Tally | None = None,
        meter: Meter | None = None,
        workers: int | None = None,
    ) -> Iterator[Piece]:
        """Yield the texts of ``part``, with the token of the label as the prefix of each.

        The arguments are those of :meth:`wordloom.data.Corpus.pieces`.
        """
        tally = Tally() if tally is None else tally
        for row in self._rows(part, tally.dropped):
            if row.label not in self.labels:
                raise unseen_label(row, self.labels)
            if row.texts[0]:
                yield Piece(row.texts[0], row.source, row.line - 1, prefix=label_token(row.label))
            else:
                tally.dropped[EMPTY] += 1

    def _rows(self, part: Part, dropped: Counter[str] | None = None) -> Iterator[LabelledRow]:
        if part == "all":
            yield from self._rows("train", dropped)
            yield from self._rows("validation", dropped)
            return
        for row in self.rows.rows(part, dropped):
            if len(row.texts) != 1:
                raise DataError(f"{row.place}: has {len(row.texts)} texts; data.label_prefix takes one a row")
            yield row

    def files(self, part: Part = "all") -> list[Source]:
        """The files that hold ``part``."""
        lists = self.rows.label == FILE
        train = tables(self.rows.sources, lists=lists)
        if self.rows.split != "files":
            return train
        validation = tables(self.rows.validation_sources, lists=lists)
        return {"train": train, "validation": validation}.get(part, train + validation)

    def part_fingerprint(self, part: Part) -> str:
        """sha256 over the labels and texts of ``part``, in order."""
        digest = hashlib.sha256(b"texts after labels")
        for row in self._rows(part):
            for field in (str(row.label), row.texts[0]):
                digest.update(len(field.encode()).to_bytes(8, "little") + field.encode())
        return digest.hexdigest()

    def describe_split(self) -> str:
        """The split in words, for the ledger."""
        return self.rows.describe_split()
