"""The held-out text of a comparison, in the units that its intervals are taken over."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wordloom.data import Document
from wordloom.errors import EvaluationError
from wordloom.evaluate.baselines import KneserNey, lzma_bits_per_byte
from wordloom.evaluate.perplexity import BLOCK_TOKENS, perplexity
from wordloom.evaluate.reading import Reader, ReadText, Recovered
from wordloom.evaluate.score import MIN_UNITS, RatioStatistics
from wordloom.text import Specials, Tokenizer

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Documents, which every entry reads independently of one another.

    A unit is a document, or of fewer than MIN_UNITS documents a block of 256 tokens.  The end of a document
    is predicted too if the tokenizer has a token for it; its bits belong to the last unit of the document.

    Attributes:
        documents: the documents that are not empty.
        specials: how their special tokens are read.
        unit: "documents" or "blocks".
        sizes: the bytes of each unit.
        units: the number of units of each document.
        ends_scored: whether the ends of documents are predicted.
    """

    documents: Sequence[Document]
    tokenizer: Tokenizer
    specials: Specials
    unit: str = field(init=False)
    sizes: Floats = field(init=False)
    units: list[int] = field(init=False)
    ends_scored: bool = field(init=False)

    def __post_init__(self) -> None:
        reader = Reader(self.tokenizer, start="auto", end="auto", specials=self.specials)
        texts = list(reader.texts(self.documents))
        if not texts:
            raise EvaluationError("the held-out text is empty; name another (data.validation=FILE)")
        for document, text in zip(filter(lambda document: document.text, self.documents), texts, strict=True):
            if text.token_bytes is None or text.recovered < Recovered.TEXT:
                raise EvaluationError(
                    f"{document.source}, document {document.index + 1}: the tokenizer loses a part of this "
                    "held-out text, so bits per byte are undefined; take --tokenizer byte or bpe"
                )
        set_ = object.__setattr__
        set_(self, "unit", "documents" if len(texts) >= MIN_UNITS else "blocks")
        set_(self, "ends_scored", bool(reader.after))
        sizes = [self._sizes_of(text) for text in texts]
        set_(self, "units", list(map(len, sizes)))
        set_(self, "sizes", np.concatenate(sizes))

    @property
    def n_bytes(self) -> int:
        """The bytes of all documents."""
        return int(self.sizes.sum())

    @property
    def has_intervals(self) -> bool:
        """Whether there are enough units for intervals."""
        return len(self.sizes) >= MIN_UNITS

    def counted(self) -> str:
        """Return the number of units in words, such as ``70 documents``."""
        return f"{len(self.sizes):,} {self.unit.removesuffix('s') if len(self.sizes) == 1 else self.unit}"

    def _sizes_of(self, text: ReadText) -> Floats:
        """Return the bytes of each unit of a document."""
        assert text.token_bytes is not None
        if self.unit == "documents":
            return np.array([float(text.bytes)])
        # Without a start token, the first token belongs to the first block.  A tokenizer that puts a space
        # before each text counts a byte too many.
        sizes = text.token_bytes.astype(float)
        sizes[0] += text.bytes - sizes.sum()
        sizes, first = sizes[1:], sizes[0]
        if not len(sizes):
            return np.array([first])
        units = np.add.reduceat(sizes, np.arange(0, len(sizes), BLOCK_TOKENS))
        units[0] += first
        return units

    def model_bits(self, model: Any, progress: Any = None) -> Floats:
        """Return the bits of a causal model for each unit."""
        found: list[Floats] = []
        uniform = math.log(model.config.vocab_size)

        def each(text: ReadText, nats: Floats) -> None:
            units = nats.sum(keepdims=True)
            if self.unit == "blocks" and len(nats):
                units = np.add.reduceat(nats, np.arange(0, len(nats), BLOCK_TOKENS))
            if not text.has_start:  # the first token is guessed
                units[0] += uniform
            found.append(units / math.log(2))

        perplexity(
            model, self.tokenizer, self.documents, specials=self.specials, progress=progress, each=each
        )
        return np.concatenate(found)

    def ngram_bits(self, ngram: KneserNey) -> Floats:
        """Return the bits of an n-gram model of bytes for each unit.

        It reads the documents as one stream, with one zero byte after each.
        """
        bits = ngram.bits(byte_stream(self.documents))
        at, found = 0, list[float]()
        for units in self.units:
            for size in self.sizes[len(found) : len(found) + units]:
                found.append(float(bits[at : at + int(size)].sum()))
                at += int(size)
            if self.ends_scored:
                found[-1] += float(bits[at])
            at += 1
        return np.array(found)

    def lzma_bits_per_byte(self, train: bytes) -> float:
        """Return the bits per byte of lzma, which has read the training text."""
        stream = byte_stream(self.documents)
        return lzma_bits_per_byte(train, stream) * len(stream) / self.n_bytes

    def statistics(self, bits: Floats) -> RatioStatistics:
        """Return the statistics of ``bits`` per byte, over units."""
        return RatioStatistics.of(bits, self.sizes)


def _bytes(document: Document) -> bytes:
    return document.text if isinstance(document.text, bytes) else document.text.encode()


def byte_stream(documents: Iterable[Document]) -> bytes:
    """Return the bytes of documents, with one zero byte after each."""
    return b"".join(_bytes(document) + b"\0" for document in documents)
