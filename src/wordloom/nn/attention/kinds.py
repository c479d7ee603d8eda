"""The kinds of a pattern: which keys a query sees by their positions, and how a kind is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias, TypeVar

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
        key = first + hashed(hashed(q + hashed(self.seed)) + part) % size.clamp(min=1)
        return torch.where(size > 0, key, -1)


_BITS = 0xFFFFFFFF
_IntOrTensor = TypeVar("_IntOrTensor", int, Tensor)


def hashed(x: _IntOrTensor) -> _IntOrTensor:
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


APPROXIMATIONS = {"linformer": "K", "nystrom": "M", "performer": "M"}
"""The approximations of full attention, which are no kinds of a pattern."""

NAMES = [*KINDS, *COMPOUNDS, "star", *APPROXIMATIONS]


def parsed_kinds(text: str, *, causal: bool) -> tuple[Kind, ...]:
    """Return the kinds that ``text`` joins, without those that another one contains.

    Raises ConfigError for an unknown kind, a missing or superfluous number, and a width of 0.
    """
    return _simplified([kind for term in text.split("+") for kind in _parsed(term.strip(), text, causal)])


def _parsed(part: str, text: str, causal: bool) -> list[Kind]:
    """Return the kinds of one term of a pattern."""
    name, *numbers = part.split(":")
    if name == "star" and not numbers:
        return [Band(2 if causal else 1), Global(1)]
    if name in COMPOUNDS:
        letters, expand = COMPOUNDS[name]
        return expand(*numbers_of(name, letters, numbers, text))
    if name not in KINDS:
        raise ConfigError(f"unknown attention {part!r} in {text!r}; {did_you_mean(name, NAMES)}")
    letters, kind = KINDS[name]
    return [kind(*numbers_of(name, letters, numbers, text))]


def numbers_of(name: str, letters: str, given: list[str], text: str) -> list[int]:
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
