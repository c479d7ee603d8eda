"""Score given ids: the log-probabilities of continuations, of targets, and of every next id."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from wordloom.errors import GenerationError
from wordloom.generate.decoder import next_logits
from wordloom.generate.prompts import check_finite, check_ids, check_known
from wordloom.models import Memory, context_limit
from wordloom.nn.evaluating import evaluating

BATCH_TOKENS = 4096  # continuations scored at once hold at most this many tokens


def score_ids(
    model: Any, prompt: Sequence[int], continuations: Sequence[Sequence[int]]
) -> list[tuple[list[float], bool]]:
    """Return the log-probability of each token of each continuation, and whether greedy search chooses it.

    The prompt is read once; its keys and values serve every continuation.

    Raises GenerationError for an empty prompt, an unknown id, more than ``max_seq_len`` tokens, or logits
    that are not finite.
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
    return _scored(
        model,
        continuations,
        lambda batch: _hidden_after(model, prompt, [continuations[i] for i in batch], device),
        len(prompt),
    )


def _scored(
    model: Any, texts: Sequence[Sequence[int]], hidden_of: Callable[[list[int]], Tensor], before: int
) -> list[tuple[list[float], bool]]:
    """Score texts in batches, the longest first; a row has ``before`` tokens besides its text.

    ``hidden_of`` returns the vectors [B, T, D] that predict the texts of these numbers.
    """
    scored: dict[int, tuple[list[float], bool]] = {}
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    with evaluating(model), torch.inference_mode():
        while order:
            batch = [order.pop()]  # the longest one, and as many others as fit
            rows = BATCH_TOKENS // max(1, before + len(texts[batch[0]]))
            batch += [order.pop() for _ in range(min(rows - 1, len(order)))]
            hidden = hidden_of(batch)
            for place, i in enumerate(batch):
                ids = torch.tensor(texts[i], dtype=torch.int64, device=hidden.device)
                logits = model.lm_head(hidden[place, : len(ids)]).float()  # [T, V]
                scored[i] = _token_scores(logits, ids)
    return [scored[i] for i in range(len(texts))]


def _hidden_after(
    model: Any, prompt: Sequence[int], continuations: Sequence[Sequence[int]], device: torch.device
) -> Tensor:
    """Return vectors [B, T, D]: row b, column t predicts token t of continuation b; padded on the right.

    No column of a continuation attends to the padding, because the model is causal.
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
    # greedy search takes the lowest id among equals: no larger logit, and no equal one at a lower id
    beaten = (logits > chosen[:, None]) | ((logits == chosen[:, None]) & before)
    return (chosen - logits.logsumexp(dim=-1)).tolist(), not bool(beaten.any())


def score_targets(
    model: Any, memory: Memory, targets: Sequence[Sequence[int]], *, start_id: int
) -> list[tuple[list[float], bool]]:
    """Return the log-probability of each token of each source's target, and whether greedy search chooses it.

    ``model`` is a SequenceToSequence, and row b of ``memory`` is the source of target b; ``memory.select``
    repeats a source with several targets.  A target is scored after ``start_id``, including its eos if it
    has one.

    Raises GenerationError if targets and sources differ in number, for an unknown id, and for a target of
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

    def hidden_of(batch: list[int]) -> Tensor:
        T = max(1, len(targets[batch[0]]))
        prefixes = [[start_id, *targets[i]][:T] for i in batch]
        # no target attends to the padding on its right, because the decoder is causal
        prefix = torch.tensor([row + [start_id] * (T - len(row)) for row in prefixes], device=device)
        return model.hidden(prefix, memory.select(torch.tensor(batch, device=device)))  # [B, T, D]

    return _scored(model, targets, hidden_of, 0)


def next_logprobs(model: Any, prompt: Sequence[int]) -> Tensor:
    """Return the log-probability [V] float32 of every id after ``prompt``.

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
