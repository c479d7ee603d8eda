"""The log-probability of each token under a causal model, and whether the token is the most likely one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from wordloom.models import context_limit
from wordloom.nn.evaluating import evaluating

__all__ = ["DTYPE_NAMES", "Likelihood", "Stretch", "likelihoods"]

DTYPE_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "fp64"}

# Logits made at once, in elements: 16 Mi is 64 MiB in float32, whatever the vocabulary.
CHUNK_ELEMENTS = 1 << 24
# Stretches sorted by length together, in batches: little is padded, and little is held.
POOL_BATCHES = 16
BATCH_TOKENS = 8192

Ids = NDArray[np.integer[Any]]
Key = TypeVar("Key")


class Stretch(NamedTuple):
    """``inputs`` [n] for the model, and the ``targets`` [m] of its last m predictions, m <= n."""

    inputs: Ids
    targets: Ids


class Likelihood(NamedTuple):
    """``nats`` [m] float64, minus the log-probability of each target; ``greedy`` [m]: is it the likeliest.

    Of equally likely tokens the one with the lowest id counts, as in generation.
    """

    nats: NDArray[np.float64]
    greedy: NDArray[np.bool_]


def likelihoods(
    model: Any, stretches: Iterable[tuple[Key, Stretch]], *, batch_size: int
) -> Iterator[tuple[Key, Likelihood]]:
    """Yield the likelihood of every stretch, in order, ``batch_size`` stretches at a time.

    Stretches are taken from the iterator as they are needed. Batch size and neighbours change a result only
    by rounding, because rows are padded on the right, which a causal model does not see.
    """
    waiting = iter(stretches)
    while pool := list(islice(waiting, POOL_BATCHES * batch_size)):
        by_length = sorted(range(len(pool)), key=lambda i: len(pool[i][1].inputs), reverse=True)
        found: dict[int, Likelihood] = {}
        for start in range(0, len(pool), batch_size):
            rows = by_length[start : start + batch_size]
            found.update(zip(rows, _batch(model, [pool[i][1] for i in rows]), strict=True))
        yield from ((key, found[i]) for i, (key, _) in enumerate(pool))


def _batch(model: Any, stretches: list[Stretch]) -> list[Likelihood]:
    B, T = len(stretches), max(len(s.inputs) for s in stretches)
    counts = [len(s.targets) for s in stretches]
    if not sum(counts):
        return [Likelihood(np.empty(0), np.empty(0, dtype=bool)) for _ in stretches]
    tokens = np.zeros((B, T), dtype=np.int64)
    scored = np.zeros((B, T), dtype=bool)
    for row, (inputs, targets) in enumerate(stretches):
        n = len(inputs)
        tokens[row, :n] = inputs
        scored[row, n - len(targets) : n] = True
    target = torch.from_numpy(np.concatenate([s.targets for s in stretches]).astype(np.int64))
    with evaluating(model):
        device = next(model.parameters()).device
        rows, wanted = torch.from_numpy(tokens).to(device), torch.from_numpy(scored).to(device)
        hidden = _scored_columns(model, rows, wanted)  # [N, D]
        nats, greedy = _predict(model, hidden, target.to(device))
    ends = np.cumsum(counts)[:-1]
    return [Likelihood(*pair) for pair in zip(np.split(nats, ends), np.split(greedy, ends), strict=True)]


def _scored_columns(model: Any, tokens: Tensor, scored: Tensor) -> Tensor:
    """tokens [B, T], scored [B, T] -> [N, D], row by row; the model reads a long text in pieces."""
    B, T = tokens.shape
    piece = T if context_limit(model.config) is not None else max(1, BATCH_TOKENS // B)
    if piece >= T:
        return model.hidden(tokens)[scored]
    cache = model.new_cache(B, T)
    found: list[list[Tensor]] = [[] for _ in range(B)]
    for start in range(0, T, piece):
        part = slice(start, start + piece)
        hidden = model.hidden(tokens[:, part], cache=cache)  # [B, piece, D]
        for row in range(B):
            found[row].append(hidden[row, scored[row, part]])
    return torch.cat([part for row in found for part in row])


def _predict(model: Any, hidden: Tensor, targets: Tensor) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """hidden [N, D], targets [N] -> nats [N], greedy [N], in chunks of logits; log-softmax is float32."""
    rows = max(1, CHUNK_ELEMENTS // model.config.vocab_size)
    nats, greedy = [], []
    for start in range(0, len(targets), rows):
        target = targets[start : start + rows]
        logits = model.lm_head(hidden[start : start + rows]).float()  # [rows, V]
        nats.append(F.cross_entropy(logits, target, reduction="none"))
        # argmax does not promise the lowest of equal ids: none before the target may reach its logit
        own = logits.gather(1, target[:, None])  # [rows, 1]
        first = (logits >= own).int().argmax(dim=1)
        greedy.append((first == target) & (own[:, 0] == logits.amax(dim=1)))
    return torch.cat(nats).cpu().double().numpy(), torch.cat(greedy).cpu().numpy()
