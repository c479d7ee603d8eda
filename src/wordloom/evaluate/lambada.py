"""LAMBADA: predict a passage's last word (Paperno et al. 2016, arXiv:1606.06031).

The protocol of EleutherAI's harness on OpenAI's version of the passages (Radford et al. 2019): a passage is
right when greedy decoding gives every token of the continuation; perplexity is per passage, that is, per
last word.  The words are not filtered (the GPT-2 paper's stop-word filter is another protocol).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wordloom.data import records
from wordloom.errors import DataError, EvaluationError, position
from wordloom.evaluate.likelihood import BATCH_TOKENS, DTYPE_NAMES, Stretch, likelihoods
from wordloom.evaluate.reading import tokenizer_name
from wordloom.evaluate.score import (
    RatioStatistics,
    Score,
    Scores,
    perplexity_interval,
    perplexity_of,
    share_interval,
    signature,
)
from wordloom.models import context_limit

if TYPE_CHECKING:
    from wordloom.data.files.source import Sources
    from wordloom.text import Tokenizer

__all__ = ["Passage", "lambada", "passages"]


class Passage(NamedTuple):
    """A text, and its last word."""

    context: str
    continuation: str


def passages(sources: Sources) -> Iterator[Passage]:
    """Passages of ``.jsonl`` files of ``context`` and ``continuation``; raises DataError naming the line."""
    for record in records(sources):
        fields = [record.value.get(name) for name in Passage._fields]
        for name, value in zip(Passage._fields, fields, strict=True):
            if not isinstance(value, str) or not value.strip():
                found = ", ".join(record.value) or "nothing"
                raise DataError(
                    f"{position(record.source, record.line)}: a passage needs a text '{name}'; fields "
                    f"here: {found}"
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
    """``accuracy`` and ``perplexity`` of the continuations.

    Context and continuation are joined by one space where neither has white space there, and tokenized as
    one text; a token that holds a character past the context belongs to the continuation.  A passage begins
    as the tokenizer begins a prompt.  A passage longer than the model's window loses its beginning, which
    is counted and noted.  ``progress`` is called after every passage: was it right, and its nats.

    Raises EvaluationError without a passage, or for one with nothing before its continuation.
    """
    window = context_limit(model.config)
    before = [tokenizer.bos_id] if tokenizer.adds_bos else []
    cut = 0
    digest = hashlib.sha256()

    def stretches() -> Iterator[tuple[None, Stretch]]:
        nonlocal cut
        for number, passage in enumerate(passages, start=1):
            digest.update(json.dumps(passage).encode())
            ids, first = _tokens(tokenizer, passage)
            sequence = np.array([*before, *ids], dtype=np.int64)
            n_targets = len(ids) - first
            if n_targets >= len(sequence):
                raise EvaluationError(
                    f"passage {number} has no token before its continuation to predict it from"
                )
            if window is not None and n_targets > window:
                raise EvaluationError(
                    f"passage {number}: its continuation has {n_targets} tokens, the model takes {window}"
                )
            cut += window is not None and len(sequence) - 1 > window
            yield None, Stretch(sequence[:-1][-window:] if window else sequence[:-1], sequence[-n_targets:])

    nats: list[float] = []
    right: list[bool] = []
    for _, likelihood in likelihoods(
        model, stretches(), batch_size=batch_size or max(1, BATCH_TOKENS // min(window or 256, 256))
    ):
        nats.append(float(likelihood.nats.sum()))
        right.append(bool(likelihood.greedy.all()))
        if progress is not None:
            progress(right[-1], nats[-1])
    if not nats:
        raise EvaluationError("no passage given; LAMBADA is the data set 'lambada'")
    loss = RatioStatistics.of(np.array(nats), np.ones(len(nats)))
    interval = loss.interval()
    hits, n = sum(right), len(right)
    settings = {
        "text": digest.hexdigest()[:8],
        "tok": tokenizer_name(tokenizer),
        "window": window or "whole",
        "start": "bos" if before else "no",
        "dtype": DTYPE_NAMES.get(next(model.parameters()).dtype, "other"),
    }
    wilson, normal = f"{n}-passages-wilson", f"{n}-passages" if interval else "no"
    return Scores(
        (
            Score(
                "accuracy",
                hits / n,
                share_interval(hits, n),
                signature("lambada_accuracy", **settings, ci=wilson),
            ),
            Score(
                "perplexity",
                perplexity_of(loss.ratio),
                perplexity_interval(interval),
                signature("lambada_perplexity", **settings, ci=normal),
            ),
        ),
        {"passages": n, "right": hits, "cut": cut, "nats": sum(nats)},
        (f"{cut:,} passages are longer than the window and lost their beginning",) if cut else (),
    )


def _tokens(tokenizer: Tokenizer, passage: Passage) -> tuple[list[int], int]:
    """The passage's ids and which of them is the continuation's first."""
    context, continuation = passage
    joint = "" if context[-1:].isspace() or continuation[:1].isspace() or not context else " "
    # "text": passages quote the web, and a special token's spelling there is only its characters
    encoding = tokenizer.encode(context + joint + continuation, specials="text")
    first = next(i for i, (_, stop) in enumerate(encoding.offsets) if stop > len(context))
    return encoding.ids, first
