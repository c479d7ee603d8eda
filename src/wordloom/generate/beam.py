"""Beam search: continue the likeliest beginnings of each prompt together, and keep the best that end.

The rules are those of transformers' ``generate(num_beams=...)`` and give its hypotheses.  A step takes the
``beams * (1 + eos ids)``, at least ``2 * beams``, likeliest one-token continuations of all beams.
Continuations that end are hypotheses if they are among the first ``beams``.  The first ``beams``
continuations that do not end are the next beams.  A hypothesis scores ``logprob / length ** length_penalty``,
its length counted in new tokens with its end, and the best ``beams`` are kept.  A prompt is done when it has
that many hypotheses and ``early_stopping`` agrees:

    True      at once
    False     when the best beam, scored at its present length, is no better than the worst hypothesis
    "never"   the same, but scored at the limit if length_penalty is above 0, so that nothing better is missed

A beam at its limit counts as ended.  Ties go to the lowest beam, then to the lowest id, and to the
hypothesis that ended first.  Where a vocabulary has too few ids, transformers fills up with copies; here no
hypothesis is found twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from wordloom.errors import GenerationError
from wordloom.generate.decoder import Decoder
from wordloom.generate.fast import Accelerated
from wordloom.generate.prompts import check_finite, check_known, new_token_limits, not_finite
from wordloom.generate.sampling import whole_number
from wordloom.models import generation_limit
from wordloom.nn.evaluating import evaluating

STEEPEST = 10.0  # length penalties whose powers float32 holds
FIRST_ROOM = 32  # new tokens: the modules' caches are copied at each step, so they begin small and double


class Hypothesis(NamedTuple):
    """A continuation.  ``ids`` are its new tokens, with the token that ended it."""

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
        """The number of continuations in a step, of which at least ``beams`` do not end."""
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
    """Return the ``n_best`` best hypotheses of each prompt, the best first; fewer where no more were found.

    The prompts are one batch, which a prompt leaves when it is done; each gets the hypotheses that it gets
    alone.

    Args:
        model: Any :class:`wordloom.models.CausalLM`, or a SequenceToSequence with its sources as
            :class:`wordloom.generate.Conditioned`.
        prompts: Lists of ids.
        beams: The number of beams.  With one beam the search ends at the first end: greedy decoding.
        length_penalty: 0 is off; above 0 favours long hypotheses.
        early_stopping: When a prompt is done; see the module docstring.
        max_new_tokens: None: the engine's limit.
        n_best: The number of hypotheses returned, up to ``beams``.
        eos_ids: Ids that end a hypothesis.
        forced_eos_id: The last token of a hypothesis that reaches its limit, whose log-probability does not
            count (transformers' ``forced_eos_token_id``).
        forbidden_ids: Ids that are never chosen; the others keep their probability (transformers'
            ``bad_words_ids`` of one token).
        vocab_size: Ids from here on are never chosen.
        fast: False runs the model's modules where a compiled program could.

    Raises:
        GenerationError: Before anything is computed: a setting out of range, a prompt that ``model`` cannot
            continue, or more tokens than ``max_seq_len`` holds.
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
    window = generation_limit(model.config)
    limits = new_token_limits(model, prompts, max_new_tokens, window=window, advice="shorten the prompt")
    if not prompts:
        return []
    with evaluating(model), torch.inference_mode():
        return [found[:n_best] for found in _search(Decoder(model, fast=fast), prompts, limits, rules)]


def _search(
    decoder: Decoder, prompts: Sequence[Sequence[int]], limits: list[int], rules: _Rules
) -> list[list[Hypothesis]]:
    new_tokens = max(limits)
    if not isinstance(decoder.model, Accelerated):
        new_tokens = min(new_tokens, FIRST_ROOM)
    decoder.admit(prompts, new_tokens=new_tokens)
    beams = _Beams(limits, rules, decoder.device)
    for length in range(1, max(limits) + 1):
        values, ids = _likeliest(decoder, beams)
        with decoder.between_steps():
            rows, ids = beams.step(values, ids, decoder.rows, length)
            if not len(rows):
                break
            decoder.select(rows.tolist())
        decoder.append(ids[:, 0].tolist())
    return beams.found


def _likeliest(decoder: Decoder, beams: _Beams) -> tuple[Tensor, Tensor]:
    """See :meth:`_Beams.likeliest`; a model may have a program that computes it without logits."""
    hidden, model, rules = decoder.hidden(), decoder.model, beams.rules
    program = getattr(model, "likeliest", None)
    if program is not None:
        never = {"forbidden_ids": rules.forbidden_ids, "vocab_size": rules.vocab_size}
        found: tuple[Tensor, Tensor] | None = program(hidden, rules.candidates, **never)
        if found is not None:
            if np.isnan(found[0].numpy()).any():  # a tenth of PyTorch's time for these few numbers
                raise not_finite()
            return found
    logits = model.lm_head(hidden)
    with decoder.between_steps():
        return beams.likeliest(logits)


class _Beams:
    """A search of B prompts with n beams each: the hypotheses found and the live beams."""

    def __init__(self, limits: list[int], rules: _Rules, device: torch.device) -> None:
        self.rules = rules
        self.limits = limits
        self.found: list[list[Hypothesis]] = [[] for _ in limits]
        self.live = list(range(len(limits)))  # B of them: the prompts that are not done
        self.scores = torch.zeros(len(limits), 1, device=device)  # [B, n]; n is 1 before the first step
        self.ends = torch.tensor(rules.eos_ids, dtype=torch.int64, device=device)
        self.buffer = torch.empty(0, 0, device=device)  # for the log-probabilities of a step

    def step(self, values: Tensor, ids: Tensor, texts: list[list[int]], length: int) -> tuple[Tensor, Tensor]:
        """Take one step from the ids ``texts`` of the live rows, B * n lists.

        ``values`` and ``ids`` are those of :meth:`likeliest`.  Returns the rows to continue [B * n], and
        token number ``length`` of each [B * n, 1].
        """
        n, rules = self.scores.shape[1], self.rules
        last = torch.tensor([self.limits[prompt] == length for prompt in self.live], device=values.device)
        values, ids = self._forced(last, values, ids)
        totals, parents, ids = self._candidates(values, ids)  # [B, C] each, the best first
        ended = torch.isin(ids, self.ends) | last[:, None]
        parents = parents + n * torch.arange(len(self.live), device=values.device)[:, None]  # rows
        self._keep(ended & (totals > -torch.inf), totals, texts, parents, ids, length)

        order = ended.to(torch.uint8).argsort(dim=1, stable=True)[:, : rules.beams]
        scores = totals.masked_fill(ended, -torch.inf).gather(1, order)  # [B, beams]
        going = self._going(scores[:, 0], length)
        kept = torch.tensor(going, dtype=torch.int64, device=values.device)
        rows = parents.gather(1, order)[kept].flatten()
        ids = ids.gather(1, order)[kept].view(-1, 1)
        self.scores = scores[kept]
        self.live = [self.live[place] for place in going]
        return rows, ids

    def likeliest(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """logits [B * n, V] -> the k largest log-probabilities [B * n, k] and their ids, in ascending order.

        k is the number of candidates of a step, or V if that is smaller.
        """
        check_finite(logits)
        if len(self.buffer) < len(logits):
            self.buffer = torch.empty(logits.shape, device=logits.device)
        logprobs = torch.log_softmax(logits.float(), dim=1, out=self.buffer[: len(logits)])
        if self.rules.forbidden_ids:
            logprobs[:, self.rules.forbidden_ids] = -torch.inf
        return _top(logprobs[:, : self.rules.vocab_size], self.rules.candidates)

    def _forced(self, last: Tensor, values: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return both with the forced end alone for prompts that are at their limit, ``last`` [B]."""
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
        """Return the C likeliest continuations of each prompt: log-probability, beam and id, [B, C].

        The best come first.  Where there are fewer than C, the last ones have -inf.
        """
        wanted, k = self.rules.candidates, values.shape[1]
        totals = values.view(*self.scores.shape, k) + self.scores[:, :, None]  # [B, n, k]
        totals, order = totals.flatten(1).sort(dim=1, descending=True, stable=True)  # [B, n * k]
        if (missing := wanted - order.shape[1]) > 0:
            totals, order = F.pad(totals, (0, missing), value=-torch.inf), F.pad(order, (0, missing))
        totals, order = totals[:, :wanted], order[:, :wanted]
        return totals, order // k, ids.reshape(len(totals), -1).gather(1, order)

    def _keep(
        self, ended: Tensor, totals: Tensor, texts: list[list[int]], parents: Tensor, ids: Tensor, length: int
    ) -> None:
        """Add the candidates that ended, of the best ``beams``, to the hypotheses; keep the best ones."""
        places, ranks = ended[:, : self.rules.beams].nonzero().unbind(dim=1)
        if not len(places):
            return
        parent_texts = [texts[row] for row in parents[places, ranks].tolist()]
        last = ids[places, ranks].tolist()
        new = [
            [*text[len(text) - length + 1 :], token] for text, token in zip(parent_texts, last, strict=True)
        ]
        logprobs = totals[places, ranks]
        scores = (logprobs / float(length) ** self.rules.length_penalty).tolist()
        for place, *hypothesis in zip(places.tolist(), new, scores, logprobs.tolist(), strict=True):
            found = self.found[self.live[place]]
            found.append(Hypothesis(*hypothesis))
            found.sort(key=lambda known: -known.score)  # stable: of equals, the first found stays
            del found[self.rules.beams :]

    def _going(self, best: Tensor, length: int) -> list[int]:
        """Return the places of the prompts whose ``best`` beam [B] may still lead to a better hypothesis."""
        penalty = self.rules.length_penalty
        if self.rules.early_stopping == "never" and penalty > 0:
            limits = [float(self.limits[prompt]) ** penalty for prompt in self.live]
            best = best / torch.tensor(limits, device=best.device)
        else:
            best = best / float(length) ** penalty
        going = []
        for place, (prompt, score) in enumerate(zip(self.live, best.tolist(), strict=True)):
            found = self.found[prompt]
            if len(found) < self.rules.beams:
                wanted = score > -math.inf
            else:
                wanted = self.rules.early_stopping is not True and score > found[-1].score
            if wanted:
                going.append(place)
        return going


def _top(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest of each row [R, V] and their ids, in ascending order; of equals, the lowest ids.

    Ids c, c + C, c + 2C ... make column c of C.  The columns with the k largest maxima contain the k largest
    logits.  One fast pass computes the maxima, so that the slow search sees only C maxima and a few columns.
    """
    V = logits.shape[1]
    if k >= V:
        return logits, torch.arange(V, device=logits.device).expand_as(logits)
    wanted = k + 1  # one more shows whether an equal of the last one is left out
    # below 64 * k elements topk uses another sort, which is slower (on Zen 4: 7 ns an element, not 2)
    height = min(math.isqrt(V // (4 * wanted)), V // (64 * wanted))
    if height < 4:
        values, ids = logits.topk(wanted, dim=1)
    else:
        C = V // height
        columns = logits[:, : height * C].view(-1, height, C).amax(dim=1).topk(wanted, dim=1).indices
        down = torch.arange(0, height * C, C, device=logits.device)
        inside = (columns[:, :, None] + down).flatten(1)  # [R, wanted * height]
        others = torch.arange(height * C, V, device=logits.device).expand(len(logits), -1)
        inside = torch.cat([inside, others], dim=1)
        values, places = logits.gather(1, inside).topk(wanted, dim=1)
        ids = inside.gather(1, places)
    tied = (values[:, k - 1] == values[:, k]) & (values[:, k] > -torch.inf)
    values, ids = values[:, :k], ids[:, :k]
    if bool(tied.any()):
        ids[tied] = _lowest(logits[tied], values[tied], ids[tied])
    ids = ids.sort(dim=1).values
    return logits.gather(1, ids), ids


def _lowest(logits: Tensor, values: Tensor, ids: Tensor) -> Tensor:
    """Return the ids of the k largest ``values`` [R, k], with the lowest of all ids that equal the least."""
    least, V = values[:, -1:], logits.shape[1]
    every = torch.arange(V, device=logits.device)
    equal = torch.where(logits == least, every, V).topk(values.shape[1], dim=1, largest=False).values
    above = (values > least).sum(dim=1, keepdim=True)  # these stay
    place = torch.arange(values.shape[1], device=logits.device) - above
    return torch.where(place < 0, ids, equal.gather(1, place.clamp(min=0)))


def _check(
    beams: object, n_best: object, max_new_tokens: object, length_penalty: object, early_stopping: object
) -> None:
    whole_number("beams", beams, least=1)
    whole_number("n_best", n_best, least=1)
    whole_number("max_new_tokens", max_new_tokens, least=1, optional=True)
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
