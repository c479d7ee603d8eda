"""The engine: ids in, ids out.  One prefill and one decode loop for every causal language model.

Prompts of unequal length are padded on the left and each row computes what it would alone; rows that
finish leave the batch.  What a row draws is keyed by (seed, row), so it does not depend on the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from wordloom.errors import GenerationError
from wordloom.generate.conditioned import Conditioned
from wordloom.generate.fast import Accelerated, accelerate, one_thread
from wordloom.generate.sampling import DEFAULT_NEW_TOKENS, Sampling, new_seed, next_ids, row_generator
from wordloom.generate.token_ids import token_ids
from wordloom.models import context_limit
from wordloom.nn.cache import Cache
from wordloom.nn.evaluating import evaluating

__all__ = ["FinishReason", "Generation", "Step", "generate", "next_logits", "steps"]

FinishReason = Literal["length", "eos", "stop"]

PREFILL_TOKENS = 4096  # longer prompts pass in pieces, which bounds activations and masks


class Step(NamedTuple):
    """One token of one row, as it was drawn.  ``logprob`` is the model's own: before every filter."""

    row: int
    id: int
    logprob: float
    finish_reason: FinishReason | None


class Generation(NamedTuple):
    """What one row became.  ``ids`` are the new tokens, the one that ended the row included."""

    row: int
    ids: list[int]
    finish_reason: FinishReason
    logprobs: list[float]
    seed: int


def generate(
    model: Any,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling | None = None,
    *,
    eos_ids: Iterable[int] = (),
    forbidden_ids: Iterable[int] = (),
    vocab_size: int | None = None,
    first_row: int = 0,
    keys: Sequence[int] | None = None,
    use_cache: bool = True,
    fast: bool = True,
) -> list[Generation]:
    """Continue each prompt; ``len(prompts) * sampling.samples`` results, a prompt's samples together.

    Arguments and errors as in :func:`steps`.
    """
    sampling = sampling or Sampling()
    seed = new_seed() if sampling.seed is None else sampling.seed
    rows = range(first_row, first_row + len(prompts) * sampling.samples)
    ids: dict[int, list[int]] = {row: [] for row in rows}
    logprobs: dict[int, list[float]] = {row: [] for row in rows}
    reasons: dict[int, FinishReason] = {}
    for step in steps(
        model,
        prompts,
        sampling,
        eos_ids=eos_ids,
        forbidden_ids=forbidden_ids,
        vocab_size=vocab_size,
        seed=seed,
        first_row=first_row,
        keys=keys,
        use_cache=use_cache,
        fast=fast,
    ):
        ids[step.row].append(step.id)
        logprobs[step.row].append(step.logprob)
        if step.finish_reason:
            reasons[step.row] = step.finish_reason
    return [Generation(row, ids[row], reasons[row], logprobs[row], seed) for row in rows]


def steps(
    model: Any,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling | None = None,
    *,
    eos_ids: Iterable[int] = (),
    forbidden_ids: Iterable[int] = (),
    vocab_size: int | None = None,
    seed: int | None = None,
    first_row: int = 0,
    keys: Sequence[int] | None = None,
    use_cache: bool = True,
    fast: bool = True,
    stopped: Callable[[int, int], bool] | None = None,
) -> Iterator[Step]:
    """Yield tokens as they are drawn, every live row's token of a step before the next step.

    ``model`` is any :class:`wordloom.models.CausalLM`, its prompts lists of ids; a SequenceToSequence comes
    with what it has read, as :class:`wordloom.generate.Conditioned`.  Sample s of prompt p is
    row ``first_row + p * samples + s``: a lone prompt is row 0, and gets what row r of a batch got with
    ``first_row=r``; ``keys`` key the draws of each row in place of its number.  ``seed`` stands for
    ``sampling.seed`` where that is None.  ``forbidden_ids`` are never drawn, nor ids from ``vocab_size`` on
    (a head wider than its tokenizer).  ``stopped(row, id)`` is asked
    after each token and ends the row with reason "stop" when true; strings in ``sampling.stop`` are for it
    to find (:func:`wordloom.generate.text.stream` does).  ``use_cache=False`` recomputes
    everything at each step, and ``fast=False`` runs the model's modules even where a compiled program
    could (:mod:`wordloom.generate.fast`): the oracles of the cache and of the programs.

    Raises GenerationError before anything is computed: an empty prompt, an id outside the vocabulary (also in
    ``stop_ids``), stop strings without ``stopped``, or a prompt and ``max_new_tokens`` that exceed
    ``max_seq_len`` with ``past="error"``.
    """
    sampling = sampling or Sampling()
    if sampling.stop and stopped is None:
        raise GenerationError(
            f"stop {sampling.stop[0]!r} is text, which token ids alone do not show: it needs a tokenizer; "
            "leave it out, of generation_config.json too, or end at ids (stop_ids, --stop-id)"
        )
    prompts = [token_ids(prompt, f"prompt {number}") for number, prompt in enumerate(prompts)]
    V = model.config.vocab_size if vocab_size is None else vocab_size
    for token in sampling.stop_ids:
        if token >= V:
            raise GenerationError(f"stop_ids (--stop-id) has {token}, and the vocabulary is 0 to {V - 1}")
    limits = new_token_limits(
        model,
        prompts,
        sampling.max_new_tokens,
        window=None if sampling.past == "slide" else context_limit(model.config),
        advice='shorten the prompt, or choose past="slide" (--past slide)',
    )
    limits = [limit for limit in limits for _ in range(sampling.samples)]
    if sampling.seed is not None:
        seed = sampling.seed
    elif seed is None:
        seed = new_seed()
    ends: dict[int, FinishReason] = dict.fromkeys(eos_ids, "eos")
    ends.update(dict.fromkeys(sampling.stop_ids, "stop"))
    if fast and use_cache:
        model = accelerate(model)
    contexts = _Contexts(
        model, prompts, sampling.samples, new_tokens=max(limits, default=0), use_cache=use_cache
    )
    forbidden = sorted(set(forbidden_ids))
    check_known("forbidden_ids", forbidden, model.config.vocab_size)
    if keys is None:
        keys = range(first_row, first_row + len(limits))
    generators = [row_generator(seed, key) for key in keys]
    return _decode(contexts, limits, sampling, ends, forbidden, vocab_size, generators, first_row, stopped)


def _decode(
    contexts: _Contexts,
    limits: list[int],
    sampling: Sampling,
    ends: dict[int, FinishReason],
    forbidden: list[int],
    vocab_size: int | None,
    generators: list[np.random.Generator],
    first_row: int,
    stopped: Callable[[int, int], bool] | None,
) -> Iterator[Step]:
    live = list(range(len(limits)))
    banned = torch.tensor(forbidden, device=contexts.device) if forbidden else None
    for count in range(1, max(limits, default=0) + 1):
        logits = contexts.logits()
        with contexts.choosing():
            normalizers = logits.logsumexp(dim=-1)  # finite where the largest logit is
            if not bool(normalizers.isfinite().all()):
                raise damaged()
            allowed = logits if banned is None else logits.index_fill(1, banned, -torch.inf)
            drawing = [generators[row] for row in live]
            ids = next_ids(allowed[:, :vocab_size], contexts.rows, sampling, drawing)
            logprobs = logits.gather(1, ids[:, None])[:, 0] - normalizers
        drawn: list[int] = ids.tolist()
        contexts.append(drawn)
        going: list[int] = []
        for place, (row, token, logprob) in enumerate(zip(live, drawn, logprobs.tolist(), strict=True)):
            reason = ends.get(token)
            if reason is None and stopped is not None and stopped(first_row + row, token):
                reason = "stop"
            if reason is None and count == limits[row]:
                reason = "length"
            if reason is None:
                going.append(place)
            yield Step(first_row + row, token, logprob, reason)
        if not going:
            return
        if len(going) < len(live):
            contexts.keep(going)
            live = [live[place] for place in going]


class _Contexts:
    """The ids of each live row so far, and the model's logits for what comes next."""

    def __init__(
        self, model: Any, prompts: Sequence[Sequence[int]], samples: int, *, new_tokens: int, use_cache: bool
    ) -> None:
        self.model = model
        self.samples = samples
        self.rows = [list(prompt) for prompt in prompts for _ in range(samples)]
        self.prompts = [number for number in range(len(prompts)) for _ in range(samples)]
        self.new_tokens = new_tokens
        self.use_cache = use_cache
        self.window = context_limit(model.config)
        self.device = next(model.parameters()).device
        self.cache: Cache | None = None

    def append(self, ids: Sequence[int]) -> None:
        for row, token in zip(self.rows, ids, strict=True):
            row.append(token)

    def keep(self, places: list[int]) -> None:
        """Only the rows at these places go on."""
        self.rows = [self.rows[place] for place in places]
        self.prompts = [self.prompts[place] for place in places]
        if self.cache is not None:
            with torch.inference_mode():
                self.cache.select(torch.tensor(places, device=self.device))

    def logits(self) -> Tensor:
        """[B, V] float32."""
        # looking through all modules takes a few percent of a step of a small model
        mode = evaluating(self.model) if self.model.training else nullcontext()
        with mode, torch.inference_mode():
            return self._logits().float()

    def choosing(self) -> AbstractContextManager[None]:
        """Inside this stands what is done with logits between two steps of the model."""
        return one_thread() if isinstance(self.model, Accelerated) else nullcontext()

    def _logits(self) -> Tensor:
        past = self.window is not None and max(map(len, self.rows)) > self.window
        if past or not self.use_cache:
            # past the window a cached key still holds what its token saw of those that left: only
            # computing the window anew is exact
            self.cache, self.samples = None, 1  # rows may be left that the cache can serve: each by itself
            left = [row[-self.window :] if self.window else row for row in self.rows]
            return next_logits(self._reader(), left, device=self.device)
        if self.cache is None:
            prompts = self.rows[:: self.samples]
            longest = max(map(len, prompts))
            reader = self._reader()
            self.cache = reader.new_cache(len(prompts), longest + self.new_tokens)
            logits = next_logits(reader, prompts, device=self.device, cache=self.cache)
            if self.samples > 1:
                rows = torch.arange(len(prompts), device=self.device).repeat_interleave(self.samples)
                self.cache.select(rows)
                logits = logits[rows]
            return logits
        tokens = torch.tensor([row[-1:] for row in self.rows], device=self.device)  # [B, 1]
        return self.model.lm_head(self.model.hidden(tokens, cache=self.cache)[:, -1])

    def _reader(self) -> Any:
        """The model as it reads the live rows anew, or the one prompt of their samples."""
        if not isinstance(self.model, Conditioned):
            return self.model
        return self.model.select(torch.tensor(self.prompts[:: self.samples], device=self.device))


def next_logits(
    model: Any, rows: Sequence[Sequence[int]], *, device: torch.device, cache: Cache | None = None
) -> Tensor:
    """Logits [B, V] of the token after each row of ids, as :func:`next_hidden` takes them."""
    return model.lm_head(next_hidden(model, rows, device=device, cache=cache))


def next_hidden(
    model: Any, rows: Sequence[Sequence[int]], *, device: torch.device, cache: Cache | None = None
) -> Tensor:
    """What the head makes logits of the token after each row of ids from, [B, D].

    With a ``cache``, what the rows leave in it is kept, and rows long enough pass in pieces.
    """
    lengths = [len(row) for row in rows]
    T = max(lengths)
    tokens = torch.tensor([[*row, *[0] * (T - len(row))] for row in rows], device=device)  # [B, T]
    attend: Tensor | None = None
    if min(lengths) < T:
        attend = torch.arange(T, device=device) < torch.tensor(lengths, device=device)[:, None]
    piece = T if cache is None else max(1, PREFILL_TOKENS // len(rows))
    last: list[Tensor] = [torch.empty(0)] * len(rows)
    for start in range(0, T, piece):
        part = slice(start, start + piece)
        hidden = model.hidden(
            tokens[:, part], attend=None if attend is None else attend[:, part], cache=cache
        )
        if attend is None and start + piece >= T:
            return hidden[:, -1]
        for row, length in enumerate(lengths):
            if start < length <= start + piece:
                last[row] = hidden[row, length - 1 - start].clone()
    return torch.stack(last)


def check_finite(logits: Tensor) -> None:
    """Raise GenerationError unless each row's largest logit is a finite number."""
    if not bool(logits.amax(dim=-1).isfinite().all()):
        raise damaged()


def damaged() -> GenerationError:
    """What is wrong with a model whose logits are no numbers."""
    return GenerationError("the model's logits are NaN or infinite; are its weights damaged?")


def new_token_limits(
    model: Any, prompts: Sequence[Sequence[int]], wanted: int | None, *, window: int | None, advice: str
) -> list[int]:
    """How many tokens each prompt may be continued by: ``wanted``, or as usual where that is None.

    Raises GenerationError for prompts that ``model`` cannot go on from, and, with ``advice``, where
    ``window`` leaves no room for that many.
    """
    check_ids(prompts, model.config.vocab_size)
    usual = [DEFAULT_NEW_TOKENS] * len(prompts)
    if isinstance(model, Conditioned):
        model.check(prompts)
        usual = model.usual_new_tokens()
    return [
        _room(len(prompt), window, wanted, most, advice) for prompt, most in zip(prompts, usual, strict=True)
    ]


def check_ids(prompts: Sequence[Sequence[int]], vocab_size: int) -> None:
    """Raise GenerationError for an empty prompt or an id that the model has no embedding for."""
    for number, prompt in enumerate(prompts):
        if not len(prompt):
            raise GenerationError(
                f"prompt {number} has no tokens; give at least one (the beginning-of-text id)"
            )
        check_known(f"prompt {number}", prompt, vocab_size)


def check_known(what: str, ids: Sequence[int], vocab_size: int) -> None:
    """Raise GenerationError for what is no id, or one that the model has no embedding for."""
    for token in ids:
        if not hasattr(token, "__index__"):
            raise GenerationError(
                f"{what} has {token!r}, not a token id; give a list of whole numbers from 0"
            )
        if not 0 <= token < vocab_size:
            raise GenerationError(
                f"{what} has id {token}, but the model's vocabulary is 0 to {vocab_size - 1}; "
                "was it tokenized with this model's tokenizer?"
            )


def _room(prompt: int, window: int | None, wanted: int | None, usual: int, advice: str) -> int:
    if window is None:
        return wanted or usual
    left = window - prompt
    if left < (wanted or 1):
        given = f"a prompt of length {prompt}" + ("" if wanted is None else f" and {wanted} new tokens")
        fewer = f"ask for at most {left} new tokens, " if left > 0 else ""
        raise GenerationError(f"{given}: more than max_seq_len {window} holds; {fewer}{advice}")
    return wanted or min(usual, left)
