"""Sampling: the settings of generation, and pure functions from logits [B, V] to the next ids [B].

The order is that of the reference library: biases, penalties, no-repeat-ngram, then temperature, top-k, top-p
and min-p, each on the result of the step before.  Filters set logits to -inf.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from wordloom.errors import GenerationError, did_you_mean
from wordloom.generate.prompts import token_ids
from wordloom.nn.evaluating import widened

_LARGEST = 1e30  # of numbers that are added to logits; float32 holds sums of many of them


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Settings that choose the next tokens and end a text.

    Attributes:
        max_new_tokens: A number is the limit, or an error if there is no room for it.  None: 256 tokens, or
            3 * S + 50 after a source of S tokens; fewer where ``max_seq_len`` has no room for them and
            ``past`` is "error".
        temperature: 0 is greedy: the most likely token, and of equally likely ones the lowest id.  Values
            below 1e-30 or above 1e30 act as these bounds, which makes no difference in float32.
        top_k: None or 0 is off.
        top_p: None or 1 is off.
        min_p: None or 0 is off.
        repetition_penalty: 1 is off.  It has the bounds of ``temperature``.
        presence_penalty: Subtracted from the logits of tokens that the row has written; 0 is off.
        frequency_penalty: Subtracted once for each time that the row has written a token; 0 is off.
        logit_bias: Pairs of an id and a number that is added to its logit, or a dict of them.
        no_repeat_ngram: The size of n-grams that do not occur twice; 0 is off.
        stop: Strings that end a text; None for none.
        stop_ids: Ids that end a text; None for none.
        seed: None: a random seed, which the result reports.
        samples: The number of continuations of each prompt.
        past: "slide" continues beyond ``max_seq_len``; each token is computed from the last ``max_seq_len``
            tokens before it.  "error" refuses.

    Raises GenerationError for a value out of range.
    """

    max_new_tokens: int | None = None
    temperature: float = 0.8
    top_k: int | None = 50
    top_p: float | None = None  # Holtzman et al. 2019, arXiv:1904.09751
    min_p: float | None = None  # Nguyen et al. 2024, arXiv:2407.01082
    repetition_penalty: float = 1.0  # Keskar et al. 2019, arXiv:1909.05858
    presence_penalty: float = 0.0  # of OpenAI's API, as the next two
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    no_repeat_ngram: int = 0
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    seed: int | None = None
    samples: int = 1
    past: Literal["error", "slide"] = "error"

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", _ends(self.stop, "stop"))
        object.__setattr__(self, "stop_ids", _ends(self.stop_ids, "stop_ids"))
        object.__setattr__(self, "logit_bias", _pairs(self.logit_bias))
        whole_number("max_new_tokens", self.max_new_tokens, least=1, optional=True)
        whole_number("top_k", self.top_k, least=0, optional=True)
        whole_number("no_repeat_ngram", self.no_repeat_ngram, least=0)
        whole_number("seed", self.seed, least=0, optional=True)
        whole_number("samples", self.samples, least=1)
        _number("temperature", self.temperature, lambda x: x >= 0, "from 0 (greedy) up")
        _number("top_p", self.top_p, lambda x: 0 < x <= 1, "above 0 and up to 1 (off)")
        _number("min_p", self.min_p, lambda x: 0 <= x <= 1, "from 0 (off) to 1")
        _number("repetition_penalty", self.repetition_penalty, lambda x: x > 0, "above 0 (1 is off)")
        for name in ("presence_penalty", "frequency_penalty"):
            _number(name, getattr(self, name), _is_addable, "from -1e30 to 1e30 (0 is off)")
        for token, bias in self.logit_bias:
            whole_number("an id of logit_bias", token, least=0)
            _number("logit_bias", bias, _is_addable, "from -1e30 to 1e30 that is added to a logit")
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise GenerationError(f"stop takes strings of at least one character, not {text!r}")
        for token in self.stop_ids:
            whole_number("stop_ids", token, least=0)
        if self.past not in ("error", "slide"):
            raise GenerationError(
                f"unknown past {self.past!r}; {did_you_mean(str(self.past), ['error', 'slide'])}"
            )


def _ends(value: Any, name: str) -> tuple[Any, ...]:
    """Return the setting ``name``, "stop" or "stop_ids", as a tuple."""
    if value is None:
        return ()
    if isinstance(value, str | int):
        return (value,)
    if name == "stop_ids" and not isinstance(value, list | tuple):
        return tuple(token_ids(value, name))
    if not isinstance(value, Iterable):
        raise GenerationError(f"{name} takes a string or a list of strings, not {value!r}")
    return tuple(value)


def _pairs(biases: Any) -> tuple[tuple[Any, Any], ...]:
    """Return ``logit_bias``, a mapping or pairs, as a tuple of pairs."""
    items = biases.items() if isinstance(biases, Mapping) else () if biases is None else biases
    if not isinstance(items, Iterable):
        raise GenerationError(f"logit_bias takes a dict or pairs of an id and a number, not {items!r}")
    pairs = tuple(items)
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise GenerationError(f"logit_bias takes a dict or pairs of an id and a number, not {pair!r}")
    return tuple((token, bias) for token, bias in pairs)


def whole_number(name: str, value: object, *, least: int, optional: bool = False) -> None:
    """Raise GenerationError unless ``value`` is a whole number of at least ``least``, or may be None."""
    if optional and value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise GenerationError(f"{name} is a whole number of at least {least}, not {value!r}")


def _number(name: str, value: Any, allowed: Callable[[float], bool], said: str) -> None:
    if value is None and name in ("top_p", "min_p"):
        return
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not abs(value) <= sys.float_info.max:  # a long int may be larger, and NaN compares false
        raise GenerationError(f"{name} is a number {said}, not {value!r}")
    if not allowed(value):
        raise GenerationError(f"{name} is a number {said}, not {value:g}")


def _is_addable(x: float) -> bool:
    return -_LARGEST <= x <= _LARGEST


def new_seed() -> int:
    """Return a random seed of 32 bits, short enough to be typed again."""
    return secrets.randbits(32)


def seed_of(sampling: Sampling, seed: int | None) -> int:
    """Return the seed of ``sampling``, else ``seed``, else a new one."""
    if sampling.seed is not None:
        return sampling.seed
    return new_seed() if seed is None else seed


def row_generator(seed: int, row: int) -> np.random.Generator:
    """Return the random generator of one row, keyed by (seed, row): the draws of rows are independent."""
    return np.random.default_rng((seed, row))


def _divisor(setting: float) -> float:
    """Return ``setting`` within bounds; rounded to 0 or infinity in float32, it would make logits NaN."""
    return min(max(setting, 1e-30), 1e30)


def penalise_repetition(logits: Tensor, history: Sequence[Sequence[int]], penalty: float) -> Tensor:
    """Divide positive and multiply negative logits of tokens in a row's ``history`` by ``penalty``."""
    if penalty == 1.0:
        return logits
    penalty = _divisor(penalty)
    logits = logits.clone()
    for row, ids in zip(logits, history, strict=True):
        seen = torch.tensor(sorted(set(ids)), device=logits.device, dtype=torch.int64)
        seen = seen[seen < row.shape[0]]
        scaled = torch.where(row[seen] < 0, row[seen] * penalty, row[seen] / penalty)
        row[seen] = scaled.clamp(max=1e38)  # a large bias over a small penalty would be infinite
    return logits


def penalise_written(logits: Tensor, written: Sequence[Sequence[int]], sampling: Sampling) -> Tensor:
    """Subtract the presence and frequency penalties of the tokens that each row has written."""
    presence, frequency, logits = sampling.presence_penalty, sampling.frequency_penalty, logits.clone()
    for row, ids in zip(logits, written, strict=True):
        seen, counts = torch.unique(
            torch.tensor(ids, dtype=torch.int64, device=logits.device), return_counts=True
        )
        fits = seen < row.shape[0]
        row[seen[fits]] -= presence + frequency * counts[fits]
    return logits


def add_biases(logits: Tensor, biases: Sequence[tuple[int, float]]) -> Tensor:
    """Add each bias to the logits of its id."""
    if not biases:
        return logits
    logits = logits.clone()
    for token, bias in biases:
        if token < logits.shape[1]:
            logits[:, token] += bias
    return logits


def forbid_repeated_ngrams(logits: Tensor, history: Sequence[Sequence[int]], size: int) -> Tensor:
    """Forbid every token that would complete an n-gram of ``size`` tokens that is in the row's ``history``.

    Raises GenerationError for a row in which every token is forbidden.
    """
    if size == 0:
        return logits
    logits = logits.clone()
    for row, ids in zip(logits, history, strict=True):
        tail = ids[len(ids) - (size - 1) :]
        starts = range(len(ids) - size + 1)
        banned = {ids[i + size - 1] for i in starts if ids[i : i + size - 1] == tail}
        row[[token for token in banned if token < row.shape[0]]] = -torch.inf
        if bool((row == -torch.inf).all()):
            raise GenerationError(f"no_repeat_ngram {size} forbids every token here; choose a larger number")
    return logits


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Keep the ``k`` largest logits of each row, and those equal to the k-th."""
    kth = logits.topk(min(k, logits.shape[-1]), dim=-1).values[:, -1:]
    return logits.masked_fill(logits < kth, -torch.inf)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Keep the smallest set of likeliest tokens whose probability reaches ``p``; at least one."""
    ascending, order = logits.sort(dim=-1, stable=True)
    tail = ascending.softmax(dim=-1).cumsum(dim=-1)  # probability of this token and all less likely
    drop = tail <= 1 - p
    drop[:, -1] = False
    return logits.masked_fill(torch.zeros_like(drop).scatter(1, order, drop), -torch.inf)


def keep_min_p(logits: Tensor, share: float) -> Tensor:
    """Keep tokens whose probability is at least ``share`` of the highest probability."""
    probability = logits.softmax(dim=-1)
    return logits.masked_fill(probability < share * probability.amax(dim=-1, keepdim=True), -torch.inf)


def filter_logits(logits: Tensor, sampling: Sampling) -> Tensor:
    """Apply temperature, then top-k, top-p and min-p; return logits [B, V], whose softmax is drawn from.

    Each row's maximum is moved to 0 first, which changes no probability and lets a tiny temperature
    overflow to -inf only.
    """
    logits = (logits - logits.amax(dim=-1, keepdim=True)) / _divisor(sampling.temperature)
    if sampling.top_k:
        logits = keep_top_k(logits, sampling.top_k)
    if sampling.top_p is not None and sampling.top_p < 1:
        logits = keep_top_p(logits, sampling.top_p)
    if sampling.min_p:
        logits = keep_min_p(logits, sampling.min_p)
    return logits


def greedy(logits: Tensor) -> Tensor:
    """Return the most likely id of each row, [B]; the lowest among equals, which torch.argmax leaves open."""
    if logits.device.type == "cpu":  # numpy promises the first, in a tenth of the time
        return torch.from_numpy(logits.float().numpy().argmax(axis=-1))
    V = logits.shape[-1]
    ids = torch.arange(V, device=logits.device)
    return torch.where(logits == logits.amax(dim=-1, keepdim=True), ids, V).amin(dim=-1)


def draw(logits: Tensor, generators: Sequence[np.random.Generator]) -> Tensor:
    """Draw one id per row, [B], from softmax(logits) by inverting the cumulative distribution in float64."""
    cumulative = widened(logits).softmax(dim=-1).cumsum(dim=-1)  # [B, V]
    total = cumulative[:, -1:].contiguous()
    uniform = torch.tensor([[g.random()] for g in generators], dtype=torch.float64, device=total.device)
    # strictly above the point: a token of probability 0 adds no width and is never drawn
    ids = torch.searchsorted(cumulative, uniform * total, right=True)
    last = torch.searchsorted(cumulative, total)  # should the product round up to the total
    return torch.minimum(ids, last)[:, 0].to(logits.device)


def next_ids(
    logits: Tensor,
    history: Sequence[Sequence[int]],
    sampling: Sampling,
    generators: Sequence[np.random.Generator],
    prompts: Sequence[int],
) -> Tensor:
    """Choose the next ids [B] by logits [B, V].

    ``history`` has each row's ids, of which the first ``prompts`` [B] are its prompt.
    """
    logits = weighed(logits, history, sampling, prompts)
    if sampling.temperature == 0:
        return greedy(logits)
    return draw(filter_logits(logits, sampling), generators)


def weighed(
    logits: Tensor, history: Sequence[Sequence[int]], sampling: Sampling, prompts: Sequence[int]
) -> Tensor:
    """Return logits [B, V] with the biases and penalties of ``sampling``; see :func:`next_ids`."""
    logits = add_biases(logits, sampling.logit_bias)
    logits = penalise_repetition(logits, history, sampling.repetition_penalty)
    if sampling.presence_penalty or sampling.frequency_penalty:
        written = [ids[start:] for ids, start in zip(history, prompts, strict=True)]
        logits = penalise_written(logits, written, sampling)
    return forbid_repeated_ngrams(logits, history, sampling.no_repeat_ngram)
