"""Readers of texts: bags of words by a vocabulary, sequences of tokens by a tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, cast

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

Place = Callable[[int], str]
Targets = NDArray[np.int64] | NDArray[np.float32]


class ReadTexts(NamedTuple):
    """N texts as rows, and a report on their terms (words or tokens).

    Attributes:
        rows: the argument of :meth:`TextReader.batches`.
        terms: how many terms there are; ``unknown`` of them are not in the vocabulary.
        empty: how many rows have no known term.
        cut: how many rows were truncated; ``cut_rows`` are their numbers, where they are known.
    """

    rows: Any
    terms: int
    unknown: int
    empty: int
    cut: int = 0
    cut_rows: tuple[int, ...] = ()


class TextReader:
    """Turns texts into the inputs of a classifier.

    Attributes:
        unit: the name of its terms: "words" or "tokens".
        most_texts: how many texts a row has at most; if 1, rows are str, else tuples of str.
        whole: whether an empty text is an error.
    """

    unit: ClassVar[str] = "tokens"
    most_texts: ClassVar[int] = 1
    whole: ClassVar[bool] = False

    @property
    def vocabulary(self) -> Any:
        """The tokenizer or vectorizer, which is saved beside the model."""
        raise NotImplementedError

    @property
    def signature(self) -> dict[str, object]:
        """The settings that decide the inputs, for the signature of a score."""
        raise NotImplementedError

    def read(self, texts: Iterable[Any], place: Place | None = None) -> ReadTexts:
        """Return ``texts`` as rows; ``place`` names a row by its number in an error."""
        raise NotImplementedError

    def batches(
        self, read: ReadTexts, targets: Targets, *, places: Sequence[str] = (), seed: int | None = None
    ) -> LabelBatches:
        """Return batches of the rows: permuted by ``seed``, or (None) for one pass over them."""
        raise NotImplementedError


def order_of(seed: int | None, alike: int = 1) -> dict[str, Any]:
    """Return the settings of batches permuted by ``seed``, or (None) sorted by length for one pass."""
    if seed is None:
        return {"order": "length"}
    return {"order": "permutation", "seed": seed, "alike": alike}


@dataclass(frozen=True)
class BagReader(TextReader):
    """Reads texts as :class:`~wordloom.data.Bags`."""

    unit = "words"

    vectorizer: BagVectorizer

    @property
    def vocabulary(self) -> BagVectorizer:
        return self.vectorizer

    @property
    def signature(self) -> dict[str, object]:
        return {"vocab": self.vectorizer.fingerprint[:8]}

    def read(self, texts: Iterable[str], place: Place | None = None) -> ReadTexts:
        return self.counted(self.vectorizer.count(texts))

    def counted(self, counted: Counted) -> ReadTexts:
        """Return texts that have been counted as rows."""
        empty = int((np.diff(counted.rows.indptr) == 0).sum())
        return ReadTexts(counted.rows, counted.terms, counted.unknown, empty)

    def batches(
        self, read: ReadTexts, targets: Targets, *, places: Sequence[str] = (), seed: int | None = None
    ) -> LabelBatches:
        order: Literal["sequential", "permutation"] = "sequential" if seed is None else "permutation"
        return BagBatches(read.rows, targets, places=places, seed=seed or 0, order=order)


@dataclass(frozen=True)
class TokenReader(TextReader):
    """Reads texts by a tokenizer.

    Attributes:
        longest: how many tokens a row has at most, with special tokens; None: as many as the model reads.
        too_long: what happens to a longer row: an error, or truncation ("cut").
        alike: how many successive samples have similar lengths.
    """

    tokenizer: Tokenizer
    longest: int | None = None
    too_long: Literal["error", "cut"] = "error"
    alike: int = 1

    @property
    def vocabulary(self) -> Tokenizer:
        return self.tokenizer


class SequenceReader(TokenReader):
    """Reads texts as :class:`~wordloom.data.Sequences`."""

    @property
    def signature(self) -> dict[str, object]:
        texts = "whole" if self.longest is None else f"to-{self.longest}"
        return {"tok": tokenizer_name(self.tokenizer), "texts": texts}

    def read(self, texts: Iterable[str], place: Place | None = None) -> ReadTexts:
        rows = token_rows(self.tokenizer, texts, longest=self.longest, too_long=self.too_long, place=place)
        return ReadTexts(rows, len(rows.ids), rows.unknown, int((rows.lengths == 0).sum()), rows.cut)

    def batches(
        self, read: ReadTexts, targets: Targets, *, places: Sequence[str] = (), seed: int | None = None
    ) -> LabelBatches:
        pad_id, order = self.tokenizer.pad_id or 0, order_of(seed, self.alike)
        return SequenceLabelBatches(read.rows, targets, pad_id=pad_id, places=places, **order)


@dataclass(frozen=True)
class MarkedReader(TokenReader):
    """Reads texts or pairs, between special tokens, as :class:`~wordloom.data.batches.framed.MarkedInputs`.

    Pairs are read in both orders if the model's ``config`` says so.
    """

    most_texts = 2
    whole = True

    config: TaskConfig = field(kw_only=True)

    @property
    def frame(self) -> Frame:
        """The special tokens around the texts."""
        if not self.config.encodes:
            return Frame.of_causal(self.tokenizer)
        return Frame.of_encoder(self.tokenizer, doubled=isinstance(self.config.body, RobertaConfig))

    @property
    def signature(self) -> dict[str, object]:
        orders = {"orders": "both"} if self.config.both_orders else {}
        return {"tok": tokenizer_name(self.tokenizer), "texts": f"to-{self.most_tokens}", **orders}

    @property
    def segments(self) -> bool:
        """True if the model has segment ids, which distinguish the texts of a pair."""
        return getattr(self.config.body, "type_vocab_size", 1) > 1

    @property
    def most_tokens(self) -> int:
        """How many tokens a row has at most."""
        longest = self.longest or context_limit(self.config)
        assert longest is not None
        return longest

    @property
    def length_advice(self) -> dict[str, str]:
        """The advice in the error for a row that is too long, if the model alone sets the limit."""
        return {} if self.longest is not None else {"allowed": OF_MODEL}

    def read(self, texts: Iterable[str | tuple[str, ...]], place: Place | None = None) -> ReadTexts:
        pairs: Iterable[tuple[str, ...]] = ((text,) if isinstance(text, str) else text for text in texts)
        if self.config.both_orders:
            pairs = list(pairs)
            for number, pair in enumerate(pairs):
                if len(pair) != 2:
                    where = f"row {number}" if place is None else place(number)
                    texts_there = f"{len(pair)} text{'s' * (len(pair) != 1)}"
                    raise DataError(
                        f"{where}: has {texts_there}, and this model reads two, in both orders "
                        "(data.both_orders)"
                    )
        rows = self._rows(pairs, place)
        both = (rows, self._rows([pair[::-1] for pair in pairs], place)) if self.config.both_orders else rows
        return ReadTexts(both, len(rows.ids), rows.unknown, 0, rows.cut, rows.cut_rows)

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

    def batches(
        self, read: ReadTexts, targets: Targets, *, places: Sequence[str] = (), seed: int | None = None
    ) -> LabelBatches:
        settings: dict[str, Any] = {"segments": self.segments, "pad_id": self.frame.pad, "places": places}
        settings |= order_of(seed, self.alike)
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


def text_reader(folder: Path, config: Any) -> TextReader:
    """Return the reader of texts for the classifier of ``config`` in ``folder``.

    A folder without a vocabulary gives a reader that raises CheckpointError when it is used.  Raises
    CheckpointError if the vocabulary does not fit the model.
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
    return (
        MarkedReader(tokenizer, config=config)
        if isinstance(config, TaskConfig)
        else SequenceReader(tokenizer)
    )
