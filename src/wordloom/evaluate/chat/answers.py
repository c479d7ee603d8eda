"""The likelihood of given answers, and how a model's own answers end and repeat themselves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wordloom.data.batches.conversations import ConversationRows
from wordloom.evaluate.likelihood import BATCH_TOKENS, Stretch, likelihoods
from wordloom.evaluate.score import (
    Floats,
    RatioStatistics,
    Score,
    Scores,
    loss_and_perplexity,
    share_score,
    signed_score,
)
from wordloom.text import Tokenizer

N_GRAM = 4  # tokens of the n-grams whose repetition is measured


@dataclass(frozen=True)
class Answer:
    """An answer that a model writes.

    Attributes:
        text: its text, without special tokens and without white space around it.
        ids: its tokens, without the one that ended it.
        stopped: whether the model ended it by a token, before a limit did.
    """

    text: str
    ids: tuple[int, ...]
    stopped: bool


@dataclass(frozen=True)
class AnswerLikelihood:
    """The likelihood of the answers in N conversations.

    Attributes:
        nats: [N], minus the log-probability of the tokens that the assistant writes.
        tokens: [N], their number.
        bytes: [N], their bytes; zeros if the tokenizer does not define them.
    """

    nats: Floats
    tokens: Floats
    bytes: Floats

    def scores(self, settings: Mapping[str, object]) -> Scores:
        """Return ``loss``, ``perplexity`` and ``bits_per_byte``, with intervals over conversations."""
        n = len(self.nats)
        loss = RatioStatistics.of(self.nats, self.tokens)
        interval = loss.interval()
        signed = {**settings, "ci": f"{n}-conversations" if interval else "no"}
        if self.bytes.sum():
            bits = RatioStatistics.of(self.nats / math.log(2), self.bytes)
            bits_per_byte = bits.score("bits_per_byte", settings, "conversations")
        else:
            note = "the tokenizer does not say how many bytes its tokens stand for"
            bits_per_byte = signed_score("bits_per_byte", None, None, settings, "no", note)
        counts = {"conversations": n, "tokens": int(self.tokens.sum()), "bytes": int(self.bytes.sum())}
        return Scores((*loss_and_perplexity(loss.ratio, interval, signed), bits_per_byte), counts)


def answer_likelihood(
    model: Any,
    tokenizer: Tokenizer,
    rows: ConversationRows,
    *,
    batch_size: int | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> AnswerLikelihood:
    """Return the likelihood of the answers in ``rows``.

    The tokens that an assistant writes are scored, with those that end an answer, as in training.

    Args:
        model: a causal model.
        tokenizer: its tokenizer.
        rows: the conversations.
        batch_size: conversations computed at once.
        progress: called after each conversation with its tokens and its nats.
    """
    offsets, ids, scored = rows.tokens.offsets, rows.tokens.ids, rows.scored
    N, lengths = len(rows.places), tokenizer.byte_lengths()
    nats, tokens, sizes = np.zeros(N), np.zeros(N), np.zeros(N)

    def stretches() -> Iterator[tuple[int, Stretch]]:
        for row in range(N):
            here = slice(offsets[row], offsets[row + 1])
            first = max(1, int(np.flatnonzero(scored[here])[0]))
            sequence = ids[here].astype(np.int64)
            yield row, Stretch(sequence[:-1], sequence[first:])

    batch = batch_size or max(1, BATCH_TOKENS // max(1, round(float(rows.inputs.mean()))))
    for row, likelihood in likelihoods(model, stretches(), batch_size=batch):
        here = slice(offsets[row + 1] - len(likelihood.nats), offsets[row + 1])
        mask = scored[here]
        nats[row], tokens[row] = likelihood.nats[mask].sum(), mask.sum()
        if lengths is not None:
            sizes[row] = lengths[ids[here][mask]].sum()
        if progress is not None:
            progress(int(offsets[row + 1] - offsets[row]), float(nats[row]))
    return AnswerLikelihood(nats, tokens, sizes)


def repetition(ids: Sequence[int], n: int = N_GRAM) -> float:
    """Return the share of the n-grams of ``ids`` that repeat an earlier one; 0 for fewer than n tokens.

    seq-rep-n of Welleck et al. 2019 (arXiv:1908.04319).

    >>> repetition([1, 2, 3, 1, 2, 3], 2)
    0.4
    """
    total = len(ids) - n + 1
    if total < 1:
        return 0.0
    return 1 - len({tuple(ids[i : i + n]) for i in range(total)}) / total


def answers_written(written: Sequence[Answer], settings: Mapping[str, object]) -> tuple[Score, ...]:
    """Return ``stop_rate``, ``repetition`` and ``answer_tokens`` of answers: their share that the model ended
    itself, the mean of :func:`repetition`, and the mean number of tokens."""
    n = len(written)
    ones = np.ones(n)
    means = {
        "repetition": np.array([repetition(answer.ids) for answer in written]),
        "answer_tokens": np.array([float(len(answer.ids)) for answer in written]),
    }
    stops = share_score("stop_rate", sum(answer.stopped for answer in written), n, settings)
    return (
        stops,
        *(RatioStatistics.of(x, ones).score(name, settings, "answers") for name, x in means.items()),
    )
