"""From texts to what a classifier takes in: bags of words by a vocabulary, sequences by a tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from wordloom.data.bags.vectorizer import VOCABULARY, BagVectorizer, Counted
from wordloom.data.batches.framed import (
    OF_MODEL,
    BothOrders,
    Frame,
    MarkedLabelBatches,
    MarkedRows,
    marked_rows,
)
from wordloom.data.batches.labelled import BagBatches, LabelBatches
from wordloom.data.batches.sequences import SequenceLabelBatches, token_rows
from wordloom.errors import CheckpointError, DataError
from wordloom.evaluate.reading import tokenizer_name
from wordloom.models import RobertaConfig, TaskConfig, context_limit
from wordloom.run.models.tokenizers import folder_tokenizer
from wordloom.text import Tokenizer

__all__ = ["BagReader", "MarkedReader", "ReadTexts", "SequenceReader", "TextReader", "cutting", "text_reader"]

Place = Callable[[int], str]
Targets = NDArray[np.int64] | NDArray[np.float32]


class ReadTexts(NamedTuple):
    """N texts as rows, and what became of their terms (words or tokens).

    Attributes:
        rows: what :meth:`TextReader.batches` takes.
        terms: in all; ``unknown``: those that stand for what the vocabulary lacks.
        empty: rows without a known term; ``cut``: rows of which the end was left out, as asked.
        cut_rows: the numbers of these, where they are known.
    """

    rows: Any
    terms: int
    unknown: int
    empty: int
    cut: int = 0
    cut_rows: tuple[int, ...] = ()


class TextReader(Protocol):
    """What makes a classifier's inputs of texts.

    Attributes:
        most_texts: of a row; where that is 1, rows are str, else tuples of so many or fewer.
        whole: whether an empty text is an error.
        unit: what its terms are called.
        vocabulary: what is saved beside the model.
        signature: the settings that decide the inputs, for that of a score.
    """

    @property
    def most_texts(self) -> int: ...
    @property
    def whole(self) -> bool: ...
    @property
    def unit(self) -> str: ...
    @property
    def vocabulary(self) -> Any: ...
    @property
    def signature(self) -> dict[str, object]: ...

    def read(self, texts: Iterable[Any], place: Place | None = None) -> ReadTexts:
        """``texts`` as rows; ``place`` names a row by its number, in an error."""
        ...

    def batches(
        self, read: ReadTexts, targets: Targets, *, places: Sequence[str] = (), seed: int | None = None
    ) -> LabelBatches:
        """Batches of the rows: permuted by ``seed``, or with None, for one pass over all of them."""
        ...


@dataclass(frozen=True)
class BagReader:
    """Texts to :class:`~wordloom.data.Bags`."""

    vectorizer: BagVectorizer
    unit: str = field(default="words", init=False)
    most_texts: int = field(default=1, init=False)
    whole: bool = field(default=False, init=False)

    @property
    def vocabulary(self) -> BagVectorizer:
        return self.vectorizer

    @property
    def signature(self) -> dict[str, object]:
        return {"vocab": self.vectorizer.fingerprint[:8]}

    def read(self, texts: Iterable[str], place: Place | None = None) -> ReadTexts:
        return self.counted(self.vectorizer.count(texts))

    def counted(self, counted: Counted) -> ReadTexts:
        """Texts that were counted before."""
        empty = int((np.diff(counted.rows.indptr) == 0).sum())
        return ReadTexts(counted.rows, counted.terms, counted.unknown, empty)

    def batches(
        self, read: ReadTexts, targets: Targets, *, places: Sequence[str] = (), seed: int | None = None
    ) -> LabelBatches:
        order: Literal["sequential", "permutation"] = "sequential" if seed is None else "permutation"
        return BagBatches(read.rows, targets, places=places, seed=seed or 0, order=order)


@dataclass(frozen=True)
class SequenceReader:
    """Texts to :class:`~wordloom.data.Sequences`.

    Attributes:
        longest: tokens of a text at most, None: any number; ``too_long``: what a longer one is.
        alike: how many samples one after another are of like length.
    """

    tokenizer: Tokenizer
    longest: int | None = None
    too_long: Literal["error", "cut"] = "error"
    alike: int = 1
    unit: str = field(default="tokens", init=False)
    most_texts: int = field(default=1, init=False)
    whole: bool = field(default=False, init=False)

    @property
    def vocabulary(self) -> Tokenizer:
        return self.tokenizer

    @property
    def signature(self) -> dict[str, object]:
        read = "whole" if self.longest is None else f"to-{self.longest}"
        return {"tok": tokenizer_name(self.tokenizer), "texts": read}

    def read(self, texts: Iterable[str], place: Place | None = None) -> ReadTexts:
        rows = token_rows(self.tokenizer, texts, longest=self.longest, too_long=self.too_long, place=place)
        return ReadTexts(rows, len(rows.ids), rows.unknown, int((rows.lengths == 0).sum()), rows.cut)

    def batches(
        self, read: ReadTexts, targets: Targets, *, places: Sequence[str] = (), seed: int | None = None
    ) -> LabelBatches:
        return SequenceLabelBatches(
            read.rows,
            targets,
            pad_id=self.tokenizer.pad_id or 0,
            places=places,
            seed=seed or 0,
            order="length" if seed is None else "permutation",
            alike=1 if seed is None else self.alike,
        )


@dataclass(frozen=True)
class MarkedReader:
    """Texts, or pairs, to :class:`~wordloom.data.batches.framed.MarkedInputs` of the model of
    ``config``; pairs in both orders where it says so.

    Attributes:
        longest: tokens of a row at most, marks included, None: what the model reads; ``too_long``: what a
            longer one is.
        alike: how many samples one after another are of like length.
    """

    tokenizer: Tokenizer
    config: TaskConfig
    longest: int | None = None
    too_long: Literal["error", "cut"] = "error"
    alike: int = 1
    unit: str = field(default="tokens", init=False)
    most_texts: int = field(default=2, init=False)
    whole: bool = field(default=True, init=False)

    @property
    def frame(self) -> Frame:
        """What stands around the texts."""
        if not self.config.encodes:
            return Frame.of_causal(self.tokenizer)
        return Frame.of_encoder(self.tokenizer, doubled=isinstance(self.config.body, RobertaConfig))

    @property
    def vocabulary(self) -> Tokenizer:
        return self.tokenizer

    @property
    def signature(self) -> dict[str, object]:
        orders = {"orders": "both"} if self.config.both_orders else {}
        return {"tok": tokenizer_name(self.tokenizer), "texts": f"to-{self.most_tokens}", **orders}

    @property
    def segments(self) -> bool:
        """Whether the model tells a second text apart by its segment."""
        return getattr(self.config.body, "type_vocab_size", 1) > 1

    @property
    def most_tokens(self) -> int:
        """What a row has at most."""
        longest = self.longest or context_limit(self.config)
        assert longest is not None
        return longest

    def read(self, texts: Iterable[str | tuple[str, ...]], place: Place | None = None) -> ReadTexts:
        given: Iterable[tuple[str, ...]] = ((text,) if isinstance(text, str) else text for text in texts)
        if not self.config.both_orders:
            rows = self._rows(given, place)
            return ReadTexts(rows, len(rows.ids), rows.unknown, 0, rows.cut, rows.cut_rows)
        pairs = list(given)
        for row, pair in enumerate(pairs):
            if len(pair) != 2:
                where = f"row {row}" if place is None else place(row)
                raise DataError(
                    f"{where}: has {len(pair)} text{'s' * (len(pair) != 1)}, and this model reads two, in "
                    "both orders (data.both_orders)"
                )
        rows = self._rows(pairs, place)
        turned = self._rows([(second, first) for first, second in pairs], place)
        return ReadTexts((rows, turned), len(rows.ids), rows.unknown, 0, rows.cut, rows.cut_rows)

    def _rows(self, texts: Iterable[tuple[str, ...]], place: Place | None) -> MarkedRows:
        return marked_rows(
            self.tokenizer,
            texts,
            self.frame,
            longest=self.most_tokens,
            too_long=self.too_long,
            place=place,
            **self.length_advice,
        )

    @property
    def length_advice(self) -> dict[str, str]:
        """The advice in the error for a row that is too long, if the model alone sets the limit."""
        return {} if self.longest is not None else {"allowed": OF_MODEL}

    def batches(
        self, read: ReadTexts, targets: Targets, *, places: Sequence[str] = (), seed: int | None = None
    ) -> LabelBatches:
        settings: dict[str, Any] = {
            "segments": self.segments,
            "pad_id": self.frame.pad,
            "places": places,
            "seed": seed or 0,
            "order": "length" if seed is None else "permutation",
            "alike": 1 if seed is None else self.alike,
        }
        if self.config.both_orders:
            rows, turned = read.rows
            return BothOrders(rows, targets, turned=turned, **settings)
        return MarkedLabelBatches(read.rows, targets, **settings)


class AbsentReader:
    """The :class:`TextReader` of a folder without a vocabulary: using it raises CheckpointError."""

    vocabulary = None

    def __init__(self, folder: Path, what: str, file: str) -> None:
        self._message = f"{folder} has no {what}, which text needs; put its {file} there"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copying and pickling look for these
            raise AttributeError(name)
        raise CheckpointError(self._message)


def cutting(reader: TextReader) -> TextReader:
    """``reader`` that cuts what is longer than it reads; one that reads texts whole is left as it is."""
    return replace(reader, too_long="cut") if isinstance(reader, MarkedReader) else reader


def text_reader(folder: Path, config: Any) -> TextReader:
    """What reads texts for the classifier of ``config`` in ``folder``.

    A folder without a vocabulary gives a reader that raises CheckpointError when it is used.  Raises
    CheckpointError where the vocabulary there is not the model's.
    """
    if hasattr(config, "max_ngram"):
        if not (folder / VOCABULARY).exists():
            return cast(TextReader, AbsentReader(folder, "vocabulary", VOCABULARY))
        vectorizer = BagVectorizer.from_pretrained(folder)
        if (len(vectorizer), vectorizer.max_ngram) != (config.vocab_size, config.max_ngram):
            raise CheckpointError(
                f"{folder}: the vocabulary has {len(vectorizer):,} terms of up to {vectorizer.max_ngram} "
                f"words, the model {config.vocab_size:,} of up to {config.max_ngram}; they do not belong "
                "together"
            )
        return BagReader(vectorizer)
    tokenizer = folder_tokenizer(folder, config.vocab_size)
    if tokenizer is None:
        return cast(TextReader, AbsentReader(folder, "tokenizer", "tokenizer.json"))
    return MarkedReader(tokenizer, config) if isinstance(config, TaskConfig) else SequenceReader(tokenizer)
