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
            hint = (
                did_you_mean(kind.strip(), KINDS) if equals else "write tokens=50M, flops=1e15 or minutes=30"
            )
            raise RecipeError(f"--budget {text!r} names no budget; {hint}")
        return cls(cast(Kind, kind.strip()), parse_amount(amount, f"--budget {kind.strip()}"))

    def __str__(self) -> str:
        text = f"{self.amount:g}" if self.kind == "flops" else short(self.amount)
        return f"{self.kind}={text if parse_amount(text, '') == self.amount else repr(self.amount)}"


class Cost(NamedTuple):
    """The cost of an optimizer step of an entry; ``seconds`` is None unless the budget counts minutes."""

    tokens: int
    flops: float
    seconds: float | None = None

    def steps(self, budget: Budget, share: float = 1.0) -> int:
        """Return the number of steps in a ``share`` of ``budget``, rounded, and at least one.

        Raises RecipeError if the whole budget is smaller than one step.
        """
        each = {
            "tokens": float(self.tokens),
            "flops": self.flops,
            "minutes": (self.seconds or math.nan) / 60,
        }[budget.kind]
        if budget.amount < each:
            raise RecipeError(
                f"the budget {budget} is smaller than one step, which takes {each:,.3g} {budget.kind}; give "
                "a larger one, or lower train.batch_size or train.seq_len"
            )
        return max(1, round(share * budget.amount / each))
