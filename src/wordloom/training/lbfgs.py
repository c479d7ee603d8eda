"""L-BFGS with one evaluation of loss and gradient per step, for a loss over all samples.

Liu and Nocedal 1989, "On the limited memory BFGS method".  The two loops are algorithm 7.4 of Nocedal and
Wright 2006.  They begin with the diagonal of Gilbert and Lemaréchal 1989 ("Some numerical experiments with
variable-storage quasi-Newton algorithms", section 4.2), as in their M1QN3.  The curvature along a frequent
word's weight is hundreds of times that along a rare word's, and the diagonal saved a third of the steps.

torch.optim.LBFGS evaluates the loss several times within one step.  Here the search along a direction
continues from step to step, so the common training loop can stop and resume a run in the middle of a search.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

HISTORY = 10  # the usual number of pairs
_SUFFICIENT = 1e-4  # Armijo's share of the decrease that the slope promises
_NOISE = 1e-6  # share of the loss that rounding in float32 may hide
_SHORTEST = 1e-10  # share of the direction below which the search has ended


class _Numbers(NamedTuple):
    """The scalar state between two steps."""

    evaluations: float = 0.0
    pairs: float = 0.0  # ever kept
    loss: float = 0.0  # with penalty, at the point
    slope: float = 0.0  # of the loss along the direction, at the point
    length: float = 1.0  # of the step under way
    converged: float = 0.0


class LBFGS:
    """An optimizer of loss + l2 / 2 * (sum of squares), with one ``l2`` for each parameter group.

    :meth:`evaluated` moves the parameters to the next point to evaluate.  Backtracking (Armijo's condition,
    quadratic interpolation) finds the length of a step, so there is no learning rate.  :attr:`converged` is
    true when no component of the gradient exceeds ``tolerance``.  ``memory`` holds the whole state, with P
    weights and m = ``history`` pairs.
    """

    def __init__(
        self, groups: Iterable[dict[str, Any]], *, history: int = HISTORY, tolerance: float = 1e-4
    ) -> None:
        self.param_groups = [{**group, "lr": 1.0} for group in groups]
        self.history, self.tolerance = history, tolerance
        self._parameters: list[nn.Parameter] = [p for group in self.param_groups for p in group["params"]]
        device = self._parameters[0].device
        l2 = [torch.full((p.numel(),), g["l2"]) for g in self.param_groups for p in g["params"]]
        self._l2 = torch.cat(l2).to(device)  # [P]
        P = self._l2.numel()
        self.memory: dict[str, Tensor] = {
            "point": torch.zeros(P, device=device),
            "gradient": torch.zeros(P, device=device),  # at the point, with the penalty's
            "direction": torch.zeros(P, device=device),  # from the point
            "steps": torch.zeros(history, P, device=device),  # pair n stands in row n mod m
            "changes": torch.zeros(history, P, device=device),  # of the gradient along them
            "products": torch.zeros(history, dtype=torch.float64),  # step times change
            "diagonal": torch.ones(P, device=device),  # of the inverse Hessian, before the pairs
            "numbers": torch.tensor(_Numbers(), dtype=torch.float64),
        }

    @property
    def converged(self) -> bool:
        return bool(self._numbers.converged)

    @property
    def searching(self) -> bool:
        """True if there is a point to return to, so that a step that is too long can be shortened."""
        return bool(self._numbers.evaluations)

    @property
    def _numbers(self) -> _Numbers:
        return _Numbers(*self.memory["numbers"].tolist())

    @contextmanager
    def at_point(self) -> Iterator[None]:
        """Put the parameters at the best point evaluated so far within the block."""
        if not self._numbers.evaluations:
            yield
            return
        own = _flat(self._parameters)
        self._set(self.memory["point"])
        try:
            yield
        finally:
            self._set(own)

    @torch.no_grad()
    def evaluated(self, loss: float) -> None:
        """Take the mean ``loss`` and the gradients of the parameters, and move to the next place.

        While :attr:`searching`, a loss or gradient that is not finite shortens the step.
        """
        at = _flat(self._parameters)  # [P]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
        gradient = _flat(gradients).addcmul_(self._l2, at)
        value = loss + 0.5 * float((self._l2 * at) @ at)
        now = self._numbers
        if self.searching:
            finite = math.isfinite(value) and bool(gradient.isfinite().all())
            if not (finite and self._accepted(value, gradient, now)):
                self._shorten(value if finite else math.inf, now)
                return
        pairs = self._remember(at, gradient, int(now.pairs)) if now.evaluations else 0
        self.memory["point"].copy_(at)
        self.memory["gradient"].copy_(gradient)
        now = now._replace(evaluations=now.evaluations + 1, pairs=pairs, loss=value)
        if float(gradient.abs().max()) <= self.tolerance:
            self._stay(now)
            return
        direction = self._scaled(gradient, pairs).neg_()
        self.memory["direction"].copy_(direction)
        length = 1.0 if pairs else 1.0 / float(gradient.norm())  # before the first pair: a distance of 1
        self._go(now._replace(slope=float(direction @ gradient), length=length))

    def _accepted(self, value: float, gradient: Tensor, now: _Numbers) -> bool:
        """Return whether the loss fell enough, judged by the slope where rounding hides the change."""
        if value <= now.loss + _SUFFICIENT * now.length * now.slope:
            return True
        # Hager and Zhang 2005, equation 4.1
        here = float(gradient @ self.memory["direction"])
        return value <= now.loss + _NOISE * abs(now.loss) and here <= (2 * _SUFFICIENT - 1) * now.slope

    def _shorten(self, value: float, now: _Numbers) -> None:
        """Continue at the lowest point of the parabola through the known values, within bounds."""
        promised = now.slope * now.length
        lowest = promised * now.length / (2 * (promised - (value - now.loss)))
        length = min(max(lowest, 0.1 * now.length), 0.5 * now.length)
        now = now._replace(evaluations=now.evaluations + 1, length=length)
        if length < _SHORTEST:
            self._stay(now)
        else:
            self._go(now)

    def _remember(self, at: Tensor, gradient: Tensor, pairs: int) -> int:
        """Keep the step and the change of the gradient; return the number of pairs ever kept."""
        step, change = at - self.memory["point"], gradient - self.memory["gradient"]
        product = float(step @ change)
        if product <= 1e-10 * float(change @ change):  # no curvature that could be used
            return pairs
        self._rescale(step, change, product, first=not pairs)
        row = pairs % self.history
        self.memory["steps"][row] = step
        self.memory["changes"][row] = change
        self.memory["products"][row] = product
        return pairs + 1

    def _rescale(self, step: Tensor, change: Tensor, product: float, *, first: bool) -> None:
        """Set the diagonal [P] to that of a BFGS update of diag(D)^-1, scaled to the newest curvature."""
        d = self.memory["diagonal"]
        if first:
            d.fill_(product / float(change @ change))
        scale = float((d * change) @ change) / product
        flat = step / d
        b = change.square().div_(product).addcdiv_(torch.full_like(d, scale), d)
        b.addcmul_(flat, flat, value=-scale / float(step @ flat))
        # positive in exact arithmetic
        d.copy_(torch.where(b > 0, 1 / b, d))

    def _scaled(self, gradient: Tensor, pairs: int) -> Tensor:
        """Return the approximate inverse Hessian times ``gradient`` [P], by the two loops."""
        q = gradient.clone()
        rows = [pair % self.history for pair in range(max(0, pairs - self.history), pairs)]
        steps, changes = self.memory["steps"].unbind(), self.memory["changes"].unbind()
        products: list[float] = self.memory["products"].tolist()
        shares = [0.0] * self.history
        for row in reversed(rows):
            shares[row] = float(steps[row] @ q) / products[row]
            q.add_(changes[row], alpha=-shares[row])
        q.mul_(self.memory["diagonal"])
        for row in rows:
            q.add_(steps[row], alpha=shares[row] - float(changes[row] @ q) / products[row])
        return q

    def _go(self, now: _Numbers) -> None:
        """Put the parameters at the next place to evaluate."""
        self._set(torch.add(self.memory["point"], self.memory["direction"], alpha=now.length))
        self._note(now)

    def _stay(self, now: _Numbers) -> None:
        """End the search, with the parameters at the best point."""
        self._set(self.memory["point"])
        self._note(now._replace(length=0.0, converged=1.0))

    def _note(self, now: _Numbers) -> None:
        self.memory["numbers"].copy_(torch.tensor(now, dtype=torch.float64))
        for group in self.param_groups:
            group["lr"] = now.length

    @torch.no_grad()
    def _set(self, values: Tensor) -> None:
        start = 0
        for p in self._parameters:
            p.copy_(values[start : start + p.numel()].view_as(p))
            start += p.numel()


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1).float() for tensor in tensors])
