"""LAMBADA: predict a passage's last word (Paperno et al. 2016, arXiv:1606.06031).

The protocol is that of EleutherAI's harness on OpenAI's version of the passages (Radford et al. 2019). A
passage is right if greedy decoding gives every token of the continuation. Perplexity is per passage, that is,
per last word.  No words are filtered; the stop-word filter of the GPT-2 paper is a different protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wordloom.data import records
from wordloom.errors import DataError, EvaluationError, position
from wordloom.evaluate.continuations import ContinuationReader
from wordloom.evaluate.forward import check_finite
from wordloom.evaluate.likelihood import likelihoods
from wordloom.evaluate.reading import check_vocabulary
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

    Raises EvaluationError without a passage, for one with nothing before its continuation, and for a
    tokenizer of another model.
    """
    check_vocabulary(model, tokenizer)
    reader = ContinuationReader(tokenizer, context_limit(model.config))
    rows = batch_size or reader.rows
    nats: list[float] = []
    hits = 0
    stretches = (
        (None, reader.stretch(*passage, place=f"passage {number}"))
        for number, passage in enumerate(passages, start=1)
    )
    for _, likelihood in likelihoods(model, stretches, batch_size=rows, greedy=True):
        assert likelihood.greedy is not None
        right = bool(likelihood.greedy.all())
        check_finite(likelihood.nats)
        nats.append(float(likelihood.nats.sum()))
        hits += right
        if progress is not None:
            progress(right, nats[-1])
    if not nats:
        raise EvaluationError("no passage given; LAMBADA is the data set 'lambada'")
    n, truncated = len(nats), reader.truncated
    loss = RatioStatistics.of(np.array(nats), np.ones(n))
    interval = loss.interval()
    settings = reader.settings(model)
    signed = signature("lambada_accuracy", **settings, ci=f"{n}-passages-wilson")
    accuracy = Score("accuracy", hits / n, share_interval(hits, n), signed)
    signed = signature("lambada_perplexity", **settings, ci=f"{n}-passages" if interval else "no")
    return Scores(
        (accuracy, perplexity_score("perplexity", loss.ratio, interval, signed)),
        {"passages": n, "right": hits, "cut": truncated, "nats": sum(nats)},
        (f"{truncated:,} passages are longer than the window and lost their beginning",) * bool(truncated),
    )
