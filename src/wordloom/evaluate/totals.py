"""Sums over documents, and the perplexity and bits per byte computed from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from wordloom.errors import NonFiniteError
from wordloom.evaluate.reading import ReadText, Recovered
from wordloom.evaluate.score import (
    MIN_UNITS,
    Floats,
    RatioStatistics,
    Score,
    Scores,
    perplexity_interval,
    perplexity_of,
    signature,
)

__all__ = ["BLOCK_TOKENS", "Totals"]

BLOCK_TOKENS = 256

Interval = tuple[float, float] | None


class Totals:
    """Sums over documents; :meth:`scores` computes the scores."""

    def __init__(self, *, vocab_size: int) -> None:
        self.uniform = math.log(vocab_size)  # nats of a token that nothing predicts
        self.documents = self.bytes = self.words = self.lines = 0
        self.tokens = self.unpredicted = self.unknown = self.lost = 0
        self.recovered = Recovered.TEXT
        self.nats = 0.0  # of the whole text, unpredicted tokens included
        zero = RatioStatistics()
        # nats over tokens and over bytes, with documents and with blocks of tokens as units
        self.loss, self.rate, self.block_loss, self.block_rate = zero, zero, zero, zero
        # nats over words, over words and line ends, and over their bytes, with documents as units
        self.word, self.word_or_line, self.word_rate = zero, zero, zero

    def add(self, text: ReadText, nats: Floats) -> None:
        """Count one document: ``nats`` [n] of all its tokens but the first.  Raises NonFiniteError."""
        if not np.isfinite(nats).all():
            at = int(np.argmin(np.isfinite(nats)))
            raise NonFiniteError(
                f"document {self.documents + 1}, token {at + 1}: the model gives no finite probability; "
                "its weights are damaged, or its precision is too low"
            )
        unpredicted = int(not text.has_start and len(text.sequence) > 0)
        total = float(nats.sum()) + unpredicted * self.uniform
        self.documents += 1
        self.bytes += text.bytes
        self.words += text.words
        self.lines += text.lines
        self.tokens += len(nats)
        self.unpredicted += unpredicted
        self.unknown += text.unknown
        self.lost += text.recovered < Recovered.TEXT
        self.recovered = min(self.recovered, text.recovered)
        self.nats += total
        self.loss += _one(float(nats.sum()), len(nats))
        self.rate += _one(total, text.bytes)
        self.word += _one(total, text.words)
        self.word_or_line += _one(total, text.words + text.lines)
        self.word_rate += _one(total, text.word_bytes)
        if len(nats):
            starts = np.arange(0, len(nats), BLOCK_TOKENS)
            block_nats = np.add.reduceat(nats, starts)
            self.block_loss += RatioStatistics.of(block_nats, np.diff(starts, append=len(nats)).astype(float))
            if text.token_bytes is not None:
                sizes = np.add.reduceat(text.token_bytes[1:].astype(float), starts)
                if unpredicted:
                    sizes[0] += text.token_bytes[0]
                    block_nats[0] += self.uniform
                self.block_rate += RatioStatistics.of(block_nats, sizes)

    def scores(self, settings: dict[str, object], *, per_word: bool) -> Scores:
        """The scores, signed with ``settings`` and what the intervals are over."""
        by_document = self.documents >= MIN_UNITS
        enough = by_document or self.block_loss.units >= MIN_UNITS
        units = f"{self.documents}-documents" if by_document else f"{self.block_loss.units}-blocks"
        settings = {**settings, "ci": units if enough else "no"}
        loss = self.loss.ratio
        interval = (self.loss if by_document else self.block_loss).interval()
        found = [
            Score("loss", loss, interval, signature("loss", **settings)),
            Score(
                "perplexity",
                perplexity_of(loss),
                perplexity_interval(interval),
                signature("perplexity", **settings),
            ),
            self._bits_per_byte(settings, (self.rate if by_document else self.block_rate).interval()),
        ]
        if per_word:
            found.append(self._word_perplexity(settings))
            found.append(self._word_bits_per_byte(settings))
        counts = {
            "documents": self.documents,
            "bytes": self.bytes,
            "words": self.words,
            "lines": self.lines,
            "tokens": self.tokens,
            "tokens_not_predicted": self.unpredicted,
            "unknown_tokens": self.unknown,
            "nats": self.nats,
        }
        return Scores(tuple(found), counts, tuple(self._notes()))

    def _bits_per_byte(self, settings: dict[str, object], interval: Interval) -> Score:
        name, signed = "bits_per_byte", signature("bits_per_byte", **settings)
        if self.recovered < Recovered.TEXT or self.bytes == 0:
            return Score(name, None, None, signed, self._why_undefined("bytes"))
        bits = _mapped(lambda nats: nats / math.log(2), interval)
        return Score(name, self.nats / math.log(2) / self.bytes, bits, signed)

    def _word_perplexity(self, settings: dict[str, object]) -> Score:
        name, with_lines = "word_perplexity", self.recovered >= Recovered.LINES
        statistics = self.word_or_line if with_lines else self.word
        settings = {**settings, "per": "words+lines" if with_lines else "words"}
        if self.documents < MIN_UNITS:
            settings["ci"] = "no"  # a block of tokens has no number of words
        signed = signature(name, **settings)
        if self.recovered < Recovered.WORDS or statistics.y == 0:
            return Score(name, None, None, signed, self._why_undefined("words"))
        return Score(
            name, perplexity_of(statistics.ratio), perplexity_interval(statistics.interval()), signed
        )

    def _word_bits_per_byte(self, settings: dict[str, object]) -> Score:
        name, rate = "word_bits_per_byte", self.word_rate
        if self.documents < MIN_UNITS:
            settings = {**settings, "ci": "no"}
        signed = signature(name, **settings)
        if self.recovered < Recovered.WORDS or rate.y == 0:
            return Score(name, None, None, signed, self._why_undefined("words"))
        bits = _mapped(lambda nats: nats / math.log(2), rate.interval())
        return Score(name, rate.ratio / math.log(2), bits, signed)

    def _why_undefined(self, per: str) -> str:
        if not self.lost:
            return f"the text has no {per}"
        unknown = f" ({self.unknown:,} tokens are unknown)" if self.unknown else ""
        return f"{self.lost:,} of {self.documents:,} documents cannot be had back from their tokens{unknown}"

    def _notes(self) -> Iterator[str]:
        if self.unknown:
            yield (
                f"{self.unknown:,} tokens ({self.unknown / self.tokens:.2%}) are unknown, and guessing that "
                "is right there: compare loss and perplexity with the same tokenizer only"
            )
        if self.unpredicted:
            yield (
                f"{self.unpredicted:,} first tokens have nothing before them: not in loss and perplexity, "
                f"{self.uniform / math.log(2):.2f} bits each in bits per byte"
            )


def _one(x: float, y: float) -> RatioStatistics:
    return RatioStatistics(1, x, y, x * x, x * y, y * y)


def _mapped(function: Callable[[float], float], interval: Interval) -> Interval:
    return None if interval is None else (function(interval[0]), function(interval[1]))
