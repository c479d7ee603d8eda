"""What a model thinks of given ids: the log-probability of continuations and of targets, and the likeliest
next ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from wordloom.errors import GenerationError
from wordloom.generate.decoder import next_logits
from wordloom.generate.limits import check_finite, check_ids, check_known
from wordloom.models import Memory, context_limit
from wordloom.nn.evaluating import evaluating

__all__ = ["next_logprobs", "score_ids", "score_targets"]

BATCH_TOKENS = 4096  # continuations scored at once hold at most this many tokens


def score_ids(
    model: Any, prompt: Sequence[int], continuations: Sequence[Sequence[int]]
) -> list[tuple[list[float], bool]]:
    """Log-probability of each token of each continuation after ``prompt``, and whether greedy chooses them.

    The prompt is read once; its keys and values serve every continuation.

    Raises GenerationError for an empty prompt, an unknown id, more than ``max_seq_len`` tokens, or logits
    that are no numbers.
    """
    check_ids([prompt], model.config.vocab_size)
    for number, continuation in enumerate(continuations):
        check_known(f"continuation {number}", continuation, model.config.vocab_size)
    longest, window = max(map(len, continuations), default=0), context_limit(model.config)
    if window is not None and len(prompt) + longest > window:
        raise GenerationError(
            f"a prompt of {len(prompt)} tokens and a continuation of {longest}: more than max_seq_len "
            f"{window} holds; shorten the prompt"
        )
    device = next(model.parameters()).device
    scored: dict[int, tuple[list[float], bool]] = {}
    order = sorted(range(len(continuations)), key=lambda i: len(continuations[i]))
    with evaluating(model), torch.inference_mode():
        while order:
            batch = [order.pop()]  # the longest first, and with it what else fits
            rows = max(1, BATCH_TOKENS // (len(prompt) + len(continuations[batch[0]])))
            batch += [order.pop() for _ in range(min(rows - 1, len(order)))]
            hidden = _hidden_after(model, prompt, [continuations[i] for i in batch], device)  # [B, T, D]
            for place, i in enumerate(batch):
                ids = torch.tensor(continuations[i], dtype=torch.int64, device=device)
                logits = model.lm_head(hidden[place, : len(ids)]).float()  # [T, V]
                scored[i] = _token_scores(logits, ids)
    return [scored[i] for i in range(len(continuations))]


def _hidden_after(
    model: Any, prompt: Sequence[int], continuations: Sequence[Sequence[int]], device: torch.device
) -> Tensor:
    """[B, T, D]: row b, column t is what predicts token t of continuation b; padded on the right.

    Causality keeps the padding out of every column that counts.
    """
    T = max(1, *map(len, continuations))
    inputs = [[*prompt, *ids[:-1]] for ids in continuations]
    tokens = torch.tensor([row + [0] * (len(prompt) + T - 1 - len(row)) for row in inputs], device=device)
    shared = len(prompt) - 1
    if len(continuations) == 1 or shared == 0:
        return model.hidden(tokens)[:, shared:]
    cache = model.new_cache(1, tokens.shape[1])
    model.hidden(tokens[:1, :shared], cache=cache)
    cache.select(torch.zeros(len(continuations), dtype=torch.int64, device=device))
    return model.hidden(tokens[:, shared:], cache=cache)


def _token_scores(logits: Tensor, ids: Tensor) -> tuple[list[float], bool]:
    check_finite(logits)
    chosen = logits.gather(1, ids[:, None])[:, 0]
    before = torch.arange(logits.shape[1], device=ids.device) < ids[:, None]
    # greedy takes the lowest id among equals: nothing above the chosen one, nothing equal before it
    beaten = (logits > chosen[:, None]) | ((logits == chosen[:, None]) & before)
    return (chosen - logits.logsumexp(dim=-1)).tolist(), not bool(beaten.any())


def score_targets(
    model: Any, memory: Memory, targets: Sequence[Sequence[int]], *, start_id: int
) -> list[tuple[list[float], bool]]:
    """Log-probability of each token of the target of each source, and whether greedy chooses them.

    ``model`` is a SequenceToSequence, row b of ``memory`` the source of target b (``memory.select`` repeats a
    source that has several).  A target is scored as given, after ``start_id``: with its eos if it has one.

    Raises GenerationError for a number of targets that is not that of sources, an unknown id, or a target of
    more than ``max_seq_len`` tokens.
    """
    if len(targets) != len(memory.values):
        raise GenerationError(f"{len(targets)} targets for {len(memory.values)} sources; give one for each")
    check_known("start_id", [start_id], model.config.vocab_size)
    window = context_limit(model.config)
    for number, target in enumerate(targets):
        check_known(f"target {number}", target, model.config.vocab_size)
        if window is not None and len(target) > window:
            raise GenerationError(
                f"target {number} has {len(target)} tokens: more than max_seq_len {window} holds; shorten it"
            )
    device = next(model.parameters()).device
    scored: dict[int, tuple[list[float], bool]] = {}
    order = sorted(range(len(targets)), key=lambda i: len(targets[i]))
    with evaluating(model), torch.inference_mode():
        while order:
            batch = [order.pop()]  # the longest first, and with it what else fits
            T = max(1, len(targets[batch[0]]))
            batch += [order.pop() for _ in range(min(BATCH_TOKENS // T - 1, len(order)))]
            prefixes = [[start_id, *targets[i]][:T] for i in batch]
            # causality keeps the padding on the right out of every column that counts
            prefix = torch.tensor([row + [start_id] * (T - len(row)) for row in prefixes], device=device)
            hidden = model.hidden(prefix, memory.select(torch.tensor(batch, device=device)))  # [B, T, D]
            for place, i in enumerate(batch):
                ids = torch.tensor(targets[i], dtype=torch.int64, device=device)
                scored[i] = _token_scores(model.lm_head(hidden[place, : len(ids)]).float(), ids)
    return [scored[i] for i in range(len(targets))]


def next_logprobs(model: Any, prompt: Sequence[int]) -> Tensor:
    """Log-probability [V] float32 of every id after ``prompt``.

    Raises GenerationError for an empty prompt, an unknown id, or more than ``max_seq_len`` tokens.
    """
    check_ids([prompt], model.config.vocab_size)
    window = context_limit(model.config)
    if window is not None and len(prompt) > window:
        raise GenerationError(
            f"a prompt of {len(prompt)} tokens: more than max_seq_len {window} holds; shorten it"
        )
    with evaluating(model), torch.inference_mode():
        logits = next_logits(model, [prompt], device=next(model.parameters()).device)[0]
    check_finite(logits)
    return logits.float().log_softmax(dim=-1)
