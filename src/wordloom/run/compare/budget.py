"""Budgets of training: tokens, floating-point operations or minutes."""

from __future__ import annotations

import math
import re
from typing import Literal, NamedTuple, cast

from wordloom.errors import RecipeError, did_you_mean

Kind = Literal["tokens", "flops", "minutes"]
KINDS: tuple[Kind, ...] = ("tokens", "flops", "minutes")

_FACTORS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_NUMBER = re.compile(r"(\d+(?:[._]\d+)*(?:e[+-]?\d+)?)([kmbgt]?)", re.IGNORECASE)


def parse_amount(text: str, what: str) -> float:
    """Return the number that ``text`` writes, such as 50M, 1.5k, 2_000 or 1e15.

    Raises RecipeError, which names ``what``, for anything else and for 0.
    """
    found = _NUMBER.fullmatch(text.strip())
    try:
        amount = float(found[1]) * _FACTORS[found[2].lower()] if found else math.nan
    except ValueError:
        amount = math.nan
    if not (math.isfinite(amount) and amount > 0):
        raise RecipeError(f"{what}: {text!r} is no number above 0; write it as 50M, 1.5k, 2_000 or 1e15")
    return amount


def short(amount: float) -> str:
    """Return a number as 1.5M or 300k."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if amount >= size:
            return f"{amount / size:.3g}{letter}"
    return f"{amount:g}"


class Budget(NamedTuple):
    """How long every model of a comparison trains."""

    kind: Kind
    amount: float

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Return the budget that ``tokens=50M``, ``flops=1e15`` or ``minutes=30`` names."""
        kind, equals, amount = text.partition("=")
        if not equals or kind.strip() not in KINDS:
            hint = f"{did_you_mean(kind.strip(), KINDS)}; " if equals else ""
            raise RecipeError(
                f"--budget {text!r} names no budget; {hint}write tokens=50M, flops=1e15 or minutes=30"
            )
        return cls(cast(Kind, kind.strip()), parse_amount(amount, f"--budget {kind.strip()}"))

    def __str__(self) -> str:
        return f"{self.kind}={self.amount:g}" if self.kind == "flops" else f"{self.kind}={short(self.amount)}"


class Cost(NamedTuple):
    """What an optimizer step of an entry costs; ``seconds`` is measured, and known for minutes only."""

    tokens: int
    flops: float
    seconds: float | None = None

    def steps(self, budget: Budget, share: float = 1.0) -> int:
        """Return the steps that a ``share`` of ``budget`` pays for, at least one."""
        each = {
            "tokens": float(self.tokens),
            "flops": self.flops,
            "minutes": (self.seconds or math.nan) / 60,
        }[budget.kind]
        return max(1, round(share * budget.amount / each))
