"""Beam search: a prompt's likeliest beginnings go on side by side, and the best of those that end are kept.

The rules are those of transformers' ``generate(num_beams=...)``, whose hypotheses these are.  A step takes
the ``beams * (1 + eos ids)``, at least ``2 * beams``, likeliest one-token continuations of all beams.  Those
that end are hypotheses if they are among the first ``beams``; the first ``beams`` that do not end go on.  A
hypothesis scores ``logprob / length ** length_penalty``, its length counted in new tokens with its end, and
the best ``beams`` are kept.  A prompt is done when these are full and ``early_stopping`` says so:

    True      at once
    False     when the best beam, scored at its present length, is no better than the worst hypothesis
    "never"   the same, but scored at the limit where length_penalty is above 0: nothing better is missed

What is at its limit counts as ended there.  Among equals the lowest beam goes first, then the lowest id, and
what ended first.  Unlike transformers, which fills up with copies where a vocabulary has too few ids to go
on with, no hypothesis is found twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from wordloom.errors import GenerationError
from wordloom.generate.engine import (
    check_finite,
    check_known,
    damaged,
    new_token_limits,
    next_hidden,
)
from wordloom.generate.fast import Accelerated, accelerate, one_thread
from wordloom.models import context_limit
from wordloom.nn.evaluating import evaluating

__all__ = ["Hypothesis", "beam_search"]

STEEPEST = 10.0  # length penalties whose powers float32 holds
FIRST_ROOM = 32  # new tokens: caches are copied at each step, so they begin small and double


class Hypothesis(NamedTuple):
    """A continuation.  ``ids`` are its new tokens, the one that ended it included."""

    ids: list[int]
    score: float
    logprob: float


class _Rules(NamedTuple):
    beams: int
    length_penalty: float
    early_stopping: bool | Literal["never"]
    eos_ids: list[int]
    forced_eos_id: int | None
    forbidden_ids: list[int]
    vocab_size: int | None

    @property
    def candidates(self) -> int:
        """How many continuations a step looks at: so many that ``beams`` of them do not end."""
        return max(2, 1 + len(self.eos_ids)) * self.beams


def beam_search(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    beams: int = 5,
    length_penalty: float = 1.0,
    early_stopping: bool | Literal["never"] = False,
    max_new_tokens: int | None = None,
    n_best: int = 1,
    eos_ids: Iterable[int] = (),
    forced_eos_id: int | None = None,
    forbidden_ids: Iterable[int] = (),
    vocab_size: int | None = None,
    fast: bool = True,
) -> list[list[Hypothesis]]:
    """The ``n_best`` best hypotheses of each prompt, the best first; fewer where no more were found.

    ``model`` is any :class:`wordloom.models.CausalLM`, or a SequenceToSequence with what it has read as
    :class:`wordloom.generate.Conditioned`.  The prompts are one batch, which those that are done leave; each
    finds what it finds alone.  With ``beams=1`` the first end is the end: greedy.  ``max_new_tokens`` None is
    the engine's limit.  ``forced_eos_id`` takes the last place of what reaches its limit, at no cost in
    log-probability; ``forbidden_ids``, and ids from ``vocab_size`` on, are never chosen, and the others keep
    the probability they have beside them (transformers' ``forced_eos_token_id``, ``bad_words_ids`` of one
    token).  ``fast`` as in :func:`wordloom.generate.steps`.

    Raises GenerationError before anything is computed: a setting out of range, a prompt that ``model`` cannot
    go on from, or more tokens than ``max_seq_len`` holds.
    """
    _check(beams, n_best, max_new_tokens, length_penalty, early_stopping)
    rules = _Rules(
        beams=beams,
        length_penalty=length_penalty,
        early_stopping=True if beams == 1 else early_stopping,
        eos_ids=sorted(set(eos_ids)),
        forced_eos_id=forced_eos_id,
        forbidden_ids=sorted(set(forbidden_ids)),
        vocab_size=vocab_size,
    )
    check_known("forbidden_ids", rules.forbidden_ids, model.config.vocab_size)
    check_known("forced_eos_id", [] if forced_eos_id is None else [forced_eos_id], model.config.vocab_size)
    window = context_limit(model.config)
    limits = new_token_limits(model, prompts, max_new_tokens, window=window, advice="shorten the prompt")
    if not prompts:
        return []
    model = accelerate(model) if fast else model
    with evaluating(model), torch.inference_mode():
        return [found[:n_best] for found in _search(model, prompts, limits, rules)]


def _search(
    model: Any, prompts: Sequence[Sequence[int]], limits: list[int], rules: _Rules
) -> list[list[Hypothesis]]:
    device = next(model.parameters()).device
    quick = isinstance(model, Accelerated)
    new_tokens = max(limits) if quick else min(max(limits), FIRST_ROOM)
    cache = model.new_cache(len(prompts), max(map(len, prompts)) + new_tokens)
    hidden = next_hidden(model, prompts, device=device, cache=cache)
    beams = _Beams(limits, rules, device)
    alone = one_thread if quick else nullcontext
    for length in range(1, max(limits) + 1):
        values, ids = _likeliest(model, hidden, beams, alone)
        with alone():
            rows, ids = beams.step(values, ids, length)
            if not len(rows):
                break
            cache.select(rows)
        hidden = model.hidden(ids, cache=cache)[:, -1]
    return beams.found


def _likeliest(
    model: Any, hidden: Tensor, beams: _Beams, alone: Callable[[], AbstractContextManager[None]]
) -> tuple[Tensor, Tensor]:
    """As :meth:`_Beams.likeliest`; by the model's program, where it has one that needs no logits."""
    find, rules = getattr(model, "likeliest", None), beams.rules
    if find is not None:
        given = {"forbidden_ids": rules.forbidden_ids, "vocab_size": rules.vocab_size}
        found: tuple[Tensor, Tensor] | None = find(hidden, rules.candidates, **given)
        if found is not None:
            if bool(found[0].isnan().any()):
                raise damaged()
            return found
    logits = model.lm_head(hidden)
    with alone():
        return beams.likeliest(logits)


class _Beams:
    """A search of B prompts with n beams each: what is found, and what goes on."""

    def __init__(self, limits: list[int], rules: _Rules, device: torch.device) -> None:
        self.rules = rules
        self.limits = limits
        self.found: list[list[Hypothesis]] = [[] for _ in limits]
        self.live = list(range(len(limits)))  # B of them: the prompts that are not done
        self.scores = torch.zeros(len(limits), 1, device=device)  # [B, n]; n is 1 before the first step
        self.history = torch.empty(len(limits), 0, dtype=torch.int64, device=device)  # [B * n, length - 1]
        self.ends = torch.tensor(rules.eos_ids, dtype=torch.int64, device=device)
        self.room = torch.empty(0, 0, device=device)  # for the log-probabilities of a step

    def step(self, values: Tensor, ids: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """``values`` and ``ids`` as :meth:`likeliest` finds them -> the rows that go on, and token number
        ``length`` of each [B * n, 1]."""
        n, rules = self.scores.shape[1], self.rules
        last = torch.tensor([self.limits[prompt] == length for prompt in self.live], device=values.device)
        values, ids = self._forced(last, values, ids)
        totals, parents, ids = self._candidates(values, ids)  # [B, C] each, the best first
        ended = torch.isin(ids, self.ends) | last[:, None]
        parents = parents + n * torch.arange(len(self.live), device=values.device)[:, None]  # rows
        self._keep(ended & (totals > -torch.inf), totals, parents, ids, length)

        order = ended.to(torch.uint8).argsort(dim=1, stable=True)[:, : rules.beams]
        scores = totals.masked_fill(ended, -torch.inf).gather(1, order)  # [B, beams]
        going = self._going(scores[:, 0], length)
        kept = torch.tensor(going, dtype=torch.int64, device=values.device)
        rows = parents.gather(1, order)[kept].flatten()
        ids = ids.gather(1, order)[kept].view(-1, 1)
        self.scores = scores[kept]
        self.live = [self.live[place] for place in going]
        self.history = torch.cat([self.history[rows], ids], dim=1)
        return rows, ids

    def likeliest(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """logits [B * n, V] -> the largest log-probabilities [B * n, k] and their ids, ids ascending; k is as
        many as a step looks at, or as there are."""
        check_finite(logits)
        if len(self.room) < len(logits):
            self.room = torch.empty(logits.shape, device=logits.device)
        logprobs = torch.log_softmax(logits.float(), dim=1, out=self.room[: len(logits)])
        if self.rules.forbidden_ids:
            logprobs[:, self.rules.forbidden_ids] = -torch.inf
        return _top(logprobs[:, : self.rules.vocab_size], self.rules.candidates)

    def _forced(self, last: Tensor, values: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The same, but the forced end alone for prompts that are at their limit, ``last`` [B]."""
        forced, V = self.rules.forced_eos_id, self.rules.vocab_size
        if forced is None or not bool(last.any()):
            return values, ids
        rows = last.repeat_interleave(self.scores.shape[1])
        values, ids = values.clone(), ids.clone()
        values[rows] = -torch.inf
        if V is None or forced < V:
            values[rows, 0], ids[rows, 0] = 0.0, forced
        return values, ids

    def _candidates(self, values: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The likeliest continuations of each prompt: log-probability, beam and id, [B, C], the best first.

        Where there are fewer than C, those left over stand at -inf.
        """
        wanted, k = self.rules.candidates, values.shape[1]
        totals = values.view(*self.scores.shape, k) + self.scores[:, :, None]  # [B, n, k]
        totals, order = totals.flatten(1).sort(dim=1, descending=True, stable=True)  # [B, n * k]
        missing = max(0, wanted - order.shape[1])
        totals = F.pad(totals, (0, missing), value=-torch.inf)[:, :wanted]
        order = F.pad(order, (0, missing))[:, :wanted]
        return totals, order // k, ids.reshape(len(totals), -1).gather(1, order)

    def _keep(self, ended: Tensor, totals: Tensor, parents: Tensor, ids: Tensor, length: int) -> None:
        """Add those of the best ``beams`` candidates that ended to what was found, and leave the best."""
        places, ranks = ended[:, : self.rules.beams].nonzero().unbind(dim=1)
        if not len(places):
            return
        texts = torch.cat([self.history[parents[places, ranks]], ids[places, ranks][:, None]], dim=1).tolist()
        logprobs = totals[places, ranks]
        scores = (logprobs / float(length) ** self.rules.length_penalty).tolist()
        for place, *hypothesis in zip(places.tolist(), texts, scores, logprobs.tolist(), strict=True):
            found = self.found[self.live[place]]
            found.append(Hypothesis(*hypothesis))
            found.sort(key=lambda known: -known.score)  # stable: among equals what came first
            del found[self.rules.beams :]

    def _going(self, best: Tensor, length: int) -> list[int]:
        """The places of the prompts whose beams, the ``best`` [B] of each, may add to what was found."""
        penalty = self.rules.length_penalty
        reach = [length] * len(self.live)
        if self.rules.early_stopping == "never" and penalty > 0:
            reach = [self.limits[prompt] for prompt in self.live]
        best = best / torch.tensor([float(tokens) ** penalty for tokens in reach], device=best.device)
        going = []
        for place, (prompt, hope) in enumerate(zip(self.live, best.tolist(), strict=True)):
            found = self.found[prompt]
            if len(found) < self.rules.beams:
                wanted = hope > -math.inf
            else:
                wanted = self.rules.early_stopping is not True and hope > found[-1].score
            if wanted:
                going.append(place)
        return going


def _top(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row [R, V] and their ids, ids ascending; among equals the lowest ids.

    Ids c, c + C, c + 2C ... make column c of C.  The columns with the k largest maxima hold the k largest:
    one quick pass finds the maxima, and the slow search for the largest is left with C and a few columns.
    """
    V = logits.shape[1]
    if k >= V:
        return logits, torch.arange(V, device=logits.device).expand_as(logits)
    wanted = k + 1  # one more shows whether an equal of the last one taken is left out
    # topk takes longer over fewer than 64 * k: it sorts otherwise then (measured on Zen 4: 7 ns each, not 2)
    height = min(math.isqrt(V // (4 * wanted)), V // (64 * wanted))
    if height < 4:
        values, ids = logits.topk(wanted, dim=1)
    else:
        C = V // height
        columns = logits[:, : height * C].view(-1, height, C).amax(dim=1).topk(wanted, dim=1).indices
        down = torch.arange(0, height * C, C, device=logits.device)
        inside = (columns[:, :, None] + down).flatten(1)  # [R, wanted * height]
        rest = torch.arange(height * C, V, device=logits.device).expand(len(logits), -1)
        inside = torch.cat([inside, rest], dim=1)
        values, places = logits.gather(1, inside).topk(wanted, dim=1)
        ids = inside.gather(1, places)
    tied = (values[:, k - 1] == values[:, k]) & (values[:, k] > -torch.inf)
    values, ids = values[:, :k], ids[:, :k]
    if bool(tied.any()):
        ids[tied] = _lowest(logits[tied], values[tied], ids[tied])
    ids = ids.sort(dim=1).values
    return logits.gather(1, ids), ids


def _lowest(logits: Tensor, values: Tensor, ids: Tensor) -> Tensor:
    """``ids`` of the k largest ``values`` [R, k], with the lowest of all ids that equal the least of them."""
    least, V = values[:, -1:], logits.shape[1]
    every = torch.arange(V, device=logits.device)
    equal = torch.where(logits == least, every, V).topk(values.shape[1], dim=1, largest=False).values
    above = (values > least).sum(dim=1, keepdim=True)  # these come first, and stay
    place = torch.arange(values.shape[1], device=logits.device) - above
    return torch.where(place < 0, ids, equal.gather(1, place.clamp(min=0)))


def _check(
    beams: object, n_best: object, max_new_tokens: object, length_penalty: object, early_stopping: object
) -> None:
    for name, value in (("beams", beams), ("n_best", n_best), ("max_new_tokens", max_new_tokens)):
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        if not whole and not (name == "max_new_tokens" and value is None):
            raise GenerationError(f"{name} is a whole number of at least 1, not {value!r}")
    if n_best > beams:  # type: ignore[operator]
        raise GenerationError(f"n_best {n_best} of {beams} beams; ask for fewer, or search with more beams")
    number = isinstance(length_penalty, int | float) and not isinstance(length_penalty, bool)
    if not number or not -STEEPEST <= length_penalty <= STEEPEST:  # type: ignore[operator]
        raise GenerationError(
            f"length_penalty is a number from {-STEEPEST:g} to {STEEPEST:g} (0 is off, above 0 favours long "
            f"hypotheses), not {length_penalty!r}"
        )
    if not isinstance(early_stopping, bool) and early_stopping != "never":
        raise GenerationError(f"early_stopping is True, False or 'never', not {early_stopping!r}")
