"""Sums over documents, and the perplexity and bits per byte computed from them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from wordloom.errors import NonFiniteError
from wordloom.evaluate.reading import ReadText, Recovered
from wordloom.evaluate.score import (
    MIN_UNITS,
    Floats,
    RatioStatistics,
    Score,
    Scores,
    loss_and_perplexity,
    perplexity_score,
    signature,
)

__all__ = ["BLOCK_TOKENS", "Totals"]

BLOCK_TOKENS = 256

Interval = tuple[float, float] | None


class Totals:
    """Sums over documents, from which :meth:`scores` computes the scores."""

    def __init__(self, *, vocab_size: int) -> None:
        self.uniform = math.log(vocab_size)  # nats of a token without a prediction
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
        self.loss += RatioStatistics.of_one(float(nats.sum()), len(nats))
        self.rate += RatioStatistics.of_one(total, text.bytes)
        self.word += RatioStatistics.of_one(total, text.words)
        self.word_or_line += RatioStatistics.of_one(total, text.words + text.lines)
        self.word_rate += RatioStatistics.of_one(total, text.word_bytes)
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
        """Return the scores; their signatures hold ``settings`` and the unit of the intervals."""
        by_document = self.documents >= MIN_UNITS
        enough = by_document or self.block_loss.units >= MIN_UNITS
        units = f"{self.documents}-documents" if by_document else f"{self.block_loss.units}-blocks"
        settings = {**settings, "ci": units if enough else "no"}
        interval = (self.loss if by_document else self.block_loss).interval()
        scores = [
            *loss_and_perplexity(self.loss.ratio, interval, settings),
            self._bits_per_byte(settings, (self.rate if by_document else self.block_rate).interval()),
        ]
        if per_word:
            scores += [self._word_perplexity(settings), self._word_bits_per_byte(settings)]
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
        return Scores(tuple(scores), counts, tuple(self._notes()))

    def _bits_per_byte(self, settings: dict[str, object], interval: Interval) -> Score:
        name, signed = "bits_per_byte", signature("bits_per_byte", **settings)
        if self.recovered < Recovered.TEXT or self.bytes == 0:
            return Score(name, None, None, signed, self._why_undefined("bytes"))
        return Score(name, self.nats / math.log(2) / self.bytes, _bits(interval), signed)

    def _word_perplexity(self, settings: dict[str, object]) -> Score:
        name, with_lines = "word_perplexity", self.recovered >= Recovered.LINES
        statistics = self.word_or_line if with_lines else self.word
        settings = {**settings, "per": "words+lines" if with_lines else "words"}
        if self.documents < MIN_UNITS:
            settings["ci"] = "no"  # the words of a block of tokens are not counted
        signed = signature(name, **settings)
        if self.recovered < Recovered.WORDS or statistics.y == 0:
            return Score(name, None, None, signed, self._why_undefined("words"))
        return perplexity_score(name, statistics.ratio, statistics.interval(), signed)

    def _word_bits_per_byte(self, settings: dict[str, object]) -> Score:
        name, rate = "word_bits_per_byte", self.word_rate
        if self.documents < MIN_UNITS:
            settings = {**settings, "ci": "no"}
        signed = signature(name, **settings)
        if self.recovered < Recovered.WORDS or rate.y == 0:
            return Score(name, None, None, signed, self._why_undefined("words"))
        return Score(name, rate.ratio / math.log(2), _bits(rate.interval()), signed)

    def _why_undefined(self, per: str) -> str:
        if not self.lost:
            return f"the text has no {per}"
        unknown = f" ({self.unknown:,} tokens are unknown)" if self.unknown else ""
        return f"{self.lost:,} of {self.documents:,} documents do not decode to their text{unknown}"

    def _notes(self) -> Iterator[str]:
        if self.unknown:
            yield (
                f"{self.unknown:,} tokens ({self.unknown / self.tokens:.2%}) are unknown, and the model is "
                "right if it predicts the unknown token; compare loss and perplexity with the same tokenizer "
                "only"
            )
        if self.unpredicted:
            yield (
                f"{self.unpredicted:,} first tokens have nothing before them; loss and perplexity leave them "
                f"out, and bits per byte count {self.uniform / math.log(2):.2f} bits for each"
            )


def _bits(nats: Interval) -> Interval:
    return None if nats is None else (nats[0] / math.log(2), nats[1] / math.log(2))
