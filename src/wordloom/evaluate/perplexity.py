"""Loss, perplexity and bits per byte of a text, by strided windows.

The rules of scoring:

- Each document is read separately: start token, its tokens, end token.  With ``joined``, all documents are
  one text, in which an end token follows each document.  Every token is scored once, with at least
  ``window - stride`` tokens before it, except near the start of the document.
- ``start`` is the token before the first token.  By default it is the token with which the tokenizer begins
  prompts (LLaMA's BOS), else the end-of-text token, as between documents in training.  If the tokenizer has
  neither, the first token has no prediction.  Loss and perplexity then leave it out, and bits per byte count
  log2(vocabulary) bits for it.  ``label`` is the ``prefix`` of each document: a special token that is not
  scored and not part of the text.
- ``end``: the end-of-text token after the document is scored too, unless ``end="none"``.
- Bits per byte divide the bits of the text, from start to end, by the bytes of the raw text.  They are the
  length of a code for the text, and are comparable across tokenizers.  They are undefined if decoding the
  tokens does not restore the text (unknown tokens, lower-casing, lost white space), because the lost part
  would cost no bits.
- Intervals are 95 % normal intervals over documents.  With fewer than 20 documents, they are over blocks of
  256 tokens and do not include the variance between documents.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wordloom.errors import EvaluationError, NonFiniteError
from wordloom.evaluate.forward import dtype_name
from wordloom.evaluate.likelihood import BATCH_TOKENS, Stretch, likelihoods
from wordloom.evaluate.reading import (
    End,
    Reader,
    ReadText,
    Recovered,
    Start,
    check_vocabulary,
    tokenizer_name,
)
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
from wordloom.models import context_limit

if TYPE_CHECKING:
    from wordloom.data import Document
    from wordloom.data.text.documents import Piece
    from wordloom.text import Specials, Tokenizer

BLOCK_TOKENS = 256

Interval = tuple[float, float] | None
Progress = Callable[[float, int, float], None]
Each = Callable[[ReadText, Floats], None]


class Window(NamedTuple):
    """A window that reads inputs ``begin`` to ``end`` and scores the tokens after ``scored`` to ``end``."""

    begin: int
    end: int
    scored: int


def strided_windows(n: int, *, window: int, stride: int) -> Iterator[Window]:
    """Yield windows over ``n`` inputs, ``stride`` inputs apart, which score every next token once."""
    done = 0
    for begin in range(0, n, stride):
        end = min(begin + window, n)
        yield Window(begin, end, done)
        done = end
        if end == n:
            return


def perplexity(
    model: Any,
    tokenizer: Tokenizer,
    documents: Iterable[Document | Piece | str | bytes],
    *,
    window: int | None = None,
    stride: int | None = None,
    start: Start = "auto",
    end: End = "auto",
    per_word: bool = False,
    joined: bool = False,
    specials: Specials = "refuse",
    batch_size: int | None = None,
    progress: Progress | None = None,
    each: Each | None = None,
) -> Scores:
    """Return ``loss`` (nats per token), ``perplexity`` and ``bits_per_byte``; the module has the rules.

    Args:
        model: a causal model (:class:`wordloom.models.CausalLM`).
        documents: read one at a time; the ids of a document are in memory while it is scored.  Empty
            documents are skipped, as in :func:`wordloom.data.prepare`, and counted in a note.
        window: the number of tokens that the model reads at once.  None: its ``max_seq_len``; a recurrent
            model, which has no limit, reads each document from beginning to end.
        stride: the number of tokens between the starts of two windows.  None: half the window.  A stride
            equal to the window is fastest; a stride of 1 gives every token the longest context.
        per_word: also return ``word_perplexity`` and ``word_bits_per_byte``, as in results on the Penn
            Treebank and WikiText.  Words are separated by white space; if the tokens keep line ends, each
            line has an end-of-sentence word too.  The bytes are those of the words and one of white space
            after each.
        joined: each document has the documents before it as context, up to the window, as in results on the
            Penn Treebank, whose documents are lines.
        specials: how to read special tokens in the text; see :meth:`wordloom.text.Tokenizer.encode`.
        batch_size: windows per forward pass; None: about 8,192 tokens.
        progress: called after every window with the bytes, tokens and nats that it adds.
        each: called with every document and the nats of its tokens, all but the first of its sequence.

    Raises:
        EvaluationError: an impossible window or stride, a start or end token that does not exist (joined
            texts need both), a tokenizer of another model, or no text at all.
        TokenizerError: the tokenizer refuses a text; the message names the document.
        NonFiniteError: the log-probability of a token is not finite.
    """
    window, stride = _window(model, window, stride)
    reader = Reader(tokenizer, start=start, end=end, specials=specials)
    check_vocabulary(model, tokenizer)
    if batch_size is not None and batch_size < 1:
        raise EvaluationError(f"batch_size is a number of windows above 0, not {batch_size}")

    if joined and not (reader.before and reader.after):
        raise EvaluationError("joined texts need a start token and an end token; leave out joined")
    texts = reader.texts(documents)
    totals = Totals(vocab_size=model.config.vocab_size)
    rows = batch_size or max(1, BATCH_TOKENS // (window or 512))
    scored = likelihoods(model, _stretches(_passages(texts, joined), window, stride), batch_size=rows)
    for passage, group in groupby(scored, key=lambda item: item[0]):
        parts: list[Floats] = []
        for _, likelihood in group:
            parts.append(likelihood.nats)
            if progress is not None:
                share = len(likelihood.nats) / max(1, len(passage.sequence) - 1)
                progress(share * passage.bytes, len(likelihood.nats), float(likelihood.nats.sum()))
        for text, nats in passage.divided(np.concatenate(parts)):
            totals.add(text, nats)
            if each is not None:
                each(text, nats)
    if reader.empty and not totals.counts["tokens"]:
        raise EvaluationError("the text is empty; give a text of at least one byte")
    if not totals.counts["tokens"]:
        raise EvaluationError("there is no token to score; give a text of at least two tokens")
    settings: dict[str, object] = {
        "text": reader.digest(),
        "tok": tokenizer_name(tokenizer),
        "window": window or "whole",
        "stride": stride or "whole",
        "start": reader.start_name,
        "end": reader.end_name,
        **({"documents": "joined"} if joined else {}),
        **({} if specials == "refuse" else {"specials": specials}),
        "dtype": dtype_name(model),
    }
    scores = totals.scores(settings, per_word=per_word)
    return replace(scores, notes=(*scores.notes, *reader.notes()))


class _Passage:
    """Texts that are read as one: the start token, then each text with its end token."""

    def __init__(self, texts: list[ReadText]) -> None:
        self.texts = texts
        self.sequence = np.concatenate([texts[0].sequence[:1], *(text.sequence[1:] for text in texts)])
        self.bytes = sum(text.bytes for text in texts)

    def divided(self, nats: Floats) -> Iterator[tuple[ReadText, Floats]]:
        """Split ``nats``, of all tokens of the sequence except the first, into those of each text."""
        ends = np.cumsum([max(0, len(text.sequence) - 1) for text in self.texts])
        yield from zip(self.texts, np.split(nats, ends[:-1]), strict=True)


def _passages(texts: Iterator[ReadText], joined: bool) -> Iterator[_Passage]:
    if not joined:
        yield from (_Passage([text]) for text in texts)
    elif all_texts := list(texts):
        yield _Passage(all_texts)


def _stretches(
    passages: Iterable[_Passage], window: int | None, stride: int | None
) -> Iterator[tuple[_Passage, Stretch]]:
    """Yield the windows of each passage, with their targets."""
    for passage in passages:
        inputs, targets = passage.sequence[:-1], passage.sequence[1:]
        if len(inputs) == 0:  # a single token predicts nothing, but its document counts
            yield passage, Stretch(inputs, targets)
            continue
        for w in strided_windows(len(inputs), window=window or len(inputs), stride=stride or len(inputs)):
            yield passage, Stretch(inputs[w.begin : w.end], targets[w.scored : w.end])


def _window(model: Any, window: int | None, stride: int | None) -> tuple[int | None, int | None]:
    """Return window and stride, with their defaults; (None, None) if documents are read in one piece."""
    longest = context_limit(model.config)
    window = longest if window is None else window
    if window is None:
        if stride is not None:
            raise EvaluationError(
                f"stride {stride} needs a window: a recurrent model reads a text at once; give both or none"
            )
        return None, None
    if window < 1 or (longest is not None and window > longest):
        allowed = "1 or more" if longest is None else f"1 to its max_seq_len {longest}"
        raise EvaluationError(f"window {window} does not fit the model; allowed: {allowed}")
    stride = max(1, window // 2) if stride is None else stride
    if not 1 <= stride <= window:
        raise EvaluationError(f"stride {stride} would leave tokens out; allowed: 1 to the window, {window}")
    return window, stride


class Totals:
    """Sums over documents, from which :meth:`scores` computes the scores."""

    def __init__(self, *, vocab_size: int) -> None:
        self.uniform = math.log(vocab_size)  # nats of a token without a prediction
        names = ("documents", "bytes", "words", "lines", "tokens", "tokens_not_predicted", "unknown_tokens")
        self.counts = Counter(dict.fromkeys(names, 0))
        self.lost = 0  # documents that do not decode to their text
        self.recovered = Recovered.TEXT  # at least, of every document
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
                f"document {self.loss.units + 1}, token {at + 1}: the model gives no finite probability; "
                "its weights are damaged, or its precision is too low"
            )
        unpredicted = int(not text.has_start and len(text.sequence) > 0)
        total = float(nats.sum()) + unpredicted * self.uniform
        self.counts.update(
            documents=1,
            bytes=text.bytes,
            words=text.words,
            lines=text.lines,
            tokens=len(nats),
            tokens_not_predicted=unpredicted,
            unknown_tokens=text.unknown,
        )
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
        by_document = self.loss.units >= MIN_UNITS
        loss, rate = (self.loss, self.rate) if by_document else (self.block_loss, self.block_rate)
        interval, units = loss.interval(), "documents" if by_document else "blocks"
        settings = {**settings, "ci": f"{loss.units}-{units}" if interval else "no"}
        scores = [
            *loss_and_perplexity(self.loss.ratio, interval, settings),
            self._bits_per_byte(settings, rate.interval()),
        ]
        if per_word:
            settings["ci"] = settings["ci"] if by_document else "no"  # blocks of tokens have no words
            scores += [self._word_perplexity(settings), self._word_bits_per_byte(settings)]
        return Scores(tuple(scores), {**self.counts, "nats": self.nats}, tuple(self._notes()))

    def _bits_per_byte(self, settings: dict[str, object], interval: Interval) -> Score:
        name, signed = "bits_per_byte", signature("bits_per_byte", **settings)
        if self.recovered < Recovered.TEXT or not self.counts["bytes"]:
            return Score(name, None, None, signed, self._why_undefined("bytes"))
        return Score(name, self.nats / math.log(2) / self.counts["bytes"], _bits(interval), signed)

    def _word_perplexity(self, settings: dict[str, object]) -> Score:
        name, with_lines = "word_perplexity", self.recovered >= Recovered.LINES
        statistics = self.word_or_line if with_lines else self.word
        signed = signature(name, **settings, per="words+lines" if with_lines else "words")
        if self.recovered < Recovered.WORDS or statistics.y == 0:
            return Score(name, None, None, signed, self._why_undefined("words"))
        return perplexity_score(name, statistics.ratio, statistics.interval(), signed)

    def _word_bits_per_byte(self, settings: dict[str, object]) -> Score:
        name, rate = "word_bits_per_byte", self.word_rate
        signed = signature(name, **settings)
        if self.recovered < Recovered.WORDS or rate.y == 0:
            return Score(name, None, None, signed, self._why_undefined("words"))
        return Score(name, rate.ratio / math.log(2), _bits(rate.interval()), signed)

    def _why_undefined(self, per: str) -> str:
        if not self.lost:
            return f"the text has no {per}"
        n, unknown = self.counts["documents"], self.counts["unknown_tokens"]
        tokens = f" ({unknown:,} tokens are unknown)" if unknown else ""
        return f"{self.lost:,} of {n:,} documents do not decode to their text{tokens}"

    def _notes(self) -> Iterator[str]:
        if unknown := self.counts["unknown_tokens"]:
            yield (
                f"{unknown:,} tokens ({unknown / self.counts['tokens']:.2%}) are unknown, and the model is "
                "right if it predicts the unknown token; compare loss and perplexity with the same tokenizer "
                "only"
            )
        if unpredicted := self.counts["tokens_not_predicted"]:
            yield (
                f"{unpredicted:,} first tokens have nothing before them; loss and perplexity leave them "
                f"out, and bits per byte count {self.uniform / math.log(2):.2f} bits for each"
            )


def _bits(nats: Interval) -> Interval:
    return None if nats is None else (nats[0] / math.log(2), nats[1] / math.log(2))
