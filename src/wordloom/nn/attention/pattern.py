"""Sparse attention by position: which keys a query sees (Lin et al. 2021, arXiv:2106.04554, section 4.1).

A pattern is written as kinds joined by ``+``, such as ``"band:256+global:16"``; a query sees the keys of any
of them.  A causal model lets no query see a later key, whatever the kind.

    full             every key
    band:W           the last W keys, the query's own included; in an encoder, W keys on each side as well
    global:G         the first G tokens see every key, and every query sees them
    dilated:W:D      as band:W, but every D-th key
    block:B          the keys of the query's own block of B
    random:R:SEED    R keys drawn for each query

Compounds are short for them:

    longformer:W:G   band:W+global:G             Beltagy et al. 2020, arXiv:2004.05150
    bigbird:B:G:R    band:B+global:G+random:R:0  Zaheer et al. 2020, arXiv:2007.14062, by token, not by block
    star             the nearest neighbours and global:1     Guo et al. 2019, arXiv:1902.09113
    sliding:W        band:W                      Jiang et al. 2023, arXiv:2310.06825
    sinks:G:W        band:W+global:G             Xiao et al. 2023, arXiv:2309.17453

A position is the number of a token within its text: padding is not counted, and each packed document begins
at 0.  So packed documents see what they would see alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor

from wordloom.errors import ConfigError, did_you_mean

LARGEST = 2**30
"""The largest width, size or number of tokens of a kind."""


@dataclass(frozen=True)
class Full:
    """Every key."""

    step: ClassVar[int] = 1
    remembered: ClassVar[None] = None

    def __str__(self) -> str:
        return "full"

    def allowed(self, q: Tensor, k: Tensor, n: Tensor | int, causal: bool) -> Tensor:
        return (k >= 0) & (q >= 0)

    def ranges(self, q: Tensor, n: int, causal: bool) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(q), torch.full_like(q, n)


@dataclass(frozen=True)
class Dilated:
    """The keys 0, D, 2 D, ... back, W of them; in an encoder also W keys on each side."""

    width: int
    step: int

    def __str__(self) -> str:
        return f"dilated:{self.width}:{self.step}"

    def allowed(self, q: Tensor, k: Tensor, n: Tensor | int, causal: bool) -> Tensor:
        distance = (q - k).abs()
        widest = self.width - 1 if causal else self.width
        return (distance % self.step == 0) & (distance <= widest * self.step)

    def ranges(self, q: Tensor, n: int, causal: bool) -> tuple[Tensor, Tensor]:
        widest = self.width - 1 if causal else self.width
        back = (q // self.step).clamp(max=widest) * self.step
        return q - back, q + 1 + (0 if causal else self.width * self.step)

    @property
    def remembered(self) -> tuple[int, int]:
        return 0, (self.width - 1) * self.step + 1


@dataclass(frozen=True)
class Band(Dilated):
    """The last W keys, the query's own included; in an encoder, W keys on each side as well."""

    step: int = 1

    def __str__(self) -> str:
        return f"band:{self.width}"


@dataclass(frozen=True)
class Global:
    """The first G tokens see every key, and every query sees them."""

    tokens: int
    step: ClassVar[int] = 1

    def __str__(self) -> str:
        return f"global:{self.tokens}"

    def allowed(self, q: Tensor, k: Tensor, n: Tensor | int, causal: bool) -> Tensor:
        return (k < self.tokens) | (q < self.tokens)

    def ranges(self, q: Tensor, n: int, causal: bool) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(q), torch.where(q < self.tokens, n, min(self.tokens, n))

    @property
    def remembered(self) -> tuple[int, int]:
        return self.tokens, 0


@dataclass(frozen=True)
class Block:
    """The keys of the query's own block of B."""

    size: int
    step: ClassVar[int] = 1

    def __str__(self) -> str:
        return f"block:{self.size}"

    def allowed(self, q: Tensor, k: Tensor, n: Tensor | int, causal: bool) -> Tensor:
        return q // self.size == k // self.size

    def ranges(self, q: Tensor, n: int, causal: bool) -> tuple[Tensor, Tensor]:
        first = q // self.size * self.size
        return first, first + self.size

    @property
    def remembered(self) -> tuple[int, int]:
        return 0, self.size


@dataclass(frozen=True)
class Random:
    """R keys drawn for each query, one from each of R equal parts of the keys that it may see.

    The draw depends on the seed, the query's position and the number of these keys, and on nothing else.  A
    query that may see R keys or fewer sees them all.
    """

    keys: int
    seed: int
    remembered: ClassVar[None] = None

    def __str__(self) -> str:
        return f"random:{self.keys}:{self.seed}"

    def allowed(self, q: Tensor, k: Tensor, n: Tensor | int, causal: bool) -> Tensor:
        there = self._there(q, n, causal)
        part = ((k + 1) * self.keys - 1) // there  # the part in which key k lies
        return k == self._drawn(q, part, there)

    def drawn(self, n: int, causal: bool) -> Tensor:
        """Return the keys [n, R] of each query, -1 where a part is empty."""
        q = torch.arange(n)[:, None]
        part = torch.arange(self.keys)[None]
        return self._drawn(q, part, self._there(q, n, causal))

    @staticmethod
    def _there(q: Tensor, n: Tensor | int, causal: bool) -> Tensor:
        return (q + 1 if causal else 0 * q + n).clamp(min=1)  # queries of padding have no keys

    def _drawn(self, q: Tensor, part: Tensor, there: Tensor) -> Tensor:
        first, end = part * there // self.keys, (part + 1) * there // self.keys
        size = end - first
        key = first + _hashed(_hashed(q + _hashed(self.seed)) + part) % size.clamp(min=1)
        return torch.where(size > 0, key, -1)


_BITS = 0xFFFFFFFF
_IntOrTensor = TypeVar("_IntOrTensor", int, Tensor)


def _hashed(x: _IntOrTensor) -> _IntOrTensor:
    """Return 32 bits for x, or for each of x [*] int64, by Wellons's "lowbias32" (2018)."""
    x = x & _BITS
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _BITS
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _BITS
    return x ^ (x >> 16)


Kind: TypeAlias = Full | Band | Global | Dilated | Block | Random

KINDS: dict[str, tuple[str, type[Kind]]] = {
    "full": ("", Full),
    "band": ("W", Band),
    "global": ("G", Global),
    "dilated": ("W:D", Dilated),
    "block": ("B", Block),
    "random": ("R:SEED", Random),
}

COMPOUNDS: dict[str, tuple[str, Callable[..., list[Kind]]]] = {
    "longformer": ("W:G", lambda w, g: [Band(w), Global(g)]),
    "bigbird": ("B:G:R", lambda b, g, r: [Band(b), Global(g), Random(r, 0)]),
    "sliding": ("W", lambda w: [Band(w)]),
    "sinks": ("G:W", lambda g, w: [Band(w), Global(g)]),
}
"""The kinds that a compound stands for; those of ``star`` depend on the direction."""


class Ranges(NamedTuple):
    """The keys that each query of a text of n tokens sees, as ranges and as single keys.

    Attributes:
        first: ``[P, n]`` int32, the first key of each query in each of P kinds.
        end: ``[P, n]`` int32, the end of the range, at most n.
        steps: The distance of two keys of a range, for each kind; kinds with step 1 come first.
        drawn: ``[n, R]`` int32, single keys that lie in no range and differ; -1 for none.
    """

    first: Tensor
    end: Tensor
    steps: tuple[int, ...]
    drawn: Tensor

    def n_pairs(self) -> int:
        """Return how many pairs of a query and a key see each other."""
        total = int((self.drawn >= 0).sum())
        for p, step in enumerate(self.steps):
            if step == 1:
                continue
            longest = int((-(-(self.end[p] - self.first[p]) // step)).max())
            keys = self.first[p][:, None] + step * torch.arange(longest, dtype=torch.int32)  # [n, longest]
            total += int((~self.covers(keys, p) & (keys < self.end[p][:, None])).sum())
        whole = self.steps.count(1)
        if whole:
            order = self.first[:whole].argsort(dim=0)
            first, end = self.first[:whole].gather(0, order), self.end[:whole].gather(0, order)
            reached = end.cummax(dim=0).values.roll(1, dims=0)
            reached[0] = 0
            total += int((end - torch.maximum(first, reached)).clamp(min=0).sum())
        return total

    def covers(self, keys: Tensor, kinds: int) -> Tensor:
        """Return [n, R], True where one of the first ``kinds`` ranges of a query contains keys [n, R]."""
        covered = torch.zeros_like(keys, dtype=torch.bool)
        for p in range(kinds):
            first, end = self.first[p][:, None], self.end[p][:, None]
            covered |= (keys >= first) & (keys < end) & ((keys - first) % self.steps[p] == 0)
        return covered


@dataclass(frozen=True)
class Pattern:
    """Which keys a query sees by its position; see the module docstring.

    Attributes:
        kinds: A query sees the keys of any of them.
        causal: No query sees a later key.
    """

    kinds: tuple[Kind, ...]
    causal: bool

    @classmethod
    def parse(cls, text: str, *, causal: bool) -> Pattern:
        """Return the pattern that ``text`` describes, such as ``"band:256+global:16"``.

        Raises ConfigError for an unknown kind, a missing or superfluous number, and a width of 0.
        """
        kinds = [kind for part in text.split("+") for kind in _parsed(part.strip(), text, causal)]
        return cls(_simplified(kinds), causal)

    def __str__(self) -> str:
        return "+".join(str(kind) for kind in self.kinds)

    @property
    def is_full(self) -> bool:
        """Whether every query sees all keys up to its own, or in an encoder all keys."""
        return any(isinstance(kind, Full) for kind in self.kinds)

    @property
    def remembered(self) -> tuple[int, int] | None:
        """How many of the first and of the last tokens later queries of a causal model see; None: all."""
        bounds = [kind.remembered for kind in self.kinds]
        if any(bound is None for bound in bounds):
            return None
        known = [bound for bound in bounds if bound is not None]
        return max(first for first, _ in known), max(last for _, last in known)

    def allowed(self, q: Tensor, k: Tensor, n: Tensor | int) -> Tensor:
        """Return True where a query at position q of a text of n tokens sees a key at position k.

        q, k and n are int64 and broadcast.  This is the definition of the kinds; every other reader is
        tested against it.
        """
        seen = functools.reduce(
            torch.Tensor.logical_or, (kind.allowed(q, k, n, self.causal) for kind in self.kinds)
        )
        return seen & (k <= q) if self.causal else seen

    def mask(self, n: int) -> Tensor:
        """Return [n, n], True where query q of a text of n tokens sees key k."""
        place = torch.arange(n)
        return self.allowed(place[:, None], place, n)

    def mask_mod(self, n: int) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        """Return the mask function for FlexAttention's ``create_block_mask``, for texts of n tokens."""

        def mask_mod(_b: Tensor, _h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return self.allowed(q, k, n)

        return mask_mod

    def ranges(self, n: int) -> Ranges:
        """Return the keys that each query of a text of n tokens sees."""
        return _ranges(self, n)

    def n_pairs(self, n: int) -> int:
        """Return how many pairs of a query and a key see each other in a text of n tokens."""
        return self.ranges(n).n_pairs()


@functools.lru_cache(maxsize=64)
def _ranges(pattern: Pattern, n: int) -> Ranges:
    q = torch.arange(n)
    spaced = [kind for kind in pattern.kinds if not isinstance(kind, Random)]
    spaced.sort(key=lambda kind: kind.step)
    bounds = [kind.ranges(q, n, pattern.causal) for kind in spaced]
    last = q + 1 if pattern.causal else torch.full_like(q, n)
    none = torch.empty(0, n, dtype=torch.int32)
    first = torch.stack([first for first, _ in bounds]).int() if bounds else none
    end = torch.stack([end.minimum(last) for _, end in bounds]).int() if bounds else none
    steps = tuple(kind.step for kind in spaced)
    draws = [kind.drawn(n, pattern.causal) for kind in pattern.kinds if isinstance(kind, Random)]
    drawn = torch.cat(draws, dim=1).int() if draws else torch.empty(n, 0, dtype=torch.int32)
    alone = Ranges(first, end, steps, drawn)
    drawn = drawn.masked_fill(alone.covers(drawn, len(steps)), -1)
    if len(draws) > 1:  # a key drawn twice counts once
        drawn = drawn.sort(dim=1).values
        drawn[:, 1:].masked_fill_(drawn[:, 1:] == drawn[:, :-1], -1)
    return alone._replace(drawn=drawn)


def _parsed(part: str, text: str, causal: bool) -> list[Kind]:
    """Return the kinds of one term of a pattern."""
    name, *numbers = part.split(":")
    if name == "star" and not numbers:
        return [Band(2 if causal else 1), Global(1)]
    if name in COMPOUNDS:
        letters, expand = COMPOUNDS[name]
        return expand(*_numbers(name, letters, numbers, text))
    if name not in KINDS:
        raise ConfigError(
            f"unknown attention {part!r} in {text!r}; {did_you_mean(name, [*KINDS, *COMPOUNDS, 'star'])}"
        )
    letters, kind = KINDS[name]
    return [kind(*_numbers(name, letters, numbers, text))]


def _numbers(name: str, letters: str, given: list[str], text: str) -> list[int]:
    """Return the numbers of a kind; raise ConfigError unless there is one for each of ``letters``."""
    wanted = letters.split(":") if letters else []
    form = ":".join([name, *wanted])
    if len(given) != len(wanted):
        raise ConfigError(f"attention {text!r}: {name} is written '{form}', not {':'.join([name, *given])!r}")
    numbers = []
    for letter, number in zip(wanted, given, strict=True):
        least = 0 if letter == "SEED" else 1
        if not (
            number.isascii() and number.isdigit() and len(number) < 12 and least <= int(number) <= LARGEST
        ):
            raise ConfigError(
                f"attention {text!r}: {letter} of '{form}' is a whole number from {least} to {LARGEST:,}, "
                f"not {number!r}"
            )
        numbers.append(int(number))
    return numbers


def _simplified(kinds: list[Kind]) -> tuple[Kind, ...]:
    """Return the kinds without those that another one contains."""
    if any(isinstance(kind, Full) for kind in kinds):
        return (Full(),)
    kinds = [Band(kind.width) if isinstance(kind, Dilated) and kind.step == 1 else kind for kind in kinds]
    widths = [kind.width for kind in kinds if isinstance(kind, Band)]
    tokens = [kind.tokens for kind in kinds if isinstance(kind, Global)]
    widest = [Band(max(widths))] if widths else []
    most = [Global(max(tokens))] if tokens else []
    return (*widest, *most, *dict.fromkeys(kind for kind in kinds if not isinstance(kind, Band | Global)))


def patterns_of_layers(setting: str, n_layers: int, *, causal: bool) -> tuple[Pattern, ...]:
    """Return the pattern of each layer.

    ``setting`` is one pattern for all layers, or a sequence such as ``"band:256*3,full"`` that is repeated
    over the layers: three with a band, one full, three with a band, ...

    Raises ConfigError as :meth:`Pattern.parse`.
    """
    texts = [text for item in setting.split(",") for text in _repeated(item.strip(), setting)]
    return tuple(Pattern.parse(texts[layer % len(texts)], causal=causal) for layer in range(n_layers))


def sequence_of_layers(texts: Sequence[Any], n_layers: int) -> str:
    """Return the setting for :func:`patterns_of_layers` that a list with a pattern for each layer stands for.

    Raises ConfigError for another number of patterns, and for what is no pattern of one layer.
    """
    for text in texts:
        if not isinstance(text, str) or "," in text or "*" in text:
            raise ConfigError(f"attention lists {text!r}; a list has one pattern such as 'band:256' a layer")
    if len(texts) != n_layers:
        raise ConfigError(
            f"attention is a list of {len(texts)} for {n_layers} layers; give one for each, or a sequence "
            "such as 'band:256*3,full' to repeat"
        )
    return ",".join(texts)


def _repeated(item: str, setting: str) -> list[str]:
    """Return the patterns of one item of a sequence: "band:256*3" is three."""
    text, star, times = item.partition("*")
    if not star:
        return [text]
    if not (times.isascii() and times.isdigit() and 0 < int(times) <= 2_000):
        raise ConfigError(f"attention {setting!r}: after * stands a number of layers from 1, not {times!r}")
    return [text] * int(times)
