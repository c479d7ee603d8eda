"""Draw the next tokens of rows that have equal settings, and report what was likely in their places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from wordloom.generate.prompts import not_finite
from wordloom.generate.sampling import draw, filter_logits, greedy, weighed
from wordloom.nn.fused import log_sum_exp
from wordloom.serve.engine.request import Alternative, Request


class Drawn(NamedTuple):
    """A token, its log-probability by the model, and the likely tokens in its place."""

    id: int
    logprob: float
    alternatives: tuple[Alternative, ...]


def alike(request: Request) -> tuple[Any, ...]:
    """Return what two requests must have in common to be drawn together."""
    shared = replace(request.sampling, seed=None, stop=(), stop_ids=(), samples=1, max_new_tokens=None)
    return (shared, request.alternatives, request.tokenizer.vocab_size)


def drawn_tokens(
    request: Request,
    logits: Tensor,
    texts: Sequence[Sequence[int]],
    prompts: Sequence[int],
    draws: Sequence[np.random.Generator],
) -> list[Drawn]:
    """Draw a token for each row by logits [R, V].

    The requests of all rows are :func:`alike`, and ``request`` is one of them.  ``texts`` are the ids of each
    row, of which the first ``prompts`` [R] are its prompt, and ``draws`` its random numbers.

    Raises GenerationError for logits that are not finite, and where the settings forbid every token; nothing
    is drawn then.
    """
    sampling = request.sampling
    normalizers = log_sum_exp(logits)  # [R]
    if not bool(normalizers.isfinite().all()):
        raise not_finite()
    V = min(request.tokenizer.vocab_size, logits.shape[1])
    weights = weighed(logits[:, :V], texts, sampling, prompts)
    kept = None if sampling.temperature == 0 else filter_logits(weights, sampling)
    ids = greedy(weights) if kept is None else draw(kept, draws)
    logprobs = (logits.gather(1, ids[:, None])[:, 0] - normalizers).tolist()
    likely: list[tuple[Alternative, ...]] = [()] * len(ids)
    if request.alternatives:
        shares = _one_hot(ids, V) if kept is None else kept.softmax(dim=-1)
        likely = _alternatives(logits[:, :V] - normalizers[:, None], shares, request.alternatives)
    return [Drawn(*each) for each in zip(ids.tolist(), logprobs, likely, strict=True)]


def _one_hot(ids: Tensor, V: int) -> Tensor:
    return torch.zeros(len(ids), V, device=ids.device).scatter(1, ids[:, None], 1.0)


def _alternatives(logprobs: Tensor, shares: Tensor, k: int) -> list[tuple[Alternative, ...]]:
    """Return the ``k`` likeliest tokens of each row; both tensors are [R, V]."""
    best = logprobs.sort(dim=-1, descending=True, stable=True)
    ids = best.indices[:, :k]
    return [
        tuple(Alternative(*each) for each in zip(*row, strict=True))
        for row in zip(ids.tolist(), best.values[:, :k].tolist(), shares.gather(1, ids).tolist(), strict=True)
    ]
