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

from wordloom.evaluate.forward import forward_passes
from wordloom.models import context_limit
from wordloom.nn.fused import token_scores

# Elements of the logits computed at once: 16 Mi are 64 MiB in float32, whatever the vocabulary.
CHUNK_ELEMENTS = 1 << 24
# Batches whose stretches are sorted by length together, which keeps both padding and memory small.
POOL_BATCHES = 16
BATCH_TOKENS = 8192

Ids = NDArray[np.integer[Any]]
Key = TypeVar("Key")


class Stretch(NamedTuple):
    """``inputs`` [n] for the model, and the ``targets`` [m] of its last m predictions, m <= n."""

    inputs: Ids
    targets: Ids


class Likelihood(NamedTuple):
    """The likelihood of m targets."""

    nats: NDArray[np.float64]  # [m], minus the log-probability of each target
    # [m], whether each is the most likely token (of equal ones, the lowest id is); None if nobody asked
    greedy: NDArray[np.bool_] | None


def likelihoods(
    model: Any, stretches: Iterable[tuple[Key, Stretch]], *, batch_size: int, greedy: bool = False
) -> Iterator[tuple[Key, Likelihood]]:
    """Yield the likelihood of every stretch, in order, ``batch_size`` stretches at a time.

    ``greedy`` asks for :attr:`Likelihood.greedy`, which takes longer than the log-probability.
    Stretches are taken from the iterator as they are needed. Batch size and neighbours change a result only
    by rounding, because rows are padded on the right, which a causal model does not see.
    """
    waiting = iter(stretches)
    while pool := list(islice(waiting, POOL_BATCHES * batch_size)):
        by_length = sorted(range(len(pool)), key=lambda i: len(pool[i][1].inputs), reverse=True)
        results: dict[int, Likelihood] = {}
        for start in range(0, len(pool), batch_size):
            rows = by_length[start : start + batch_size]
            found = _batch_likelihoods(model, [pool[i][1] for i in rows], greedy)
            results.update(zip(rows, found, strict=True))
        yield from ((key, results[i]) for i, (key, _) in enumerate(pool))


class _Batch(NamedTuple):
    """Padded inputs [B, T], the positions ``scored`` [B, T], and the targets [N] of these, row by row."""

    inputs: Tensor
    scored: Tensor
    targets: Tensor

    @classmethod
    def of(cls, stretches: list[Stretch]) -> _Batch:
        B, T = len(stretches), max(len(s.inputs) for s in stretches)
        inputs = np.zeros((B, T), dtype=np.int64)
        scored = np.zeros((B, T), dtype=bool)
        for row, stretch in enumerate(stretches):
            n = len(stretch.inputs)
            inputs[row, :n] = stretch.inputs
            scored[row, n - len(stretch.targets) : n] = True
        targets = np.concatenate([s.targets for s in stretches]).astype(np.int64)
        return cls(*map(torch.from_numpy, (inputs, scored, targets)))


def _batch_likelihoods(model: Any, stretches: list[Stretch], greedy: bool) -> list[Likelihood]:
    """Return the likelihood of each stretch, from one batch."""
    counts = [len(s.targets) for s in stretches]
    if not sum(counts):
        return [Likelihood(np.empty(0), np.empty(0, dtype=bool) if greedy else None) for _ in stretches]

    def predict(batch: _Batch) -> Likelihood:
        B, T = batch.inputs.shape
        width = T if context_limit(model.config) is not None else max(1, BATCH_TOKENS // B)
        if width < T:
            return _predict_in_pieces(model, batch, width, greedy)
        hidden = model.hidden(batch.inputs)[batch.scored]
        return _predict(model, hidden, batch.targets, greedy)

    ((_, every),) = forward_passes(model, [_Batch.of(stretches)], predict)
    ends = np.cumsum(counts)[:-1]
    nats = np.split(every.nats, ends)
    most_likely = [None] * len(nats) if every.greedy is None else np.split(every.greedy, ends)
    return [Likelihood(*pair) for pair in zip(nats, most_likely, strict=True)]


def _predict_in_pieces(model: Any, batch: _Batch, width: int, greedy: bool) -> Likelihood:
    """Return the likelihood of the targets of long texts, reading ``width`` tokens of each at a time.

    The rows are in descending order of length; those that have ended are read no further.
    """
    tokens, scored = batch.inputs, batch.scored  # [B, T]
    B, T = tokens.shape
    targets = torch.zeros_like(tokens)
    targets[scored] = batch.targets
    nats = np.zeros((B, T))
    most_likely = np.zeros((B, T), dtype=bool)
    on_cpu = scored.cpu().numpy()
    cache = model.new_cache(B, T)
    for start in range(0, T, width):
        unfinished = scored[:, start:].any(dim=1).nonzero()
        if not len(unfinished):  # the longest rows have no targets
            break
        rows = int(unfinished.max()) + 1
        if rows < cache.n_rows:
            cache.select(torch.arange(rows, device=tokens.device))
        piece = (slice(rows), slice(start, start + width))
        hidden = model.hidden(tokens[piece], cache=cache)  # [rows, width, D]
        here = scored[piece]
        if not here.any():
            continue
        found = _predict(model, hidden[here], targets[piece][here], greedy)
        nats[piece][on_cpu[piece]] = found.nats
        if found.greedy is not None:
            most_likely[piece][on_cpu[piece]] = found.greedy
    return Likelihood(nats[on_cpu], most_likely[on_cpu] if greedy else None)


def _predict(model: Any, hidden: Tensor, targets: Tensor, greedy: bool) -> Likelihood:
    """Return the likelihood of targets [N] for hidden [N, D].

    The logits are computed in chunks, and their softmax in float32.
    """
    rows = max(1, CHUNK_ELEMENTS // model.config.vocab_size)
    nats, most_likely = [], []
    for start in range(0, len(targets), rows):
        target = targets[start : start + rows]
        logits = model.lm_head(hidden[start : start + rows]).float()  # [rows, V]
        nats.append(F.cross_entropy(logits, target, reduction="none"))
        if greedy:
            most_likely.append(_are_first_of_highest(logits, target))
    found = torch.cat(nats).cpu().double().numpy()
    return Likelihood(found, torch.cat(most_likely).cpu().numpy() if greedy else None)


def _are_first_of_highest(logits: Tensor, targets: Tensor) -> Tensor:
    """Return whether the logit of each target [N] is the highest of its row, and the first of equal ones."""
    *_, highest = token_scores(logits, targets, targets)  # [N]
    rows = highest.nonzero()[:, 0]
    some = logits[rows]
    equal = some == some.gather(1, targets[rows, None])
    before = torch.arange(logits.shape[1], device=logits.device) < targets[rows, None]
    found = highest.clone()
    found[rows] = ~(equal & before).any(dim=1)
    return found
