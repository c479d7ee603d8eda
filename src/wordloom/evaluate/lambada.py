"""LAMBADA: predict a passage's last word (Paperno et al. 2016, arXiv:1606.06031).

The protocol is that of EleutherAI's harness on OpenAI's version of the passages (Radford et al. 2019). A
passage is right if greedy decoding gives every token of the continuation. Perplexity is per passage, that is,
per last word.  No words are filtered; the stop-word filter of the GPT-2 paper is a different protocol.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wordloom.data import records
from wordloom.errors import DataError, EvaluationError, position
from wordloom.evaluate.forward import dtype_name
from wordloom.evaluate.likelihood import BATCH_TOKENS, Stretch, likelihoods
from wordloom.evaluate.reading import tokenizer_name
from wordloom.evaluate.score import (
    RatioStatistics,
    Score,
    Scores,
    perplexity_score,
    share_interval,
    signature,
)
from wordloom.models import context_limit

if TYPE_CHECKING:
    from wordloom.data.files.source import Sources
    from wordloom.text import Tokenizer


class Passage(NamedTuple):
    """A text, and its last word."""

    context: str
    continuation: str


def passages(sources: Sources) -> Iterator[Passage]:
    """Yield the passages of ``.jsonl`` files with the fields ``context`` and ``continuation``.

    Raises DataError, which names the line, for a missing or empty field.
    """
    for record in records(sources):
        fields = [record.value.get(name) for name in Passage._fields]
        for name, value in zip(Passage._fields, fields, strict=True):
            if not isinstance(value, str) or not value.strip():
                raise DataError(
                    f"{position(record.source, record.line)}: a passage needs a text '{name}'; the fields "
                    f"here are: {', '.join(record.value) or 'none'}"
                )
        yield Passage(*fields)  # type: ignore[arg-type]


def lambada(
    model: Any,
    tokenizer: Tokenizer,
    passages: Iterable[Passage],
    *,
    batch_size: int | None = None,
    progress: Callable[[bool, float], None] | None = None,
) -> Scores:
    """Return ``accuracy`` and ``perplexity`` of the continuations.

    Context and continuation are joined by one space, unless either has white space there, and tokenized as
    one text. A token that holds a character behind the context belongs to the continuation.  A passage begins
    with the tokens that the tokenizer puts before a prompt.  A passage longer than the model's window loses
    its beginning; the scores count these passages in a note.  ``progress`` is called after every passage with
    whether it was right, and its nats.

    Raises EvaluationError without a passage, or for one with nothing before its continuation.
    """
    reader = _PassageReader(tokenizer, context_limit(model.config))
    rows = batch_size or max(1, BATCH_TOKENS // min(reader.window or 256, 256))
    nats: list[float] = []
    hits = 0
    for _, likelihood in likelihoods(model, reader.stretches(passages), batch_size=rows):
        right = bool(likelihood.greedy.all())
        nats.append(float(likelihood.nats.sum()))
        hits += right
        if progress is not None:
            progress(right, nats[-1])
    if not nats:
        raise EvaluationError("no passage given; LAMBADA is the data set 'lambada'")
    n, truncated = len(nats), reader.truncated
    loss = RatioStatistics.of(np.array(nats), np.ones(n))
    interval = loss.interval()
    settings = {
        "text": reader.digest.hexdigest()[:8],
        "tok": tokenizer_name(tokenizer),
        "window": reader.window or "whole",
        "start": "bos" if reader.before else "no",
        "dtype": dtype_name(model),
    }
    signed = signature("lambada_accuracy", **settings, ci=f"{n}-passages-wilson")
    accuracy = Score("accuracy", hits / n, share_interval(hits, n), signed)
    signed = signature("lambada_perplexity", **settings, ci=f"{n}-passages" if interval else "no")
    return Scores(
        (accuracy, perplexity_score("perplexity", loss.ratio, interval, signed)),
        {"passages": n, "right": hits, "cut": truncated, "nats": sum(nats)},
        (f"{truncated:,} passages are longer than the window and lost their beginning",) * bool(truncated),
    )


class _PassageReader:
    """Tokenizes passages for a model with a ``window``, and counts those it truncates."""

    def __init__(self, tokenizer: Tokenizer, window: int | None) -> None:
        self.tokenizer, self.window = tokenizer, window
        self.before = [tokenizer.bos_id] if tokenizer.adds_bos else []
        self.truncated = 0
        self.digest = hashlib.sha256()

    def stretches(self, passages: Iterable[Passage]) -> Iterator[tuple[None, Stretch]]:
        """Yield each passage, its continuation as the targets."""
        window = self.window
        for number, passage in enumerate(passages, start=1):
            self.digest.update(json.dumps(passage).encode())
            ids, first = _tokens(self.tokenizer, passage)
            sequence = np.array([*self.before, *ids], dtype=np.int64)
            n_targets = len(ids) - first
            if n_targets >= len(sequence):
                raise EvaluationError(
                    f"passage {number} has no token before its continuation to predict it from"
                )
            if window is not None and n_targets > window:
                raise EvaluationError(
                    f"passage {number}: its continuation has {n_targets} tokens, the model takes {window}"
                )
            self.truncated += window is not None and len(sequence) - 1 > window
            yield None, Stretch(sequence[:-1][-window:] if window else sequence[:-1], sequence[-n_targets:])


def _tokens(tokenizer: Tokenizer, passage: Passage) -> tuple[list[int], int]:
    """Return the ids of the passage, and the index of the first one of the continuation."""
    context, continuation = passage
    space = "" if context[-1:].isspace() or continuation[:1].isspace() or not context else " "
    # "text": passages quote the web, where the spelling of a special token is ordinary text
    encoding = tokenizer.encode(context + space + continuation, specials="text")
    first = next(i for i, (_, stop) in enumerate(encoding.offsets) if stop > len(context))
    return encoding.ids, first
