"""The engine: continue rows of ids by sampling, with any causal language model.

Rows that finish leave the batch, and new rows may join it between two steps.  The draws of a row are keyed
by (seed, row), so they do not depend on the other rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from wordloom.errors import GenerationError
from wordloom.generate.decoder import Begun, Decoder
from wordloom.generate.prompts import check_known, new_token_limits, not_finite, token_ids
from wordloom.generate.sampling import Sampling, next_ids, row_generator, seed_of
from wordloom.generate.speculation import Drafter, DraftLength, NewDrafter
from wordloom.models import generation_limit
from wordloom.nn.fused import log_sum_exp
from wordloom.nn.memory import Memory

FinishReason = Literal["length", "eos", "stop"]


class Step(NamedTuple):
    """One drawn token of one row.  ``logprob`` is the model's own log-probability, before every filter."""

    row: int
    id: int
    logprob: float
    finish_reason: FinishReason | None


class Generation(NamedTuple):
    """The continuation of one row.  ``ids`` are the new tokens, with the token that ended the row."""

    row: int
    ids: list[int]
    finish_reason: FinishReason
    logprobs: list[float]
    seed: int


class RowOptions(TypedDict, total=False):
    """Options of :func:`steps`, :func:`generate` and :meth:`Engine.admit` for the rows of a call.

    Attributes:
        eos_ids: Ids that end a row with reason "eos".
        forbidden_ids: Ids that are never drawn.
        vocab_size: Ids from here on are never drawn, where a head is wider than its tokenizer.
        seed: The seed where ``sampling.seed`` is None.
        first_row: The number of the first row; by default the number after the last row of the engine.
        keys: Key the draws of each row, instead of its number.
        fit_new_tokens: Lower ``max_new_tokens`` to the room that ``max_seq_len`` leaves, instead of raising
            an error.
        stopped: Called with (row, id) after each token; a true result ends the row with reason "stop".  It
            has to find the strings of ``sampling.stop``, as :func:`wordloom.generate.text.stream` does.
    """

    eos_ids: Iterable[int]
    forbidden_ids: Iterable[int]
    vocab_size: int | None
    seed: int | None
    first_row: int
    keys: Sequence[int] | None
    fit_new_tokens: bool
    stopped: Callable[[int, int], bool] | None


def generate(
    model: Any,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling | None = None,
    *,
    use_cache: bool = True,
    fast: bool = True,
    speculate: NewDrafter | None = None,
    **options: Unpack[RowOptions],
) -> list[Generation]:
    """Continue each prompt; return ``len(prompts) * sampling.samples`` results, a prompt's samples together.

    Arguments and errors are those of :func:`steps`.
    """
    sampling = sampling or Sampling()
    options["seed"] = seed = seed_of(sampling, options.get("seed"))
    rows: dict[int, list[Step]] = {}
    drawn = steps(model, prompts, sampling, use_cache=use_cache, fast=fast, speculate=speculate, **options)
    for step in drawn:
        rows.setdefault(step.row, []).append(step)
    done = []
    for row, tokens in sorted(rows.items()):
        reason = tokens[-1].finish_reason
        assert reason is not None
        ids, logprobs = [token.id for token in tokens], [token.logprob for token in tokens]
        done.append(Generation(row, ids, reason, logprobs, seed))
    return done


class _Request(NamedTuple):
    """The settings that rows admitted together share."""

    sampling: Sampling
    ends: dict[int, FinishReason]
    forbidden: Tensor | None  # ids
    vocab_size: int | None
    stopped: Callable[[int, int], bool] | None


class _Row(NamedTuple):
    number: int
    prompt: int  # its number of tokens
    limit: int  # of tokens in all, the prompt's included
    generator: np.random.Generator
    request: _Request
    drafter: Drafter | None
    length: DraftLength


class Engine:
    """Rows that one model continues together, each with the settings of its request.

    Requests join between two steps, and rows leave when they end::

        engine = Engine(model)
        engine.admit([[1, 2, 3]], Sampling(temperature=0))
        while engine.live:
            for step in engine.step():
                ...
            if a_request_arrived:
                engine.admit([[4, 5]], Sampling(seed=7))

    A row gets the tokens that it would get alone, whatever joins or leaves.  ``use_cache`` and ``fast`` are
    those of :class:`~wordloom.generate.Decoder`.
    """

    def __init__(
        self,
        model: Any,
        *,
        use_cache: bool = True,
        fast: bool = True,
        speculate: NewDrafter | None = None,
    ) -> None:
        """``speculate`` makes the drafter of each row: see :mod:`wordloom.generate.speculation`."""
        self.model = model
        self.speculate = speculate
        self.decoder = Decoder(model, use_cache=use_cache, fast=fast)
        self._rows: list[_Row] = []  # as in the decoder
        self._next_number = 0

    @property
    def live(self) -> list[int]:
        """The numbers of the rows that have not ended."""
        return [row.number for row in self._rows]

    def admit(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling | None = None,
        *,
        memory: Memory | None = None,
        begun: Begun | None = None,
        **options: Unpack[RowOptions],
    ) -> list[int]:
        """Add ``sampling.samples`` rows for each prompt; return the numbers of the rows.

        ``memory`` holds the prompts' sources and ``begun`` the beginning of the only prompt, as in
        :meth:`Decoder.admit`.  Other arguments and errors are those of :func:`steps`.
        """
        sampling = sampling or Sampling()
        prompts = [token_ids(prompt, f"prompt {number}") for number, prompt in enumerate(prompts)]
        request = self._request(sampling, options)
        model = self.model if memory is None else self.decoder.reading(memory)
        limits = new_token_limits(
            model,
            prompts,
            sampling.max_new_tokens,
            window=None if sampling.past == "slide" else generation_limit(model.config),
            advice='shorten the prompt, or choose past="slide" (--past slide)',
            fit=options.get("fit_new_tokens", False),
        )
        seed, keys = seed_of(sampling, options.get("seed")), options.get("keys")
        first = options.get("first_row", self._next_number)
        numbers = range(first, first + len(prompts) * sampling.samples)
        self._next_number = max(self._next_number, numbers.stop)
        for number, key in zip(numbers, numbers if keys is None else keys, strict=True):
            prompt = (number - first) // sampling.samples
            limit = len(prompts[prompt]) + limits[prompt]
            drafter = None if self.speculate is None else self.speculate()
            draws = row_generator(seed, key)
            length = len(prompts[prompt])
            self._rows.append(_Row(number, length, limit, draws, request, drafter, DraftLength()))
        room = max(limits, default=0)
        self.decoder.admit(prompts, new_tokens=room, copies=sampling.samples, memory=memory, begun=begun)
        return list(numbers)

    def _request(self, sampling: Sampling, options: RowOptions) -> _Request:
        vocab_size, stopped = options.get("vocab_size"), options.get("stopped")
        if sampling.stop and stopped is None:
            raise GenerationError(
                f"stop {sampling.stop[0]!r} is text, which token ids alone do not show: it needs a "
                "tokenizer; leave it out, of generation_config.json too, or end at ids (stop_ids, --stop-id)"
            )
        V = self.model.config.vocab_size if vocab_size is None else vocab_size
        for token in sampling.stop_ids:
            if token >= V:
                raise GenerationError(f"stop_ids (--stop-id) has {token}, and the vocabulary is 0 to {V - 1}")
        forbidden = sorted(set(options.get("forbidden_ids", ())))
        check_known("forbidden_ids", forbidden, self.model.config.vocab_size)
        ends: dict[int, FinishReason] = dict.fromkeys(options.get("eos_ids", ()), "eos")
        ends.update(dict.fromkeys(sampling.stop_ids, "stop"))
        banned = torch.tensor(forbidden, device=self.decoder.device) if forbidden else None
        return _Request(sampling, ends, banned, vocab_size, stopped)

    def evict(self, rows: Collection[int]) -> None:
        """Remove the rows of these numbers before they end."""
        self._keep([place for place, row in enumerate(self._rows) if row.number not in rows])

    def step(self) -> list[Step]:
        """Draw one token for every live row, or several where drafts are right; rows that end leave.

        Raises GenerationError if the model's logits are not finite.
        """
        drafts = self._drafts()
        if any(drafts):
            logits = self.decoder.step_with_drafts(drafts)  # [B, K + 1, V]
        else:
            logits = self.decoder.step()[:, None]  # [B, 1, V]
        made: list[Step] = []
        going: list[int] = []
        drawing = list(range(len(self._rows)))
        accepted = [0] * len(drafts)
        with self.decoder.between_steps():
            for k in range(logits.shape[1]):
                drawn = self._draw_at(logits[:, k], drawing)
                made += drawn
                ended = {step.row for step in drawn if step.finish_reason is not None}
                right = []
                for place, step in zip(drawing, drawn, strict=True):
                    if step.row in ended:
                        continue
                    if k < len(drafts[place]) and drafts[place][k] == step.id:
                        accepted[place] += 1
                        right.append(place)
                    else:
                        going.append(place)
                drawing = right
                if not drawing:
                    break
        if any(drafts):
            self.decoder.forget_drafts()
            for row, n, draft in zip(self._rows, accepted, drafts, strict=True):
                if draft:
                    row.length.update(n, len(draft))
        if len(going) < len(self._rows):
            self._keep(sorted(going))
        return made

    def _drafts(self) -> list[list[int]]:
        """Return the tokens that each row's drafter expects next; none where no step can check them."""
        drafts: list[list[int]] = [[] for _ in self._rows]
        most = 0 if self.speculate is None else self.decoder.most_drafts()
        window = self.decoder.window
        if window is not None and len(self._rows) > 1 and any(row.limit > window for row in self._rows):
            most = 0  # once a row slides, all are computed by the modules, and drafts would change when
        if most:
            for place, (row, ids) in enumerate(zip(self._rows, self.decoder.rows, strict=True)):
                # the last token of a row is drawn and never read, so it needs no draft
                length = min(most, row.length.length, row.limit - len(ids) - 1)
                if row.drafter is not None and length > 0:
                    drafts[place] = row.drafter.draft(ids, length)
        return drafts

    def _draw_at(self, logits: Tensor, places: list[int]) -> list[Step]:
        """Draw a token for each of the rows at ``places`` by logits [B, V] of all rows."""
        if len(places) < len(logits):
            logits = logits[torch.tensor(places, device=logits.device)]
        normalizers = log_sum_exp(logits)  # [B], finite where the largest logit is
        if not all(map(math.isfinite, normalizers.tolist())):
            raise not_finite()
        ids = self._draw(logits, places)  # [B]
        logprobs = logits.gather(1, ids[:, None])[:, 0] - normalizers
        drawn: list[int] = ids.tolist()
        self.decoder.append(drawn, places)
        made = []
        for place, token, logprob in zip(places, drawn, logprobs.tolist(), strict=True):
            row, text = self._rows[place], self.decoder.rows[place]
            reason = row.request.ends.get(token)
            if reason is None and row.request.stopped is not None and row.request.stopped(row.number, token):
                reason = "stop"
            if reason is None and len(text) == row.limit:
                reason = "length"
            made.append(Step(row.number, token, logprob, reason))
        return made

    def _keep(self, places: list[int]) -> None:
        self._rows = [self._rows[place] for place in places]
        self.decoder.select(places)

    def _draw(self, logits: Tensor, places: list[int]) -> Tensor:
        """logits [B, V] of the rows at ``places`` -> their next ids [B], by each one's request."""
        first = self._rows[places[0]].request
        if all(self._rows[place].request is first for place in places):
            return self._draw_alike(logits, places)
        ids = torch.empty(len(places), dtype=torch.int64, device=logits.device)
        by_request: dict[int, list[int]] = {}
        for i, place in enumerate(places):
            by_request.setdefault(id(self._rows[place].request), []).append(i)
        for alike in by_request.values():
            index = torch.tensor(alike, device=logits.device)
            ids[index] = self._draw_alike(logits[index], [places[i] for i in alike])
        return ids

    def _draw_alike(self, logits: Tensor, places: Sequence[int]) -> Tensor:
        """logits of the rows at these places, which belong to one request -> their next ids."""
        request = self._rows[places[0]].request
        if request.forbidden is not None:
            logits = logits.index_fill(1, request.forbidden, -torch.inf)
        texts = [self.decoder.rows[place] for place in places]
        generators = [self._rows[place].generator for place in places]
        starts = [self._rows[place].prompt for place in places]
        return next_ids(logits[:, : request.vocab_size], texts, request.sampling, generators, starts)


def steps(
    model: Any,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling | None = None,
    *,
    use_cache: bool = True,
    fast: bool = True,
    speculate: NewDrafter | None = None,
    **options: Unpack[RowOptions],
) -> Iterator[Step]:
    """Yield tokens as they are drawn, every live row's token of a step before the next step.

    Sample s of prompt p is row ``first_row + p * samples + s``: a lone prompt is row 0, and gets with
    ``first_row=r`` what row r of a batch gets.

    Args:
        model: Any :class:`wordloom.models.CausalLM`, or a SequenceToSequence with its sources as
            :class:`wordloom.generate.Conditioned`.
        prompts: Lists of ids.
        sampling: The settings; by default those of :class:`Sampling`.
        use_cache: False recomputes all tokens in each step; the oracle of the cache.
        fast: False runs the model's modules where a compiled program could; the oracle of the programs.
        speculate: Makes a drafter for each row, whose guesses change the speed and nothing else; see
            :mod:`wordloom.generate.speculation`.  Models without a compiled program ignore them.
        options: See :class:`RowOptions`.

    Raises:
        GenerationError: Before anything is computed: an empty prompt, an id outside the vocabulary (also in
            ``stop_ids``), stop strings without ``stopped``, or a prompt and ``max_new_tokens`` that exceed
            ``max_seq_len`` with ``past="error"``.
    """
    engine = Engine(model, use_cache=use_cache, fast=fast, speculate=speculate)
    engine.admit(prompts, sampling, **options)
    return _until_all_end(engine)


def _until_all_end(engine: Engine) -> Iterator[Step]:
    while engine.live:
        yield from engine.step()
